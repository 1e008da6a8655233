"""`flywheel data`, and profiles and suites that read public data by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flows.cli import app
from flows.config import PROFILES, load_config
from flows.evaluation_config import EvaluationConfig
from flows.suites.config import GraphSource, QuestionSetSource, check_data, find_suite, place_of
from tests.warehouse.public_data.host import Host, serving
from warehouse.public_data.catalogue import DATA_SETS

SUITES = ("films", "countries", "musique", "gsm8k", "humaneval", "mbpp")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of public data that has none yet."""
    root = tmp_path / "public"
    monkeypatch.setenv("FLYWHEEL_DATA", str(root))
    return root


@pytest.fixture
def full(empty: Path) -> Path:
    """One in which every data set is there, by its names."""
    for data in DATA_SETS.values():
        for folder in data.folders:
            (empty / folder.name).mkdir(parents=True)
        if not (empty / data.entries[0]).exists():
            (empty / data.entries[0]).touch()
    return empty


@pytest.fixture
def host() -> Iterator[Host]:
    with serving() as host:
        yield host


def flywheel(*arguments: str) -> Result:
    """A command that is carried out; wrong requests are raised, as `main` catches them."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_get_prints_where_it_lies_and_tells_the_licence_beside(empty: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATA_SETS, "films", host.data_set("films", one=b"1"))
    monkeypatch.setitem(DATA_SETS, "gsm8k", host.data_set("gsm8k", two=b"2"))
    done = flywheel("data", "get", "films", "gsm8k")
    assert done.stdout.splitlines() == [str(empty / "folder_films"), str(empty / "folder_gsm8k")]
    assert "films: 0 kB, CC0, from https://github.com/nobody/nothing" in done.stderr
    again = flywheel("data", "get", "films")
    assert (again.stdout.strip(), again.stderr) == (str(empty / "folder_films"), "") and len(host.asked) == 2


def test_profiles_and_suites_name_data_and_no_paths(full: Path) -> None:
    assert [path.name for path in PROFILES.rglob("*.toml") if "shared/data" in path.read_text()] == []
    assert load_config("movies").corpus.folder == load_config("smollm2").corpus.folder == full / "kg_movies"
    for name in SUITES:
        suite = find_suite(name, EvaluationConfig())
        assert isinstance(suite.source, GraphSource | QuestionSetSource)
        check_data(suite)
        assert place_of(suite.source) == full / DATA_SETS[name].entries[0]
