"""The policy behind an OpenAI-compatible endpoint whose requests become trajectories."""
