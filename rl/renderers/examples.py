"""Encode training examples as token ids in the policy's dialect.

Examples are rendered as the agent loop renders a trajectory, with the same methods: prompt, then actions and replies. So a demonstration
has the same ids and loss mask as a rollout of the same actions. Sampled ids are used unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rl.renderers.base import Action, ActionTurn, ContentRefused, Dialect, NotExpressible, Result, Schema, Truncation
from warehouse.records import ANSWER, Example, Failure, Part, PartKind

IGNORED_LABEL = -100
"""Label of tokens outside the loss in PyTorch and transformers."""
UNCUT = Truncation(1_000_000)
_ACTS = (PartKind.THOUGHT, PartKind.CALL, PartKind.ANSWER)


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """Token ids, and for each whether it is trained on."""

    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]

    def labels(self) -> list[int]:
        """Token ids with `IGNORED_LABEL` for untrained tokens, not shifted."""
        return [token if trained else IGNORED_LABEL for token, trained in zip(self.token_ids, self.trained, strict=True)]


def encode_examples(examples: Iterable[Example], dialect: Dialect, cut: Truncation = UNCUT) -> tuple[list[EncodedExample], list[Failure]]:
    """Encode the examples that the dialect can express, in order; failures for the others."""
    encoded: list[EncodedExample] = []
    failures: list[Failure] = []
    for example in examples:
        try:
            encoded.append(encode_example(example, dialect, cut))
        except (NotExpressible, ContentRefused) as error:
            failures.append(Failure("train", "not_expressible", str(error), {"example": example.id, "kind": example.kind}))
    return encoded, failures


def encode_example(example: Example, dialect: Dialect, cut: Truncation = UNCUT) -> EncodedExample:
    """Encode one example; results are truncated as in rollouts. Raises NotExpressible."""
    writer = _Writer(dialect, cut)
    for kind, group in groupby(example.parts, key=_group_of):
        writer.write(kind, list(group))
    writer.end()
    return EncodedExample(tuple(writer.ids), tuple(writer.trained))


def _group_of(part: Part) -> PartKind:
    """Key to group neighboring parts: thoughts, calls and answers form one action, results one reply."""
    return PartKind.CALL if part.kind in _ACTS else part.kind


@dataclass(slots=True)
class _Writer:
    """Ids written so far, and the state that the next part needs."""

    dialect: Dialect
    cut: Truncation
    ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    tools: Sequence[Schema] = ()
    question: Part | None = None
    action: tuple[int, ...] | None = None
    calls: int = 0

    def write(self, kind: PartKind, parts: Sequence[Part]) -> None:
        """Write neighboring parts of one kind. A question is held until the next group, which may be shown with it."""
        seen = kind is PartKind.RESULT and self.question is not None
        self.end("\n".join(part.text for part in parts) if seen else "")
        if seen:
            return
        match kind:
            case PartKind.TOOLS:
                self.tools = json.loads(parts[-1].text)
            case PartKind.QUESTION:
                self._questions(parts)
            case PartKind.CALL:
                self._actions(parts)
            case PartKind.RESULT:
                self._reply(parts)
            case _:
                self._texts(kind, parts)

    def end(self, seen: str = "") -> None:
        """Write the pending question, if any, with `seen` shown in addition to it."""
        if self.question is not None:
            self._add(self.dialect.prompt_ids(self.question.text, seen, self.tools, self.cut), self.question.learnt)
            self.question = None

    def _questions(self, parts: Sequence[Part]) -> None:
        if len(parts) > 1 or self.ids:
            raise NotExpressible("an example must begin with its only question")
        (self.question,) = parts

    def _actions(self, parts: Sequence[Part]) -> None:
        for own in _turns(parts):
            if self.action is not None:  # an action without a result before the next one does not occur in rollouts
                raise NotExpressible("two actions have no result between them")
            thought = "\n".join(part.text for part in own if part.kind is PartKind.THOUGHT) or None
            calls = tuple(Action(part.tool or ANSWER, part.text) for part in own if part.kind is not PartKind.THOUGHT)
            self.action = self.dialect.action_ids(ActionTurn(calls, thought), self.tools)
            self.calls = len(calls)
            self._add(self.action, any(part.learnt for part in own))

    def _reply(self, parts: Sequence[Part]) -> None:
        if self.action is None:
            raise NotExpressible("a result has no action before it")
        if len(parts) != max(1, self.calls):
            raise NotExpressible(f"{len(parts)} results for {self.calls} calls")
        results = [Result(part.text) for part in parts]
        self._add(self.dialect.reply_ids(self.action, results, self.cut), any(part.learnt for part in parts))
        self.action = None

    def _texts(self, kind: PartKind, parts: Sequence[Part]) -> None:
        for part in parts:
            if kind is PartKind.TOKENS:
                self._add(part.ids, part.learnt)
            else:
                self._add(self.dialect.text_ids(part.text, is_document=kind is PartKind.DOCUMENT), part.learnt)

    def _add(self, ids: Sequence[int], learnt: bool) -> None:
        self.ids += ids
        self.trained += [learnt] * len(ids)


def _turns(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Split parts into actions; a thought after a call starts the next one."""
    own: list[Part] = []
    for part in parts:
        if part.kind is PartKind.THOUGHT and any(before.kind is not PartKind.THOUGHT for before in own):
            yield own
            own = []
        own.append(part)
    if own:
        yield own
