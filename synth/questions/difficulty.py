"""Task difficulty: by formula, by a policy's pass rate, and by direct attempts without tools.

Pass rates count valid trajectories only; without any they are unknown, not zero. The selection of the deepest tasks follows BrowseComp (Wei
et al. 2025, arXiv 2504.12516): short answers that are easy to check and hard to find.

Direct attempts follow WebShaper's validation (arXiv 2507.15061): questions that the teacher or the policy answers without tools are
dropped. An accepted answer anywhere in a reply counts, so the check errs towards dropping; a truncated reply counts only if it contains
one. Questions without any readable attempt are dropped too. Provenance records the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from pydantic import PositiveInt, model_validator

from eval.graders.answers import sub_match
from rl.engines.base import EngineFault, Generation, Sampling
from rl.engines.config import Temperature
from rl.renderers.base import ParseError, RolloutDialect
from synth.formulas.triples import is_constant, unknowns
from synth.generation import PolicySampler
from synth.teachers.teacher import Fault, Teacher
from warehouse.digests import seed_from
from warehouse.lake import Lake
from warehouse.records import ANSWER, Failure, Task, Triple, user
from warehouse.replies import split_reasoning
from warehouse.settings import Section


@dataclass(frozen=True, slots=True)
class PassRate:
    judged: int = 0
    successes: int = 0

    @property
    def rate(self) -> float | None:
        """Share of successes; None if nothing was judged."""
        return self.successes / self.judged if self.judged else None


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Difficulty measures of a task.

    Attributes:
        hops: documents to read.
        layers: longest path from the target to a leaf of the formula.
        constraints: constants of the formula.
        branching: maximum projections meeting in one unknown, excluding the one towards the target; 1 for a chain.
        measured: pass rate of one policy or all.
    """

    hops: int
    layers: int
    constraints: int
    branching: int
    measured: PassRate = PassRate()


def branching(formula: Sequence[Triple]) -> int:
    """Maximum branching of a formula's tree; 0 without a formula."""
    touching = Counter(node for triple in formula for node in {triple[0], triple[2]} if not is_constant(node))
    toward_target = {node: int(node != "?") for node in unknowns(formula)}
    return max((touching[node] - toward_target[node] for node in touching), default=0)


def pass_rates(lake: Lake, policy: str | None = None, at: int | None = None) -> dict[str, PassRate]:
    """Pass rates by task key, for one policy (None: all), at snapshot `at` (None: latest). Tasks without a verdict are absent."""
    rows = lake.query(
        "SELECT task_key, sum(valid)::INT AS judged, sum(successes)::INT AS successes FROM pass_rate "
        "WHERE $policy IS NULL OR policy = $policy GROUP BY task_key ORDER BY task_key",
        {"policy": policy},
        at=at,
    )
    return {row["task_key"]: PassRate(row["judged"], row["successes"]) for row in rows.to_pylist()}


def by_difficulty(tasks: Iterable[Task], rates: dict[str, PassRate]) -> dict[str, Difficulty]:
    return {
        task.key: Difficulty(task.hops, task.layers, task.constraints, branching(task.formula), rates.get(task.key, PassRate()))
        for task in tasks
    }


def deepest(tasks: Iterable[Task], number: int | None = None) -> list[Task]:
    """The `number` deepest tasks (None: all) by hops, layers and constraints; single-answer tasks proven not to be easy only."""
    hard = [task for task in tasks if len(task.answers) == 1 and task.proofs.get("easy") is False]
    hard.sort(key=lambda task: (-task.hops, -task.layers, -task.constraints, task.key))
    return hard[:number]


STAGE = "synth"
DIRECT = "answered_directly"
"""Failure kind: answered without tools."""
UNREAD = "not_attempted"
"""Failure kind: no readable attempt."""
KEY = "direct_attempts"
"""Provenance key for the counts of attempts."""
_PROMPT = "{question}\nAnswer from what you know, in a few words and without an explanation; if you do not know, say so."


class DirectAttemptsConfig(Section):
    """Attempts at training questions without tools; questions answered that way are dropped."""

    by: Literal["teacher", "policy"] = "teacher"
    """Who attempts: the teacher, or the current champion (initially the model of `policy.path`)."""
    attempts: PositiveInt = 3
    """Attempts per question."""
    answered: PositiveInt = 1
    """Number of correct attempts at which a question is dropped; at most `attempts`."""
    temperature: Temperature = 0.7
    """Sampling temperature."""
    max_tokens: PositiveInt = 128
    """Maximum tokens per attempt."""

    @model_validator(mode="after")
    def _check(self) -> DirectAttemptsConfig:
        if self.answered > self.attempts:
            raise ValueError(f"answered is {self.answered}, but only {self.attempts} attempts are made: no question would be dropped")
        return self


class DirectModel(Protocol):
    @property
    def name(self) -> str: ...

    def attempt(self, tasks: Sequence[Task], number: int) -> list[str | Failure]:
        """Reply to each question in attempt `number` ("" if no answer), or the failure if there is no complete one."""
        ...


@dataclass(frozen=True, slots=True)
class TeacherAttempts:
    teacher: Teacher
    config: DirectAttemptsConfig
    seed: int

    @property
    def name(self) -> str:
        return self.teacher.name

    def attempt(self, tasks: Sequence[Task], number: int) -> list[str | Failure]:
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
    """Attempts of a policy on its own engines; the prompt offers no tools, and only an answer action counts."""

    name: str
    sampler: PolicySampler
    dialect: RolloutDialect
    config: DirectAttemptsConfig
    seed: int

    def attempt(self, tasks: Sequence[Task], number: int) -> list[str | Failure]:
        sampling = Sampling(self.config.temperature, self.config.max_tokens, self.dialect.stop_token_ids)
        sampled = self.sampler.sample(
            [
                (
                    f"direct/{task.key}/{number}",
                    self.dialect.prompt_ids(task.question),
                    replace(sampling, seed=seed_from("direct", self.seed, task.key, number)),
                )
                for task in tasks
            ]
        )
        return [self._read(task, number, result) for task, result in zip(tasks, sampled, strict=True)]

    def _read(self, task: Task, number: int, result: Generation | EngineFault) -> str | Failure:
        if isinstance(result, EngineFault):
            return Failure(STAGE, "direct_engine_fault", str(result), {"task": task.key, "attempt": number})
        action = self.dialect.parse(result.token_ids)
        answers = [] if isinstance(action, ParseError) else [call.arguments for call in action.calls if call.tool == ANSWER]
        return answers[0] if answers else ""


@dataclass(slots=True)
class _Account:
    task: Task
    said: list[str] = field(default_factory=list)
    answered: int = 0


def hard_enough(tasks: Sequence[Task], model: DirectModel, config: DirectAttemptsConfig) -> tuple[list[Task], list[Failure]]:
    """Questions that direct attempts do not answer, with counts in their provenance; failures for dropped questions and incomplete replies.

    A question is not attempted again once it is dropped.
    """
    accounts, failures = [_Account(task) for task in tasks], list[Failure]()
    for number in range(config.attempts):
        undecided = [account for account in accounts if account.answered < config.answered]
        replies = model.attempt([account.task for account in undecided], number) if undecided else []
        for account, reply in zip(undecided, replies, strict=True):
            if isinstance(reply, Failure):  # a truncated reply counts only if it contains an answer
                failures.append(reply)
                said = str(reply.item["text"]) if reply.kind == Fault.CUT else ""
            else:
                said = reply
            answers = answers_directly(account.task, said)
            if answers or not isinstance(reply, Failure):
                account.said.append(said)
                account.answered += answers
    kept = [account for account in accounts if account.said and account.answered < config.answered]
    dropped = [account for account in accounts if not account.said or account.answered >= config.answered]
    marked = [
        replace(
            account.task,
            provenance={
                **account.task.provenance,
                KEY: {"by": model.name, "attempts": len(account.said), "answered": account.answered},
            },
        )
        for account in kept
    ]
    return marked, [*failures, *(_dropped(account, model.name) for account in dropped)]


def answers_directly(task: Task, reply: str) -> bool:
    """Whether a reply, without its reasoning, names an accepted answer (all of them for a set)."""
    said = split_reasoning(reply)[1]
    named = [sub_match(said, [answer]) for answer in task.answers]
    return bool(named) and (all(named) if task.provenance.get("set") is True else any(named))


def _dropped(account: _Account, name: str) -> Failure:
    task, read = account.task, len(account.said)
    reason = f"{account.answered} of {read} attempts without tools answer it" if read else "no attempt without tools could be read"
    item = {"task": task.key, "question": task.question, "answers": task.answers, "by": name, "said": account.said}
    return Failure(STAGE, DIRECT if read else UNREAD, reason, item)
