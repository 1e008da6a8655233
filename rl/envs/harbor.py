"""Harbor tasks: a shell over a working copy in the sandbox, which the task's own tests judge at the end.

The working copy lasts from call to call; processes do not. The answer ends the trajectory, and the reward is what `tests/test.sh` writes
for the working copy. Tests and solution are in the sandbox only while they run. A reward that cannot be read makes the trajectory invalid.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from eval.graders.harbor import LIMITS, HarborTask, read_task, run_command, verify_copy
from eval.sandbox.sandbox import SandboxConfig, SandboxFault, require_isolation
from rl.envs.base import EnvironmentFault, Observation, Resources, Step
from rl.envs.tool_use import StatefulEnvironment
from rl.renderers.base import Action
from rl.tools import ToolError, tool
from warehouse.records import ANSWER, Task
from warehouse.settings import Section


class HarborOptions(Section):
    """Options of the environment `harbor`."""

    folder: Path
    """Folder with the snapshots that tasks name."""
    sandbox: SandboxConfig = LIMITS


class HarborEnvironment(StatefulEnvironment):
    """One tool, `shell`, over one working copy."""

    def __init__(self, options: HarborOptions) -> None:
        super().__init__({"shell": tool(self.shell)})
        self._options = options
        self._task: HarborTask | None = None
        self._state: bytes | None = None

    async def reset(self, task: Task, seed: int) -> Observation:
        """Read the snapshot; the working copy is made by the first command."""
        first = await super().reset(task, seed)
        self._state = None
        self._task = await asyncio.to_thread(read_task, self._options.folder, task.provenance) if task.key else None
        return first

    async def step(self, action: Action) -> Step:
        """Run a command, or on an answer let the tests judge the working copy."""
        if action.tool != ANSWER or self._task is None:
            return await super().step(action)
        try:
            reward, output = await asyncio.to_thread(verify_copy, self._task, self._state, self._options.sandbox)
        except SandboxFault as fault:
            raise EnvironmentFault(str(fault)) from fault
        if reward is None:
            raise EnvironmentFault(f"the tests wrote no reward: {output[-500:]}")
        return Step(done=True, reward=reward)

    async def shell(self, command: str) -> str:
        """Run a command with bash in the working folder, and see what it prints. Files stay as they are for the next command.

        Args:
            command: the command; it gets no input and no network.
        """
        if self._task is None:
            raise ToolError("there is no task")
        try:
            ran = await asyncio.to_thread(run_command, self._task, self._state, command, self._options.sandbox)
        except SandboxFault as fault:
            raise EnvironmentFault(str(fault)) from fault
        self._state = ran.state
        if ran.status != 0:
            ending = "it was ended at a limit" if ran.status is None else f"status {ran.status}"
            raise ToolError(f"{ran.output}\n({ending})".strip())
        return ran.output or "The command printed nothing."


def create(resources: Resources) -> HarborEnvironment:
    options = resources.read(HarborOptions)
    require_isolation(options.sandbox, "the environment 'harbor'")
    return HarborEnvironment(options)
