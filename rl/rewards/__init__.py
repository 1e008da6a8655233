"""Rewards: what a verifier says of a trajectory, and reward functions that are computed apart, stored apart and summed up by weight.

reward.py     the one function that makes a trajectory's outcome and reward, and what a reward function is
functions.py  the reward functions that come with it, each with its source
config.py     `[rl.rewards]` of a profile
"""
