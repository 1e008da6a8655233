"""The example of the documentation is taken from its page, put into a file, and played on real workers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl.envs.base import Resources, find_environment
from rl.renderers.base import Action
from warehouse.records import Task

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"
TASK = Task("t", "guess", "Guess the number.", (), provenance={"below": 100})


def blocks(language: str) -> list[str]:
    """The pieces of code of that language on the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the example in it, which is where a person stands."""
    (tmp_path / "guess.py").write_text(next(block for block in blocks("python") if block.startswith("# guess.py")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_example_plays(folder: Path) -> None:
    environment = find_environment("guess.py:create")(Resources(options={"reward": 2.0}))
    assert (await environment.reset(TASK, seed=142)).text == "The number is below 100."
    steps = [await environment.step(Action("guess", f'{{"number": {number}}}')) for number in (-1, 20, 80, 42)]
    assert [step.observation for step in steps] == ["Error: the number is at least 0", "Higher.", "Lower.", "Yes."]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False)] * 3 + [(2.0, True)]
