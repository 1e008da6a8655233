"""What can be checked of a configured environment before anything starts: its factory, its options, and the code that these name."""

from __future__ import annotations

from rl.env_pool.config import EnvironmentPoolConfig
from rl.envs.base import ENVIRONMENTS
from rl.tools.file import check_tools_file
from warehouse.settings import read_options


def check_environment(name: str, pool: EnvironmentPoolConfig) -> None:
    """Check the environment that tasks call `name`. Raises RequestError where it, its options or what they name cannot be used."""
    ENVIRONMENTS.load_recorded(name, pool.listed)
    kind, where = pool.kind(name), f"rollout.environments.kinds.{name}"
    match kind.factory or name:
        case "tools":
            from rl.envs.tool_use import ToolsOptions

            check_tools_file(read_options(ToolsOptions, kind.options, where).file)
        case "judge":
            from rl.envs.judge import SCORERS, JudgeOptions

            SCORERS.load(read_options(JudgeOptions, kind.options, where).scorer)
        case "tool_world":
            from rl.envs.tool_world.conversation import SIMULATED_USERS
            from rl.envs.tool_world.environment import WORLDS, ToolWorldOptions

            options = read_options(ToolWorldOptions, kind.options, where)
            for world in options.worlds.values():
                WORLDS.load(world)
            if options.user is not None:
                SIMULATED_USERS.load(options.user.factory)
