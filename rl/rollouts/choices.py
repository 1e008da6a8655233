"""What a task asks for beside its environment: the loop, the dialect and the tools that it is rolled out with.

A task says it in its provenance, under `rollout`; what it leaves open is the configuration's. So tasks of several environments and
dialects may stand in one call of `rollout`.
"""

from __future__ import annotations

from pydantic import ValidationError

from warehouse.errors import RequestError
from warehouse.records import Task
from warehouse.settings import Section, first_error

KEY = "rollout"
"""Where the choice stands in a task's provenance."""


class RolloutChoice(Section):
    """What one task asks for; None is whatever the configuration says, and for tools all that the environment has."""

    loop: str | None = None
    dialect: str | None = None
    tools: tuple[str, ...] | None = None
    """The tools that the policy is told of and may call, by name; an answer is always possible."""


def choice_of(task: Task) -> RolloutChoice:
    """What `task` asks for.

    Raises:
        RequestError: where its provenance holds something else under `rollout`.
    """
    try:
        return RolloutChoice.model_validate(task.provenance.get(KEY, {}))
    except ValidationError as error:
        raise RequestError(f"the provenance of task {task.key!r} does not fit at {KEY}.{first_error(error)}.") from error
