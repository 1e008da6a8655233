"""Training examples in token ids: the parts of an example as the dialect of a policy writes them.

The parts are walked as the agent loop walks a trajectory: the prompt, then action and reply in turn, each made by the method of the dialect
that the loop calls. So the ids of a demonstration are those that a rollout of the same actions would have, and so is what is learnt of
them. Ids that were sampled are taken as they are, and their text is not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rl.renderers.base import Action, ActionTurn, ContentRefused, Dialect, NotExpressible, Result, Schema, Truncation
from warehouse.records import ANSWER, Example, Failure, Part, PartKind

IGNORED_LABEL = -100
"""The label of a token that takes no part in the loss, as PyTorch and transformers have it."""
UNCUT = Truncation(1_000_000)
_ACTS = (PartKind.THOUGHT, PartKind.CALL, PartKind.ANSWER)


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """Token ids and, for each of them, whether it is trained on; both have the same length."""

    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]

    def labels(self) -> list[int]:
        """The ids, with `IGNORED_LABEL` in the place of those that are not trained on; not shifted."""
        return [token if trained else IGNORED_LABEL for token, trained in zip(self.token_ids, self.trained, strict=True)]


def encode_examples(examples: Iterable[Example], dialect: Dialect, cut: Truncation = UNCUT) -> tuple[list[EncodedExample], list[Failure]]:
    """Those of `examples` that the dialect can write, in their order, and why it cannot write the others."""
    encoded: list[EncodedExample] = []
    failures: list[Failure] = []
    for example in examples:
        try:
            encoded.append(encode_example(example, dialect, cut))
        except (NotExpressible, ContentRefused) as error:
            failures.append(Failure("train", "not_expressible", str(error), {"example": example.id, "kind": example.kind}))
    return encoded, failures


def encode_example(example: Example, dialect: Dialect, cut: Truncation = UNCUT) -> EncodedExample:
    """One example in the tokens of a dialect; results are cut as rollouts cut them.

    Raises:
        NotExpressible: the dialect has no way to write it; a sentence that says why.
    """
    writer = _Writer(dialect, cut)
    for kind, group in groupby(example.parts, key=_group_of):
        writer.write(kind, list(group))
    writer.end()
    return EncodedExample(tuple(writer.ids), tuple(writer.trained))


def _group_of(part: Part) -> PartKind:
    """The kind under which neighbouring parts belong together: thoughts and calls are one action, results its one reply."""
    return PartKind.CALL if part.kind in _ACTS else part.kind


@dataclass(slots=True)
class _Writer:
    """The ids so far, and what the next part needs of those before: the tools, a question that waits for what is seen, the last action."""

    dialect: Dialect
    cut: Truncation
    ids: list[int] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    tools: Sequence[Schema] = ()
    question: Part | None = None
    action: tuple[int, ...] | None = None
    calls: int = 0

    def write(self, kind: PartKind, parts: Sequence[Part]) -> None:
        """Write neighbouring parts of one kind; a question waits for the group behind it, which may be seen with it."""
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
        """Write the question that waits, if one does, with what is seen beside it."""
        if self.question is not None:
            self._add(self.dialect.prompt_ids(self.question.text, seen, self.tools, self.cut), self.question.learnt)
            self.question = None

    def _questions(self, parts: Sequence[Part]) -> None:
        if len(parts) > 1 or self.ids:
            raise NotExpressible("an example begins with its question, and has one alone")
        (self.question,) = parts

    def _actions(self, parts: Sequence[Part]) -> None:
        for own in _turns(parts):
            if self.action is not None:  # nothing came back: the run went on by itself, as none of ours does
                raise NotExpressible("an action follows another without a result between them")
            thought = "\n".join(part.text for part in own if part.kind is PartKind.THOUGHT) or None
            calls = tuple(Action(part.tool or ANSWER, part.text) for part in own if part.kind is not PartKind.THOUGHT)
            self.action = self.dialect.action_ids(ActionTurn(calls, thought), self.tools)
            self.calls = len(calls)
            self._add(self.action, any(part.learnt for part in own))

    def _reply(self, parts: Sequence[Part]) -> None:
        if self.action is None:
            raise NotExpressible("a result stands behind no action")
        if len(parts) != max(1, self.calls):
            raise NotExpressible(f"{len(parts)} results stand behind {self.calls} calls")
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
    """One action after the other: a thought behind a call begins the next."""
    own: list[Part] = []
    for part in parts:
        if part.kind is PartKind.THOUGHT and any(before.kind is not PartKind.THOUGHT for before in own):
            yield own
            own = []
        own.append(part)
    if own:
        yield own
