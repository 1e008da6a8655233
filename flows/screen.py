"""A console for tables and coloured lines that escapes control characters of foreign text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rl.terminal import visible


class Screen(Console):
    """A Rich console that writes invisible characters as escapes, in lines, cells, titles and captions."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text with its markup, escaped before layout."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments, escaped; text from other renderables may take more room than its layout."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
