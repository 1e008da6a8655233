"""The timing of a stranger's first minutes: a fixed loop, parts that are README's, days that are kept beside each other."""

from __future__ import annotations

from pathlib import Path

from benchmarks.first_minutes import PARTS

README = "".join((Path(__file__).parents[1] / name).read_text() for name in ("README.md", "docs/install.md"))


def test_what_is_typed_is_what_the_readme_says() -> None:
    for command in (
        "make setup",
        "make demo",
        "make test",
        "uv build --wheel",
        "sh requirements/install.sh",
        "uv pip install '.[cpu]' --torch-backend cpu",
    ):
        assert command in README
        assert any(all(word in typed for word in command.split()) for typed in PARTS.values()), command
