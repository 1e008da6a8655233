"""Requests of outside agents as trajectories.

A conversation is one or more segments, each an append-only context. A request that continues what was sent and sampled so far extends a
segment with the ids as they were. Any other request (an agent that rewrites, drops or summarizes its past, or a concurrent one) starts a
new segment, with the reason; nothing is re-encoded silently. Each segment becomes a trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from rl.engines.base import Generation
from warehouse.records import ANSWER, Call, Outcome, StopReason, Trajectory, Turn


@dataclass(slots=True, eq=False)
class Segment:
    """An append-only context. `history` is what the client sent and received, in its own form, to recognize a continuation."""

    id: str
    conversation: str
    task_key: str
    reason: str
    prompt_ids: tuple[int, ...]
    seed: int
    kind: str
    history: Any = None
    busy: bool = True
    ids: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    error: str | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0

    def append(self, observation_ids: Sequence[int], text: str) -> None:
        """Append what came after the last action."""
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
        self.history, self.busy = history, False
        self.seconds = (datetime.now(UTC) - self.started).total_seconds()

    def fail(self, error: str) -> None:
        """The engine failed: the trajectory is invalid and cannot be extended."""
        self.error, self.history, self.busy = error, None, False


class Recorder:
    """Open segments of all conversations; `policy` and `stage` go into their trajectories."""

    def __init__(self, policy: str, stage: str, run: str) -> None:
        self._policy, self._stage, self._run = policy, stage, run
        self._segments: dict[str, list[Segment]] = {}
        self._count = 0

    def find(self, conversation: str | None, extends: Callable[[Any], int | None]) -> Segment | None:
        """The longest segment that a request extends, of one conversation or of all.

        `extends` returns how much of the request a segment's history covers, or None.
        """
        names = self._segments if conversation is None else [conversation]
        segments = [segment for name in names for segment in self._segments.get(name, ()) if not segment.busy]
        found = [(length, one) for one in segments if one.history is not None and (length := extends(one.history)) is not None]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def begin(self, conversation: str | None, task_key: str | None, prompt_ids: Sequence[int], seed: int, kind: str) -> Segment:
        """A new segment, with the reason why the request extends none."""
        if conversation is None:
            conversation = f"{self._run}-{self._count:06d}"
            self._count += 1
        others = self._segments.setdefault(conversation, [])
        taken = {segment.id for segments in self._segments.values() for segment in segments}
        names = (f"{conversation}.{number}" if number else conversation for number in count(len(others)))
        name = next(name for name in names if name not in taken)  # a client may call a conversation as another's segment is called
        reason = _segment_reason(others)
        segment = Segment(name, conversation, task_key or conversation, reason, tuple(prompt_ids), seed, kind, ids=list(prompt_ids))
        others.append(segment)
        return segment

    def turns(self, conversation: str) -> list[Turn]:
        """Turns of a conversation's last segment."""
        segments = self._segments.get(conversation)
        return segments[-1].turns if segments else []

    def take(self, conversation: str | None = None) -> list[Trajectory]:
        """Remove and return trajectories of one conversation, or of all; those with a request in flight stay."""
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
            provenance={"endpoint": segment.kind, "conversation": segment.conversation, "segment": segment.reason},
        )


def _stop_reason(segment: Segment) -> StopReason:
    if segment.error is not None:
        return StopReason.FAULT
    return StopReason.ANSWERED if segment.turns and segment.turns[-1].tool == ANSWER else StopReason.LEFT


def _segment_reason(others: Sequence[Segment]) -> str:
    if not others:
        return "first"
    return "at_once" if any(segment.busy for segment in others) else "does_not_extend"
