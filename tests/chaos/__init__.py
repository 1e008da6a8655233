"""`python -m tests.chaos`: the wheel under faults, compared with the wheel without them: nothing may be lost.

The wheel turns once undisturbed. Then it turns in further homes, while its processes are killed and its disk is filled at random
moments; whenever its driver has died it is started again, as a person would do. What is compared, and why that and no more:

- **The lake agrees with itself**: no key twice, every trajectory with all its turns and tokens, no score without its trajectory, every
  run completed.
- **What was committed stays**: before each fault the ids of the lake's trajectories are noted with digests of their tokens and
  log-probabilities. All of them are there at the end, unchanged.
- **Tasks and examples are equal** by their digests, as they were when the first turn's synthesis was done. They follow from the seed
  alone. What later turns make follows from trajectories, and those may differ: a worker that dies makes its trajectories invalid, and
  requests of a dead engine are sampled anew on another. So no later task, and no sampled trajectory, is compared with the undisturbed
  run's.
- **The policy is as good**: its success on each suite lies within the 95 % interval (Wilson) of the undisturbed one's. Weights are
  not compared, for they follow from those trajectories.
- **RL is rewarded as before**: of the attempts that both wheels' RL made, as many succeed (McNemar's exact test, p > 0.01). The
  undisturbed one must be rewarded at times, for two wheels that solve nothing are equally good whatever happened to one.
- **Invalid ones are counted**: each policy has a trajectory for every task of its suite; those that a fault made invalid have an error and
  no reward.
- **Nothing is left behind**: of each driver's run no process lives twenty seconds after it, and once the home is finished no shared memory,
  socket or temporary file that its processes had open is there.
"""
