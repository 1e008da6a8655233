"""Trajectories for imitation: of the oracle (clean or deliberately corrupted), of the policy, and stored runs."""
