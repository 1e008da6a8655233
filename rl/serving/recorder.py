"""Segments of conversations: what clients were sent and the exact tokens behind it, as trajectories."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any

from rl.engines.base import Generation
from warehouse.records import ANSWER, RERENDERED, Call, Outcome, StopReason, Trajectory, Turn

FIRST = "first"
"""Reason of a conversation's first segment."""


@dataclass(slots=True, eq=False)
class Segment:
    """An append-only context.

    `histories` holds, after each turn, what the client had sent and received, in the client's form, to recognize continuations. `rendered`
    counts the tokens of replies that stand in the context as a client repeated them, in a rewritten history, instead of as sampled.
    """

    id: str
    conversation: str
    task_key: str
    reason: str
    prompt_ids: tuple[int, ...]
    seed: int
    kind: str
    busy: bool = True
    histories: list[Any] = field(default_factory=list)
    rendered: int = 0
    ids: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    error: str | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    used: float = field(default_factory=time.monotonic)
    unsaved: bool = False
    """It has grown since `Recorder.changed` returned it."""

    def append(self, observation_ids: Sequence[int], text: str) -> None:
        self.turns[-1] = replace(self.turns[-1], observation_ids=tuple(observation_ids), observation=text)
        self.ids.extend(observation_ids)
        self.busy = True

    def record(self, generation: Generation, text: str, calls: Sequence[tuple[str, str]], history: Any, latency: float) -> None:
        """Append an action; `calls` are its tools and arguments, including an answer."""
        versions = generation.policy_versions
        first = calls[0] if calls else (None, None)
        self.ids.extend(generation.token_ids)
        self.turns.append(
            Turn(
                index=len(self.turns),
                action_ids=generation.token_ids,
                action_logprobs=generation.logprobs,
                action=text,
                tool=first[0],
                arguments=first[1],
                observation_ids=(),
                observation="",
                reward=None,
                tool_outcome=None,
                latency=latency,
                policy_version=generation.policy_version,
                policy_versions=versions if len(set(versions)) > 1 else (),
                calls=tuple(Call(tool, arguments, None) for tool, arguments in calls),
            )
        )
        self.histories.append(history)
        self.error = None
        self.seconds = (datetime.now(UTC) - self.started).total_seconds()
        self._rest()

    def fail(self, error: str) -> None:
        """Undo the request in flight after an engine failure; the trajectory is invalid until a repeated request succeeds."""
        self.withdraw()
        self.error = error
        self._rest()

    def withdraw(self) -> None:
        """Remove what was appended for the request in flight; a repeated request extends the segment again."""
        if self.turns:
            del self.ids[len(self.ids) - len(self.turns[-1].observation_ids) :]
            self.turns[-1] = replace(self.turns[-1], observation_ids=(), observation="")
        self.busy = False

    def _rest(self) -> None:
        self.busy, self.unsaved, self.used = False, True, time.monotonic()


@dataclass(frozen=True, slots=True)
class Place:
    """A segment after one of its turns, where a request continues it."""

    segment: Segment
    turn: int

    @property
    def history(self) -> Any:
        return self.segment.histories[self.turn]

    @property
    def reply_ids(self) -> tuple[int, ...]:
        return self.segment.turns[self.turn].action_ids

    @property
    def ids(self) -> tuple[int, ...]:
        """The context up to there, as sampled."""
        before = (part for turn in self.segment.turns[: self.turn] for part in (turn.action_ids, turn.observation_ids))
        return (*self.segment.prompt_ids, *chain.from_iterable(before), *self.reply_ids)

    @property
    def is_end(self) -> bool:
        """Whether nothing has been appended since, nor is a request in flight."""
        return self.turn == len(self.segment.turns) - 1 and not self.segment.busy


class Recorder:
    """Open segments of all conversations; `policy` and `stage` are recorded in their trajectories."""

    def __init__(self, policy: str, stage: str, run: str) -> None:
        self._policy, self._stage, self._run = policy, stage, run
        self._segments: dict[str, list[Segment]] = {}
        self._count = 0
        self._forgotten: set[str] = set()

    def find(self, conversation: str | None, extends: Callable[[Any], int | None]) -> Place | None:
        """The longest history that a request extends, in one conversation or in all; of equal ones, the end of a segment.

        `extends` returns how much of the request a history covers, or None.
        """
        found = []
        for segment in self._within(conversation):
            for turn in reversed(range(len(segment.histories))):
                if (length := extends(segment.histories[turn])) is not None:
                    place = Place(segment, turn)
                    found.append((length, place.is_end, place))
                    break
        return max(found, key=lambda each: each[:2])[2] if found else None

    def extend(self, place: Place, observation_ids: Sequence[int], text: str, seed: int) -> Segment:
        """Append to a segment; if it has gone on from there, or a request is in flight, begin another with the same ids: a branch."""
        segment = place.segment
        if place.is_end:
            segment.append(observation_ids, text)
            return segment
        return self._open(segment.conversation, segment.task_key, "branch", (*place.ids, *observation_ids), seed, segment.kind)

    def begin(self, conversation: str | None, task_key: str | None, prompt_ids: Sequence[int], seed: int, kind: str) -> Segment:
        """Begin a segment, recording why the request extends no other."""
        reason = _segment_reason(self._within(conversation) if conversation is not None else ())
        return self._open(conversation, task_key, reason, tuple(prompt_ids), seed, kind)

    def _open(
        self, conversation: str | None, task_key: str | None, reason: str, prompt_ids: tuple[int, ...], seed: int, kind: str
    ) -> Segment:
        """A new segment, or the one whose first request failed and is repeated."""
        empty = [each for each in self._within(conversation) if each.error is not None and not each.turns and not each.busy]
        if (repeated := next((each for each in empty if each.prompt_ids == prompt_ids), None)) is not None:
            repeated.busy = True
            return repeated
        if conversation is None:
            conversation = f"{self._run}-{self._count:06d}"
            self._count += 1
        others = self._segments.setdefault(conversation, [])
        taken = self._forgotten | {segment.id for segment in self._within(None)}
        names = (f"{conversation}.{number}" if number else conversation for number in count(len(others)))
        name = next(name for name in names if name not in taken)  # a client may name a conversation like another's segment
        segment = Segment(name, conversation, task_key or conversation, reason, prompt_ids, seed, kind, ids=list(prompt_ids))
        others.append(segment)
        return segment

    def _within(self, conversation: str | None) -> list[Segment]:
        """Segments of one conversation or of all."""
        names = self._segments if conversation is None else [conversation]
        return [segment for name in names for segment in self._segments.get(name, ())]

    def withdraw(self, segment: Segment) -> None:
        """Undo the request in flight, which the client gave up."""
        segment.withdraw()
        others = self._segments.get(segment.conversation, [])
        if not segment.turns and segment in others:
            others.remove(segment)

    def withdraw_all(self) -> None:
        """Undo all requests in flight, whose clients are gone; engines may take a while to notice."""
        for segment in self._within(None):
            if segment.busy:
                self.withdraw(segment)

    def changed(self) -> list[Trajectory]:
        """Trajectories that have grown since the last call; they stay open. Those with a request in flight come later."""
        grown = [segment for segment in self._within(None) if segment.unsaved and not segment.busy]
        for segment in grown:
            segment.unsaved = False
        return [self._trajectory(segment) for segment in grown]

    def forget(self, seconds: float) -> list[str]:
        """Close conversations without a request for `seconds` and return their trajectories' ids, which are not used again."""
        before = time.monotonic() - seconds
        idle = [name for name, all_ in self._segments.items() if not any(each.busy or each.unsaved or each.used > before for each in all_)]
        ids = [segment.id for name in idle for segment in self._segments.pop(name)]
        self._forgotten.update(ids)
        return ids

    def turns(self, conversation: str) -> list[Turn]:
        """Turns of a conversation's last segment."""
        segments = self._segments.get(conversation)
        return segments[-1].turns if segments else []

    @property
    def recorded(self) -> int:
        """Number of replies, those in flight included."""
        return sum(len(segment.turns) + segment.busy for segment in self._within(None))

    @property
    def latest(self) -> Turn | None:
        """The last reply."""
        segments = [segment for segment in self._within(None) if segment.turns]
        return max(segments, key=lambda segment: segment.used).turns[-1] if segments else None

    def take(self, conversation: str | None = None) -> list[Trajectory]:
        """Remove and return the trajectories of one conversation, or of all; conversations with a request in flight stay."""
        names = list(self._segments) if conversation is None else [conversation]
        ready = [name for name in names if not any(segment.busy for segment in self._segments.get(name, ()))]
        return [self._trajectory(segment) for name in ready for segment in self._segments.pop(name, ())]

    def _trajectory(self, segment: Segment) -> Trajectory:
        return Trajectory(
            id=segment.id,
            task_key=segment.task_key,
            policy=self._policy,
            stage=self._stage,
            horizon=len(segment.turns),
            prompt_ids=segment.prompt_ids,
            turns=tuple(segment.turns),
            stop_reason=_stop_reason(segment),
            outcome=Outcome.INVALID if segment.error is not None else None,
            reward=None,
            seed=segment.seed,
            started=segment.started,
            seconds=segment.seconds,
            error=segment.error,
            provenance={
                "endpoint": segment.kind,
                "conversation": segment.conversation,
                "segment": segment.reason,
                **({RERENDERED: segment.rendered} if segment.rendered else {}),
            },
        )


def _stop_reason(segment: Segment) -> StopReason:
    if segment.error is not None:
        return StopReason.FAULT
    return StopReason.ANSWERED if segment.turns and segment.turns[-1].tool == ANSWER else StopReason.LEFT


def _segment_reason(others: Sequence[Segment]) -> str:
    if not others:
        return FIRST
    return "at_once" if any(segment.busy for segment in others) else "does_not_extend"
