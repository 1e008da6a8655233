"""First-order action synthesis (AgentFounder): plans with a first action, and reasoning in two passes."""
