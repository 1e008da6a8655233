"""Reinforcement learning, step by step.

step.py          one step from top to bottom: draw, roll out, reward, filter; advantages, update, publish
asynchronous.py  the same where rollouts never stop
replay.py        groups of trajectories between rollouts and learner
protocols.py     what a run stores and where its training reports to
training.py      all steps of a run, in this process or on workers
"""
