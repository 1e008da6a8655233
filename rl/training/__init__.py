"""Learning: supervised stages and reinforcement, their batches, curriculum, filters and signs of health."""
