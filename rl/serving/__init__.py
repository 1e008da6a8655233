"""Serve the policy on an OpenAI-compatible endpoint and record requests as trajectories."""
