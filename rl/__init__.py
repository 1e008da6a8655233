"""The policy: what it is made of, its training stages, the curriculum, and the rollouts through engines, environments and tools."""
