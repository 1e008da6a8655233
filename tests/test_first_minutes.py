"""The benchmark of the first minutes times the commands of README and docs/install.md."""

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
