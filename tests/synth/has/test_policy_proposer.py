"""Alternatives from a policy's own engine: what is no action is kept as a failure, a fault costs its own sample alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerBase

from rl.engines.base import Sampling
from rl.renderers.base import Action
from rl.renderers.tags import TagDialect
from synth.generation import PolicySampler
from synth.has.decisions import Step, steps_of
from synth.has.proposers import PolicyProposer
from synth.teachers.source import BackgroundLoop
from tests.rl.rollouts.test_agent_loop import written
from tests.synth.runs import run_of, turn_of
from tests.synth.scripted import ScriptedPolicy
from warehouse.records import Task, Trajectory, Turn

TASK = Task("k", "search", "Where is Amber Stone?", ("Green Lake",))


def trajectory(dialect: TagDialect) -> Trajectory:
    def turn(index: int, tool: str, argument: str, seen: str = "") -> Turn:
        ids = written(dialect, Action(tool, argument))
        return turn_of(index, tool, argument, seen, action_ids=ids, observation_ids=dialect.observation_ids(seen) if seen else ())

    turns = (turn(0, "search", "Amber Stone", "text"), turn(1, "answer", "Green Lake"))
    return run_of("t", TASK.key, turns, prompt_ids=dialect.prompt_ids(TASK.question))


@pytest.mark.slow
def test_samples_are_read_from_the_context_as_it_was(tokenizer: PreTrainedTokenizerBase) -> None:
    dialect = TagDialect(tokenizer)

    def says(number: int, prompt: tuple[int, ...]) -> Sequence[int] | None:
        """Actions after the question alone, nonsense after more; the third request fails."""
        first = prompt == dialect.prompt_ids(TASK.question)
        return None if number == 2 else written(dialect, Action("search", f"number {number}"), "so") if first else (5, 6)

    run, policy = trajectory(dialect), ScriptedPolicy(says)
    foreign = replace(run, id="f", prompt_ids=())
    steps: list[Step] = [step for one in (run, foreign) for step in steps_of(one, TASK.question)]
    with BackgroundLoop("test") as loop:
        proposer = PolicyProposer(PolicySampler(policy, loop), dialect, Sampling(max_tokens=8))
        failures = proposer.prepare(steps, 3)
    assert (
        sorted(failure.kind for failure in failures)
        == ["proposal_engine_fault"] * 2 + ["proposal_no_token_ids"] + ["proposal_unreadable"] * 2
    )
    second = (*run.prompt_ids, *run.turns[0].action_ids, *run.turns[0].observation_ids)
    assert sorted(set(policy.prompts)) == sorted({run.prompt_ids, second})
    assert len(policy.released) == len(policy.prompts) == 6
    options = proposer.propose(steps[0], 2, {"search number 0"}, random.Random(0))
    assert [option.text for option in options] == ["so, search number 1"]
    assert proposer.propose(steps[1], 2, (), random.Random(0)) == proposer.propose(steps[2], 2, (), random.Random(0)) == []
