"""Configuration: what is wrong is told in one sentence that names the key, before anything starts."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flows.config import PROFILES, FlywheelConfig, load_config
from flows.overrides import apply_overrides, lay_over, parse_override
from warehouse.errors import RequestError


def test_every_profile_is_valid_where_its_data_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_DATA", str(tmp_path))
    (tmp_path / "kg_movies").mkdir()
    for path in PROFILES.glob("*.toml"):
        assert isinstance(load_config(path.stem), FlywheelConfig)
        asked = tomllib.loads(path.read_text())["synth"]["webshaper"]
        assert "structure" in asked, "what its counts are counts of is said, for its figures were measured with them"


def test_overrides_are_typed_and_nested() -> None:
    config = load_config("quickstart", ["seed=7", "rl.horizon.rounds=[2,4,6]", "corpus.train.entities=500"])
    assert config.seed == 7
    assert config.rl.horizon.rounds == (2, 4, 6)
    assert config.corpus.train.entities == 500


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rl.stepz=3", "rl.stepz"),
        ("seed=-1", "seed"),
        ("seed", "key=value"),
        ("seed.deep=1", "seed"),
        ("later.rl.stepz=3", "stepz"),
        ("corpus.kind=files", "path"),
        ("corpus.path=profiles", "path"),
        ("policy.heads=5", "policy"),
        ("rl.older_share=0.2", "rollout.engine.older"),
        ('rl={"mode":"asynchronous","filters":{"refills":1}}', "rl.filters.refills"),
        ('rl={"mode":"asynchronous","filters":{"oversampling":2}}', "rl.filters.oversampling"),
        ("rl.filters.oversampling=0.5", "oversampling"),
        ('rl={"mode":"asynchronous","replay":{"capacity":3}}', "rl.replay.capacity"),
    ],
)
def test_a_wrong_override_is_one_sentence_that_names_the_key(override: str, named: str) -> None:
    with pytest.raises(RequestError) as error:
        load_config("quickstart", [override])
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(RequestError, match="quickstart"):
        load_config("nonesuch")


def test_absent_data_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no folder"):
        load_config("movies", [f"corpus.path={tmp_path / 'absent'}"])


def test_later_lays_over_the_first_turn_and_replaces_counts() -> None:
    config = load_config("quickstart", ["later.rl.steps=3", 'later.synth.webshaper.counts={"5":7}'])
    assert config.for_turn(1).rl.steps == config.rl.steps
    assert config.for_turn(2).rl.steps == 3
    assert config.for_turn(2).sft.learning_rate == 3e-4 < config.sft.learning_rate, "what the profile says of later turns stays"
    assert config.for_turn(2).rl.samples_per_task == config.rl.samples_per_task
    assert config.for_turn(3).synth.webshaper.counts == {5: 7}


def test_lay_over_does_not_change_what_lies_below() -> None:
    below = {"a": {"b": 1}}
    assert lay_over(below, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert below == {"a": {"b": 1}}
    assert apply_overrides(below, ["a.b=3"]) == {"a": {"b": 3}}
    assert below == {"a": {"b": 1}}


@pytest.mark.parametrize("key", ["counts", "mixture"])
def test_numbers_by_hops_and_shares_by_name_are_replaced_as_a_whole(key: str) -> None:
    assert lay_over({"a": {key: {"one": 1}}}, {"a": {key: {"two": 2}}}) == {"a": {key: {"two": 2}}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{1=20}", {1: 20}),
        ("{ 1 = 20, 2 = 3 }", {1: 20, 2: 3}),
        ('{"1": 20}', {1: 20}),
    ],
)
def test_set_takes_what_a_profile_may_hold(value: str, expected: dict[int, int]) -> None:
    assert load_config("quickstart", [f"synth.webshaper.counts={value}"]).synth.webshaper.counts == expected


def test_values_that_are_no_tables_are_read_as_they_are_written() -> None:
    for text, value in (("2025-01-01", "2025-01-01"), ("'a b'", "a b"), ("{broken", "{broken"), ("a=b", "a=b"), ("null", None)):
        assert parse_override(f"x={text}") == (["x"], value)


def test_a_truncated_distribution_is_refused_where_rl_learns_from_it() -> None:
    with pytest.raises(RequestError, match=r"top_p must be 1: RL trains on these rollouts"):
        load_config("quickstart", ["rollout.limits.top_p=0.9"])


def test_no_command_waits_for_libraries_that_it_may_not_need() -> None:
    heavy = ("torch", "transformers", "trl", "vllm", "ray", "prefect", "datasets", "pandas", "datasketch", "bm25s", "numba", "networkx")
    for modules, unwanted in (
        ("flows.preflight, flows.report, flows.top", heavy),
        ("flows.cli", (*heavy, "duckdb", "pyarrow", "numpy", "pydantic")),
    ):
        script = f"import sys, {modules}; print(*(set(sys.modules) & set({unwanted})))"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [], modules
