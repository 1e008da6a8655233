"""Higher-order action synthesis (HAS, AgentFounder): stored trajectories as decisions among alternatives."""
