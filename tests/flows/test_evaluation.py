"""What judges a task that no answer decides, from the rollout to the lake: the state that was left, and what the environment paid."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from eval.graders.choice import verifiers_of
from flows.verification import reverify
from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from rl.envs import game
from rl.envs.base import Resources
from rl.envs.tool_world import environment as tool_world
from rl.renderers.chat import ChatDialect
from rl.renderers.chat_template import ChatTemplate
from rl.rewards.reward import reward_trajectories
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from rl.rollouts.config import Limits
from synth.worlds.tool_tasks import ToolWorldConfig, generate_tasks
from tests.rl.renderers.templates_of_trl import tokenizer_for
from warehouse import Lake, Task, Trajectory

LIMITS = Limits(max_action_tokens=400, max_observation_tokens=400, max_context_tokens=20_000)
LAKE = {"desc": ["SF", "FG"], "is_slippery": False}
GAME = Task("lake", "game", "Reach the goal.", (), provenance={"verifier": "environment", "game": LAKE})
CHANGE, QUESTION = (
    next(generate_tasks(1, 7, ToolWorldConfig(domains=("bookings",), max_goals=1, asked_share=share))) for share in (0.0, 1.0)
)
FACTORIES = {"tool_world": tool_world.create, "game": game.create}


class Written:
    """An engine that gives written messages one after the other, and then fails."""

    def __init__(self, template: ChatTemplate, messages: Sequence[str]) -> None:
        self._template, self._messages = template, list(messages)

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        if not self._messages:
            raise EngineFault("nothing more is written")
        ids = self._template.encode([f"{self._messages.pop(0)}<|im_end|>"], {})
        return Generation(ids, (-0.5,) * len(ids), GenerationStop.STOP, (1,) * len(ids))


def call(name: str, **arguments: Any) -> str:
    """A message that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def calls_of(task: Task) -> list[str]:
    """The messages that carry out a task's own solution."""
    return [call(one["tool"], **one["arguments"]) for one in task.provenance["calls"]]


def rolled_out(name: str, task: Task, *messages: str) -> Trajectory:
    dialect = ChatDialect(ChatTemplate(tokenizer_for("qwen3_training"), None, {}, date(2025, 1, 1)), None)
    loop = AgentLoop(Written(dialect.template, messages), dialect, LIMITS)
    return asyncio.run(loop.run(RolloutRequest(name, task, "p", 8, seed=1, stage="eval"), FACTORIES[task.environment](Resources())))


ATTEMPTS: dict[str, tuple[Task, list[str]]] = {
    "world-done": (CHANGE, [*calls_of(CHANGE), "Done."]),
    "world-undone": (CHANGE, ["I do not know."]),
    "world-unknown-tool": (CHANGE, [call("fly"), "Done."]),
    "world-fault": (CHANGE, calls_of(CHANGE)),
    "question-right": (QUESTION, [*calls_of(QUESTION), *QUESTION.answers]),
    "question-wrong": (QUESTION, [*calls_of(QUESTION), "Nobody knows."]),
    "game-won": (GAME, [call("act", action="down"), call("act", action="right")]),
    "game-given-up": (GAME, [call("act", action="down"), "I give up."]),
    "game-fault": (GAME, [call("act", action="down")]),
}
EXPECTED = {
    "world-done": ("state", "success", 1.0),
    "world-undone": ("state", "failure", 0.0),
    "world-unknown-tool": ("state", "failure", 0.0),
    "world-fault": ("state", "invalid", None),
    "question-right": ("state", "success", 1.0),
    "question-wrong": ("state", "failure", 0.0),
    "game-won": ("environment", "success", 1.0),
    "game-given-up": ("environment", "failure", 0.0),
    "game-fault": ("environment", "invalid", None),
}
STORED = """
SELECT t.id, s.verifier, t.outcome, t.reward, s.verdict, s.value, o.outcome AS counted
FROM trajectories t JOIN scores s ON s.trajectory_id = t.id JOIN outcomes o ON o.trajectory_id = t.id
"""


@pytest.mark.slow
def test_worlds_and_games_are_judged_by_what_was_done_in_them(tmp_path: Path) -> None:
    tasks = [task for task, _ in ATTEMPTS.values()]
    trajectories = [rolled_out(name, task, *messages) for name, (task, messages) in ATTEMPTS.items()]
    judged, scores, _ = reward_trajectories(tasks, trajectories, verifiers_of("qa_em"))
    with Lake(tmp_path) as lake:
        lake.add([CHANGE, QUESTION, GAME, *judged, *scores])
        rows = {row["id"]: row for row in lake.query(STORED).to_pylist()}
        assert {name: (row["verifier"], row["verdict"], row["value"]) for name, row in rows.items()} == EXPECTED
        assert all((row["outcome"], row["reward"]) == (row["verdict"], row["value"]) for row in rows.values())
        assert all(row["counted"] == row["outcome"] for row in rows.values())
        again = reverify(lake, verifiers_of("qa_em"))
        assert (again.chosen, again.judged) == (len(ATTEMPTS), 0), "the same verifiers have judged all of them"
    with Lake(tmp_path / "unjudged") as lake:
        lake.add([CHANGE, QUESTION, GAME, *trajectories])
        reverify(lake, verifiers_of("qa_em"))
        assert {one.trajectory_id: (one.verifier, one.verdict.value, one.value) for one in lake.scores()} == EXPECTED
