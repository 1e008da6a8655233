"""`python -m tests.chaos`: the wheel under faults, compared with the wheel without them: nothing may be lost.

The wheel turns once undisturbed. Then it turns in further homes, while its processes are killed and its disk is filled at random moments;
a driver that died is started again. What is compared (comparison.py), and why no more: tasks and examples of the first turn follow from the
seed alone, so their digests are equal. What later turns make follows from trajectories, and those may differ: a worker that dies makes its
trajectories invalid, and requests of a dead engine are sampled anew. So no sampled trajectory, no later task and no weight is compared with
the undisturbed run's; but what was committed before a fault stays as it was, policies are as good, and RL is rewarded as before.
"""
