"""The policy: RL loop, learner, supervised stages, curriculum, rollouts, engines, environments and tools."""
