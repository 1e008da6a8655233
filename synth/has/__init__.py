"""Higher-order action synthesis (AgentFounder): stored trajectories as decisions among alternatives."""
