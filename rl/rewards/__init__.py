"""Rewards: parts that are computed apart, stored apart, and summed up by their weights."""
