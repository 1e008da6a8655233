"""What an observation may be made of beside plain text: parts, in order, of text and of images.

It stands apart because environments make parts and dialects render them, and neither needs the other for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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


def text_of(parts: Iterable[ContentPart]) -> str:
    """The text of parts, an image as its media type and size: what a reader sees who takes no images."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.media_type}, {len(part.data)} bytes]" for part in parts)
