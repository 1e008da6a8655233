"""A terminal that obeys nothing foreign: every command that draws tables or coloured lines draws them here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rl.terminal import visible


class Screen(Console):
    """A console of Rich's that writes all that is unseen as escapes: in lines, cells, titles and captions, whatever they are made of."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text with its markup; escapes are written before it is laid out."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is drawn; of what was made elsewhere escapes are written now, though they take more room than was kept for them."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
