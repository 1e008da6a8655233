"""Difficulty by a model: questions that are answered directly, from what the model knows and without a tool, are dropped.

WebShaper's validation rejects what a model names without tools (arXiv 2507.15061). Here each question is asked so several
times, of the teacher or of the policy itself. An accepted answer that stands anywhere in a reply counts: the check errs towards dropping.
A reply that was cut counts where it names one, and says nothing of the question otherwise, as an attempt without a reply; a question of
which all attempts say nothing is dropped too. How many attempts were read and how many answered is kept with each question that stays; one
that goes is a `Failure` with what was said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from pydantic import PositiveInt, model_validator

from eval.graders.answers import sub_match
from rl.engines.base import EngineFault, Sampling
from rl.engines.config import Temperature
from rl.renderers.base import ParseError, RolloutDialect
from synth.generation import AsyncRunner, GenerationPool
from synth.teachers.teacher import Fault, Teacher
from warehouse.digests import seed_from
from warehouse.records import ANSWER, Failure, Task, user
from warehouse.replies import split_reasoning
from warehouse.settings import Section

STAGE = "synth"
DIRECT = "answered_directly"
"""The kind of a question that is dropped because it is answered."""
UNREAD = "not_attempted"
"""The kind of a question that is dropped because no attempt at it could be read."""
KEY = "direct_attempts"
"""Where the account of the attempts stands in a question's provenance."""
_PROMPT = "{question}\nAnswer from what you know, in a few words and without an explanation; if you do not know, say so."


class DirectAttemptsConfig(Section):
    """Attempts without tools at training questions; questions answered that way are dropped."""

    by: Literal["teacher", "policy"] = "teacher"
    """Who attempts: the teacher, or the current champion (at first, the model of `policy.path`)."""
    attempts: PositiveInt = 3
    """Attempts per question."""
    answered: PositiveInt = 1
    """Correct attempts after which a question is dropped."""
    temperature: Temperature = 0.7
    """Sampling temperature."""
    max_tokens: PositiveInt = 128
    """Maximum tokens per attempt."""

    @model_validator(mode="after")
    def _check(self) -> DirectAttemptsConfig:
        if self.answered > self.attempts:
            raise ValueError(f"answered is {self.answered}, and only {self.attempts} attempts are made: no question would be dropped")
        return self


class DirectModel(Protocol):
    """Attempts questions without tools."""

    @property
    def name(self) -> str:
        """Whose attempts they are."""
        ...

    def attempt(self, tasks: Sequence[Task], number: int) -> list[str | Failure]:
        """What the attempt of that number says to each question, empty where it gives no answer; or why it brought no whole reply."""
        ...


@dataclass(frozen=True, slots=True)
class TeacherAttempts:
    """A teacher's attempts."""

    teacher: Teacher
    config: DirectAttemptsConfig
    seed: int

    @property
    def name(self) -> str:
        """The teacher's."""
        return self.teacher.name

    def attempt(self, tasks: Sequence[Task], number: int) -> list[str | Failure]:
        """One request a question."""
        config = self.config
        requests = [
            user(
                _PROMPT.format(question=task.question),
                max_tokens=config.max_tokens,
                temperature=config.temperature,
                seed=seed_from("direct", self.seed, task.key, number),
            )
            for task in tasks
        ]
        return [reply if isinstance(reply, Failure) else reply.text for reply in self.teacher.complete(requests)]


@dataclass(frozen=True, slots=True)
class PolicyAttempts:
    """A policy's attempts on its own engines, which `loop` runs; the prompt offers no tool, and an action other than an answer is none."""

    name: str
    pool: GenerationPool
    loop: AsyncRunner
    dialect: RolloutDialect
    config: DirectAttemptsConfig
    seed: int
    concurrency: int = 64

    def attempt(self, tasks: Sequence[Task], number: int) -> list[str | Failure]:
        """One continuation a question."""
        return self.loop.wait(self._all(tasks, number))

    async def _all(self, tasks: Sequence[Task], number: int) -> list[str | Failure]:
        places = asyncio.Semaphore(self.concurrency)
        return list(await asyncio.gather(*(self._one(task, number, places) for task in tasks)))

    async def _one(self, task: Task, number: int, places: asyncio.Semaphore) -> str | Failure:
        seed = seed_from("direct", self.seed, task.key, number)
        sampling = Sampling(self.config.temperature, self.config.max_tokens, self.dialect.stop_token_ids, seed=seed)
        request = f"direct/{task.key}/{number}"
        async with places:
            try:
                generation = await self.pool.generate(request, self.dialect.prompt_ids(task.question), sampling)
            except EngineFault as fault:
                return Failure(STAGE, "direct_engine_fault", str(fault), {"task": task.key, "attempt": number})
            finally:
                self.pool.release(request)
        action = self.dialect.parse(generation.token_ids)
        answers = [] if isinstance(action, ParseError) else [call.arguments for call in action.calls if call.tool == ANSWER]
        return answers[0] if answers else ""


@dataclass(slots=True)
class _Account:
    """The attempts at one question: what was said in those that were read, and how many of these answered."""

    task: Task
    said: list[str] = field(default_factory=list)
    answered: int = 0

    def take(self, reply: str, whole: bool) -> None:
        """Count a reply; one that is not `whole` might still have named the answer, so it counts only where it does."""
        answers = answers_directly(self.task, reply)
        if whole or answers:
            self.said.append(reply)
            self.answered += answers


def hard_enough(tasks: Sequence[Task], model: DirectModel, config: DirectAttemptsConfig) -> tuple[list[Task], list[Failure]]:
    """The questions that direct attempts do not answer, with an account of the attempts in their provenance; the others as failures.

    The failures have the attempts without a whole reply too. A question that is decided is not attempted again.
    """
    accounts, failures = [_Account(task) for task in tasks], list[Failure]()
    for number in range(config.attempts):
        undecided = [account for account in accounts if account.answered < config.answered]
        replies = model.attempt([account.task for account in undecided], number) if undecided else []
        for account, reply in zip(undecided, replies, strict=True):
            if isinstance(reply, Failure):
                failures.append(reply)
            account.take(_cut_text(reply) if isinstance(reply, Failure) else reply, whole=not isinstance(reply, Failure))
    kept = [account for account in accounts if account.said and account.answered < config.answered]
    dropped = [account for account in accounts if not account.said or account.answered >= config.answered]
    return [_marked(account, model.name) for account in kept], [*failures, *(_dropped(account, model.name) for account in dropped)]


def answers_directly(task: Task, reply: str) -> bool:
    """Whether a reply, less what was thought before it, names an accepted answer; all of them where the question asks for all."""
    said = split_reasoning(reply)[1]
    named = [sub_match(said, [answer]) for answer in task.answers]
    return bool(named) and (all(named) if task.provenance.get("set") is True else any(named))


def _cut_text(failure: Failure) -> str:
    """What a reply said before it was cut off; nothing where none came."""
    return str(failure.item["text"]) if failure.kind == Fault.CUT else ""


def _marked(account: _Account, name: str) -> Task:
    about = {"by": name, "attempts": len(account.said), "answered": account.answered}
    return replace(account.task, provenance={**account.task.provenance, KEY: about})


def _dropped(account: _Account, name: str) -> Failure:
    task, read = account.task, len(account.said)
    reason = f"{account.answered} of {read} attempts without tools answer it" if read else "no attempt without tools could be read"
    item = {"task": task.key, "question": task.question, "answers": task.answers, "by": name, "said": account.said}
    return Failure(STAGE, DIRECT if read else UNREAD, reason, item)
