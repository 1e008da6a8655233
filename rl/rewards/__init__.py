"""Rewards: from a verifier's score to the number that RL trains on."""
