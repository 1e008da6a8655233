"""Play one task of a verifiers v1 taskset with the policy, as the command of the loop `harness`: the last line is the reward.

    [rollout.harness]
    command = ["python", "examples/verifiers/play.py", "TASKSET"]
    answer = "reward"

The task is the number at the end of FLYWHEEL_TASK, as `tasks.py` wrote it. Messages, tools and rewards are the taskset's.
"""

from __future__ import annotations

import asyncio
import os
import sys

from verifiers.v1 import AgentConfig, EvalClientConfig, TasksetConfig, Trace, make_agent
from verifiers.v1.utils.loaders import load_taskset


async def play(name: str, index: int) -> Trace:
    client = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    (task,) = load_taskset(TasksetConfig(id=name)).include(idx=[str(index)])
    config = AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"}, model=os.environ["FLYWHEEL_MODEL"], client=client)
    async with make_agent(config) as agent:
        return await agent.run(task)


trace = asyncio.run(play(sys.argv[1], int(os.environ["FLYWHEEL_TASK"].rsplit("-", 1)[1])))
if trace.errors:
    sys.exit(f"{trace.errors[-1].type}: {trace.errors[-1].message}"[:300])
print(trace.reward)
