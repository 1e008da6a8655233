"""What an observation may be made of beside plain text: parts, in order, of text and of images; and where images stand in token ids.

It stands apart because environments make parts, dialects render them and engines are given them, and none needs the others for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from warehouse.records import Image


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image as its encoded bytes; `media_type` says how they are encoded, such as `image/png`."""

    data: bytes
    media_type: str


ContentPart = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image among token ids: `length` of them from `start` on are its placeholders, as many as the model's own processor makes of it.

    Engines are given `marker_id`, one token, in the place of these, and put the placeholders in by the same processor.
    """

    image: Image
    start: int
    length: int
    marker_id: int


def collapsed(ids: Sequence[int], images: Iterable[PlacedImage]) -> list[int]:
    """`ids` with one marker in the place of each image's placeholders; `images` in their order."""
    kept: list[int] = []
    end = 0
    for placed in images:
        kept += [*ids[end : placed.start], placed.marker_id]
        end = placed.start + placed.length
    return kept + list(ids[end:])


def text_of(parts: Iterable[ContentPart]) -> str:
    """The text of parts, an image as its media type and size: what a reader sees who takes no images."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.media_type}, {len(part.data)} bytes]" for part in parts)
