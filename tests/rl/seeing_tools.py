"""A tool that returns images, as a file of tools names it; it runs in an environment's worker."""

from __future__ import annotations

from rl.content import ImagePart, TextPart
from rl.tools import tool
from tests.rl.hostile_images import png


def noise(seed: int, width: int = 50, height: int = 40) -> bytes:
    """A PNG of noise, the same for the same seed."""
    state, rows = seed + 1, bytearray()
    for _ in range(height):
        rows.append(0)
        for _ in range(3 * width):
            state = (1_103_515_245 * state + 12_345) % 2**31
            rows.append(state >> 16 & 255)
    return png(width, height, bytes(rows))


@tool
def cover(title: str) -> list[TextPart | ImagePart]:
    """Look at a cover.

    Args:
        title: of the book; its length says how it looks.
    """
    return [TextPart("Front: "), ImagePart(noise(len(title)), "image/png"), TextPart(" back: "), ImagePart(noise(99, 20, 60), "image/png")]
