"""Examples of lakes from before version 7: text in the tags of the dialect `tags`, or sampled ids with a mask, as parts.

Tags stood in no text that came from outside, so that what stands between two of them is what was said. Of sampled ids the runs of equal
mask are the parts: the prompt, and actions and observations in turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.columns import PARTS, PIECE_ROWS
from warehouse.records import Part, PartKind

_TAGGED = re.compile(r"<(question|think|search|code|information|answer)>(.*?)</\1>|<\|(?:pad|end)\|>", re.DOTALL)
_KINDS = {"question": PartKind.QUESTION, "think": PartKind.THOUGHT, "information": PartKind.RESULT, "answer": PartKind.ANSWER}


def structure_examples(cursor: duckdb.DuckDBPyConnection) -> None:
    """Fill the column `parts` of the examples that have none yet, from `segments`, `token_ids` and `loss_mask`."""
    columns = {row[0] for row in cursor.execute("DESCRIBE examples").fetchall()}
    if "segments" not in columns:
        return
    rows = cursor.execute("SELECT id, kind, segments, token_ids, loss_mask FROM examples WHERE parts IS NULL ORDER BY id").fetchall()
    for start in range(0, len(rows), PIECE_ROWS):
        piece = rows[start : start + PIECE_ROWS]
        parts = PARTS.encode([parts_of(*row[1:]) for row in piece])
        cursor.register("flywheel_parts", pa.table({"id": pa.array([row[0] for row in piece], pa.string()), "parts": parts}))
        cursor.execute("UPDATE examples SET parts = given.parts FROM flywheel_parts given WHERE examples.id = given.id")
        cursor.unregister("flywheel_parts")


def parts_of(
    kind: str, segments: Sequence[dict[str, Any]] | None, token_ids: Sequence[int] | None, mask: Sequence[int] | None
) -> tuple[Part, ...]:
    """The parts of one example of the old form."""
    texts = [(str(segment["text"]), bool(segment["trained"])) for segment in segments or ()]
    if token_ids:
        return tuple(_sampled(texts, token_ids, mask or [1] * len(token_ids)))
    parts = tuple(part for text, learnt in texts for part in _tagged(text, learnt))
    if kind == "document" and len(parts) == 1:
        return (Part(PartKind.DOCUMENT, parts[0].text, parts[0].learnt),)
    return parts


def _tagged(text: str, learnt: bool) -> Iterator[Part]:
    place = 0
    for found in _TAGGED.finditer(text):
        if text[place : found.start()]:
            yield Part(PartKind.TEXT, text[place : found.start()], learnt)
        place = found.end()
        tag = found[1]
        if tag in _KINDS:
            yield Part(_KINDS[tag], found[2].strip(), learnt)
        elif tag:
            yield Part(PartKind.CALL, found[2].strip(), learnt, tag)
    if text[place:]:
        yield Part(PartKind.TEXT, text[place:], learnt)


def _sampled(texts: Iterable[tuple[str, bool]], token_ids: Sequence[int], mask: Sequence[int]) -> Iterator[Part]:
    """The runs of equal mask; the texts of a run are those of the segments with its mask, up to the next of the other."""
    said = [(learnt, "".join(text for text, _ in own)) for learnt, own in groupby(texts, key=lambda segment: segment[1])]
    for learnt, pairs in groupby(zip(token_ids, mask, strict=True), key=lambda pair: bool(pair[1])):
        text = said.pop(0)[1] if said and said[0][0] == learnt else ""
        yield Part(PartKind.TOKENS, text, learnt, ids=tuple(token for token, _ in pairs))
