"""`flywheel data`, and profiles and suites that read public data by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config import PROFILES, load_config
from flows.evaluation_config import EvaluationConfig
from flows.suites.config import GraphSource, QuestionSetSource, check_data, find_suite, place_of
from warehouse.public_data.catalogue import DATA_SETS

SUITES = ("films", "countries", "musique", "gsm8k", "humaneval", "mbpp")


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which every public data set is there, by its names."""
    monkeypatch.setenv("FLYWHEEL_DATA", str(tmp_path))
    for data in DATA_SETS.values():
        for folder in data.folders:
            (tmp_path / folder.name).mkdir(parents=True)
        if not (tmp_path / data.entries[0]).exists():
            (tmp_path / data.entries[0]).touch()
    return tmp_path


def test_profiles_and_suites_name_data_and_no_paths(full: Path) -> None:
    assert [path.name for path in PROFILES.rglob("*.toml") if "shared/data" in path.read_text()] == []
    assert load_config("movies").corpus.folder == load_config("smollm2").corpus.folder == full / "kg_movies"
    for name in SUITES:
        suite = find_suite(name, EvaluationConfig())
        assert isinstance(suite.source, GraphSource | QuestionSetSource)
        check_data(suite)
        assert place_of(suite.source) == full / DATA_SETS[name].entries[0]
