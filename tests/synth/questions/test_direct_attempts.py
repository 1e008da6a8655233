"""Questions that a model answers without tools: attempted by a teacher over HTTP or by a policy, dropped, and told why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from rl.renderers.base import Action
from rl.renderers.tags import TagDialect
from synth.generation import PolicySampler
from synth.questions.difficulty import (
    DIRECT,
    UNREAD,
    DirectAttemptsConfig,
    PolicyAttempts,
    TeacherAttempts,
    answers_directly,
    hard_enough,
)
from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import open_teacher
from synth.teachers.source import BackgroundLoop
from synth.teachers.teacher import Fault
from tests.rl.rollouts.test_agent_loop import written
from tests.synth.scripted import ScriptedPolicy
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Failure, Task

EASY = Task("easy", "search", "In which town is the big tower?", ("Green Lake",))
HARD = Task("hard", "search", "Who kept the tower in 1950?", ("Amber Stone",), provenance={"path": ["Tower", "Amber Stone"]})


def attempted(says: Any, config: DirectAttemptsConfig, *tasks: Task, script: Sequence[str] = (), seed: int = 0) -> Any:
    with MisbehavingServer(list(script), says) as server:
        asked = TeacherConfig(kind="openai", model="m", base_url=server.url, attempts=1, first_pause_seconds=0.01)
        with open_teacher(asked) as teacher:
            kept, failures = hard_enough(tasks, TeacherAttempts(teacher, config, seed), config)
        return kept, failures, server.bodies


def knows(body: dict[str, Any]) -> str:
    return "I think it is **Green Lake**." if "big tower" in body["messages"][-1]["content"] else "I do not know."


def test_an_answered_question_is_dropped_and_another_keeps_the_count_of_attempts() -> None:
    kept, failures, bodies = attempted(knows, DirectAttemptsConfig(attempts=3), EASY, HARD)
    (task,), (failure,) = kept, failures
    assert task.provenance == {"path": ["Tower", "Amber Stone"], "direct_attempts": {"by": "openai:m", "attempts": 3, "answered": 0}}
    assert task.digest == HARD.digest
    assert (failure.stage, failure.kind, failure.reason) == ("synth", DIRECT, "1 of 1 attempts without tools answer it")
    assert failure.item["task"] == "easy" and failure.item["said"] == ["I think it is **Green Lake**."]
    assert len(bodies) == 4, "a question that is decided is not attempted again"
    assert len({body["seed"] for body in bodies}) == 4 and {body["max_tokens"] for body in bodies} == {128}
    assert not any("tools" in body for body in bodies)


@pytest.mark.parametrize(("fault", "kind"), [("cut", Fault.CUT), ("empty", Fault.EMPTY), ("500", Fault.SERVER_ERROR)])
def test_an_attempt_without_a_reply_says_nothing_of_the_question(fault: str, kind: str) -> None:
    kept, (failure,), _ = attempted(knows, DirectAttemptsConfig(attempts=2), HARD, script=[fault])
    assert kept[0].provenance["direct_attempts"] == {"by": "openai:m", "attempts": 1, "answered": 0}
    assert failure.kind == kind
    kept, failures, _ = attempted(knows, DirectAttemptsConfig(attempts=2), HARD, script=[fault] * 2)
    assert kept == [] and [failure.kind for failure in failures] == [kind, kind, UNREAD]
    assert failures[-1].reason == "no attempt without tools could be read" and failures[-1].item["task"] == "hard"


@pytest.mark.parametrize(
    ("task", "reply", "answered"),
    [
        (EASY, "green lake", True),
        (EASY, "<think> It may be Green Lake, or not. </think> Red Hill", False),
        (Task("k", "search", "q", ("1990",)), "1990s", False),
        (Task("k", "search", "q", ("A B", "C D"), provenance={"set": True}), "C D", False),
        (Task("k", "search", "q", ("A B", "C D"), provenance={"set": True}), "C D and A B", True),
        (Task("k", "search", "q", (), provenance={"set": True}), "anything", False),
    ],
)
def test_an_accepted_answer_anywhere_in_a_reply_counts(task: Task, reply: str, answered: bool) -> None:
    assert answers_directly(task, reply) is answered


@pytest.mark.slow
def test_a_policy_attempts_without_tools_and_only_an_answer_counts(tokenizer: PreTrainedTokenizerBase) -> None:
    dialect, config = TagDialect(tokenizer), DirectAttemptsConfig(by="policy", attempts=3)

    def says(number: int, prompt: tuple[int, ...]) -> Sequence[int] | None:
        """The answer to the easy question, a search for the hard one; no engine is left for the third attempt."""
        easy = prompt == dialect.prompt_ids(EASY.question)
        action = Action("answer", "Green Lake") if easy else Action("search", "Amber Stone")
        return None if number == 2 else written(dialect, action, "so")

    policy = ScriptedPolicy(says)
    with BackgroundLoop("test") as loop:
        kept, failures = hard_enough([EASY, HARD], PolicyAttempts("t1-rl", PolicySampler(policy, loop), dialect, config, 0), config)
    assert [task.key for task in kept] == ["hard"]
    assert kept[0].provenance["direct_attempts"] == {"by": "t1-rl", "attempts": 2, "answered": 0}
    assert sorted(failure.kind for failure in failures) == [DIRECT, "direct_engine_fault"]
    assert len(policy.released) == len(policy.prompts) == 4
    assert set(policy.prompts) == {dialect.prompt_ids(task.question) for task in (EASY, HARD)}
    assert all(isinstance(failure, Failure) for failure in failures)
