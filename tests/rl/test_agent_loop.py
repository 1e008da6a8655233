"""The loop over a real dialect and a real environment; the actions are written beforehand instead of sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rl.agent_loop import AgentLoop, RolloutRequest
from rl.config import Limits
from rl.dialect import Action
from rl.dialects.tags import TagDialect
from rl.engine import EngineFault, Generation, GenerationStop, Sampling
from rl.environments.search import SearchEnvironment
from rl.search import SearchIndex
from tests.rl.conftest import DOCUMENTS, TASKS
from warehouse.records import Outcome, StopReason, Trajectory

LIMITS = Limits(max_action_tokens=16, max_observation_tokens=48, max_context_tokens=200)


class WrittenActions:
    """Gives written actions one after the other, and keeps what it was asked."""

    def __init__(self, actions: Sequence[tuple[int, ...]]) -> None:
        self._actions = iter(actions)
        self.contexts: list[list[int]] = []
        self.samplings: list[Sampling] = []

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.contexts.append(list(prompt_ids))
        self.samplings.append(sampling)
        ids = next(self._actions, None)
        if ids is None:
            raise EngineFault("nothing more is written")
        stop = GenerationStop.STOP if len(ids) <= sampling.max_tokens else GenerationStop.LENGTH
        ids = ids[: sampling.max_tokens]
        return Generation(ids, (-0.5,) * len(ids), stop, (7,) * len(ids))


@pytest.fixture(scope="module")
def dialect(tiny_policy: Path) -> TagDialect:
    return TagDialect(AutoTokenizer.from_pretrained(tiny_policy))


def run(
    dialect: TagDialect, actions: Sequence[Action | tuple[int, ...]], horizon: int = 4, limits: Limits = LIMITS
) -> tuple[Trajectory, WrittenActions]:
    engine = WrittenActions([dialect.action_ids(action) if isinstance(action, Action) else action for action in actions])
    request = RolloutRequest("t", TASKS[0], "policy", horizon, seed=3, step=5, sample=2)
    environment = SearchEnvironment(SearchIndex(DOCUMENTS))
    return asyncio.run(AgentLoop(engine, dialect, limits).run(request, environment)), engine


def test_tokens_are_only_appended(dialect: TagDialect) -> None:
    actions = [Action("search", "Amber Stone"), Action("search", "Blue River"), Action("answer", "Green Lake")]
    trajectory, engine = run(dialect, actions)
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.answer == "Green Lake"
    assert (trajectory.outcome, trajectory.reward, trajectory.step, trajectory.sample) == (None, None, 5, 2)
    context = list(trajectory.prompt_ids)
    for turn, seen in zip(trajectory.turns, engine.contexts, strict=True):
        assert seen == context
        context += [*turn.action_ids, *turn.observation_ids]
    assert [turn.tool for turn in trajectory.turns] == ["search", "search", "answer"]
    assert trajectory.turns[0].observation == f"<information> {DOCUMENTS[0].text}</information>"
    assert trajectory.turns[2].observation_ids == ()
    assert len({sampling.seed for sampling in engine.samplings}) == 3


def test_the_last_turn_of_the_horizon_may_answer(dialect: TagDialect) -> None:
    search, answer = Action("search", "Amber Stone"), Action("answer", "Green Lake")
    assert run(dialect, [search, answer], horizon=2)[0].stop_reason is StopReason.ANSWERED
    trajectory, _ = run(dialect, [search, search], horizon=2)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.turns[1].tool_outcome == "ok"
    assert trajectory.turns[1].observation_ids == ()
    assert trajectory.answer is None


def test_what_cannot_be_read_is_corrected_and_counts_as_a_turn(dialect: TagDialect) -> None:
    trajectory, _ = run(dialect, [(20, 21, 22), Action("answer", "Green Lake")])
    first = trajectory.turns[0]
    assert (first.tool, first.arguments, first.tool_outcome) == (None, None, "unparsable")
    assert first.observation.startswith("<information> Error: ")
    assert trajectory.answer == "Green Lake"


def test_a_hostile_document_cannot_answer(dialect: TagDialect) -> None:
    trajectory, engine = run(dialect, [Action("search", "Quiet Harbor"), Action("answer", "Blue River")])
    opening = dialect.action_ids(Action("answer", "x"))[0]
    assert opening not in engine.contexts[1]
    assert trajectory.answer == "Blue River"


def test_the_context_is_never_longer_than_its_limit(dialect: TagDialect) -> None:
    actions = [Action("search", "Amber Stone")] * 9
    for longest in range(8, 90):
        trajectory, engine = run(dialect, actions, horizon=9, limits=LIMITS.model_copy(update={"max_context_tokens": longest}))
        assert trajectory.stop_reason is StopReason.MAX_CONTEXT_TOKENS
        used = len(trajectory.prompt_ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in trajectory.turns)
        assert used <= longest or not trajectory.turns
        assert all(sampling.max_tokens > 0 for sampling in engine.samplings)


def test_a_fault_of_the_engine_is_invalid_and_keeps_what_there_was(dialect: TagDialect) -> None:
    trajectory, _ = run(dialect, [Action("search", "Amber Stone")])
    assert trajectory.stop_reason is StopReason.FAULT
    assert trajectory.outcome is Outcome.INVALID
    assert trajectory.reward is None
    assert trajectory.error == "nothing more is written"
    assert len(trajectory.turns) == 1
