"""First-order action synthesis (FAS, AgentFounder): plans with a first action, and two-pass reasoning."""
