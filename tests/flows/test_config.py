"""Configuration: what is wrong is told in one sentence that names the key, before anything starts."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flows.config import PROFILES, FlywheelConfig, load_config
from flows.overrides import parse_override
from warehouse.errors import RequestError


def test_every_profile_is_valid_where_its_data_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_DATA", str(tmp_path))
    (tmp_path / "kg_movies").mkdir()
    for path in PROFILES.glob("*.toml"):
        assert isinstance(load_config(path.stem), FlywheelConfig)
        asked = tomllib.loads(path.read_text())["synth"]["webshaper"]
        assert "structure" in asked, "what its counts are counts of is said, for its figures were measured with them"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rl.stepz=3", "rl.stepz"),
        ("later.rl.stepz=3", "stepz"),
        ("corpus.kind=files", "path"),
        ("rl.older_share=0.2", "rollout.engine.older"),
        ('rl={"mode":"asynchronous","filters":{"refills":1}}', "rl.filters.refills"),
    ],
)
def test_a_wrong_override_is_one_sentence_that_names_the_key(override: str, named: str) -> None:
    with pytest.raises(RequestError) as error:
        load_config("quickstart", [override])
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_later_lays_over_the_first_turn_and_replaces_counts() -> None:
    config = load_config("quickstart", ["later.rl.steps=3", 'later.synth.webshaper.counts={"5":7}'])
    assert config.for_turn(1).rl.steps == config.rl.steps
    assert config.for_turn(2).rl.steps == 3
    assert config.for_turn(2).sft.learning_rate == 3e-4 < config.sft.learning_rate, "what the profile says of later turns stays"
    assert config.for_turn(2).rl.samples_per_task == config.rl.samples_per_task
    assert config.for_turn(3).synth.webshaper.counts == {5: 7}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{1=20}", {1: 20}),
        ('{"1": 20}', {1: 20}),
    ],
)
def test_set_takes_what_a_profile_may_hold(value: str, expected: dict[int, int]) -> None:
    assert load_config("quickstart", [f"synth.webshaper.counts={value}"]).synth.webshaper.counts == expected


def test_values_that_are_no_tables_are_read_as_they_are_written() -> None:
    for text, value in (("2025-01-01", "2025-01-01"), ("'a b'", "a b"), ("{broken", "{broken"), ("a=b", "a=b"), ("null", None)):
        assert parse_override(f"x={text}") == (["x"], value)


def test_no_command_waits_for_libraries_that_it_may_not_need() -> None:
    heavy = ("torch", "transformers", "trl", "vllm", "ray", "prefect", "datasets", "pandas", "datasketch", "bm25s", "numba", "networkx")
    for modules, unwanted in (
        ("flows.preflight, flows.report, flows.top", heavy),
        ("flows.cli", (*heavy, "duckdb", "pyarrow", "numpy", "pydantic")),
    ):
        script = f"import sys, {modules}; print(*(set(sys.modules) & set({unwanted})))"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [], modules
