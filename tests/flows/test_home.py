"""A home belongs to one configuration and to one process at a time; a wrong setting is one sentence that names its key."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.config import PROFILES, FlywheelConfig, load_config
from flows.home import Home, choose_config, exclusive
from flows.overrides import parse_override
from warehouse import Lake, Run
from warehouse.errors import RequestError


def trained(home: Home) -> None:
    """Leave a run of SFT in the home, which binds it to its configuration."""
    with Lake(home.root) as lake:
        lake.add([Run("t1-sft", "sft", 1, {}, "", 0, None, "failed", datetime(2026, 1, 1, tzinfo=UTC))])


def test_a_home_accepts_another_budget_and_other_timeouts(tmp_path: Path) -> None:
    home, teacher = Home(tmp_path / "home"), ["synth.teacher.kind=openai", "synth.teacher.model=m"]
    home.claim(load_config("quickstart", teacher))
    written = json.loads(home.config_file.read_text())["digest"]
    slower = load_config("quickstart", [*teacher, "budget.hours=2", "synth.teacher.timeout_seconds=900", "synth.teacher.max_tokens=7"])
    home.claim(slower)
    assert home.load() == slower and json.loads(home.config_file.read_text())["digest"] == written
    trained(home)
    with pytest.raises(RequestError, match=r"synth\.teacher\.model differ"):
        home.claim(load_config("quickstart", ["synth.teacher.kind=openai", "synth.teacher.model=another"]))


def test_settings_without_a_profile_are_laid_over_what_the_home_has(tmp_path: Path) -> None:
    home, own = Home(tmp_path / "home"), load_config("from_scratch", ["seed=3"])
    home.claim(own)
    budget = choose_config(home, None, ["budget.hours=2"])
    assert budget == load_config("from_scratch", ["seed=3", "budget.hours=2"])
    home.claim(budget)
    expanded = choose_config(home, None, ["synth.teacher.kind=openai", "synth.teacher.model=m", "synth.expander.count=2"])
    assert expanded.synth.expander is not None and expanded.seed == 3
    trained(home)
    with pytest.raises(RequestError, match=r"rl\.steps differ"):
        home.claim(choose_config(home, None, ["rl.steps=1"]))
    with pytest.raises(RequestError, match=r"rl\.stepz.*rl\.steps"):
        choose_config(home, None, ["rl.stepz=1"])
    assert choose_config(home, "quickstart", []) == load_config("quickstart")
    assert choose_config(Home(tmp_path / "new"), None, ["seed=3"]) == load_config("quickstart", ["seed=3"])


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RequestError, match="not empty"):
        Home(tmp_path).claim(load_config("quickstart"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_half_written_configuration_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json.part").write_text('{"digest": "3f')
    Home(tmp_path).claim(load_config("quickstart"))
    assert Home(tmp_path).load() == load_config("quickstart")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_configuration_of_another_version_or_a_damaged_one_is_one_sentence(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.claim(load_config("quickstart"))
    whole = home.config_file.read_text()
    home.config_file.write_text(whole.replace('"largest_fall"', '"largest_drop"'))
    with pytest.raises(RequestError, match=r"evaluation\.largest_drop"):
        home.load()
    for damaged in (whole[:100], "[]", '{"digest": 1}'):
        home.config_file.write_text(damaged)
        with pytest.raises(RequestError, match="is damaged"):
            home.load()


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = f"""
import sys
from pathlib import Path
from flows.home import exclusive
with exclusive(Path({str(lock)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RequestError, match=str(holder.pid)), exclusive(lock):
            pass
        holder.kill()
    with exclusive(lock):
        pass


def test_every_profile_is_valid_where_its_data_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_DATA", str(tmp_path))
    (tmp_path / "kg_movies").mkdir()
    for path in PROFILES.glob("*.toml"):
        assert isinstance(load_config(path.stem), FlywheelConfig)
        assert "structure" in tomllib.loads(path.read_text())["synth"]["webshaper"], "what its counts are counts of is said"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rl.stepz=3", "rl.stepz"),
        ("later.rl.stepz=3", "stepz"),
        ("corpus.kind=files", "path"),
        ('synth.demonstrations.search="imperfect"', "rollout.search.imperfect"),
        ('cpt.from=["again"]', "cpt.from"),
        ("synth.expander.count=3", "synth.teacher.kind"),
        ('sft.from=["teacher"]', "synth.teacher.kind"),
        ("synth.judge.kind=oracle", "synth.judge"),
        ("seed.more=1", "seed"),
        ("rl.older_share=0.2", "rollout.engine.older"),
        ('rl={"mode":"asynchronous","filters":{"refills":1}}', "rl.filters.refills"),
    ],
)
def test_a_wrong_override_is_one_sentence_that_names_the_key(override: str, named: str) -> None:
    with pytest.raises(RequestError) as error:
        load_config("quickstart", [override])
    assert named in str(error.value) and "\n" not in str(error.value)


def test_later_lays_over_the_first_turn_and_replaces_counts() -> None:
    config = load_config("quickstart", ["later.rl.steps=3", "later.synth.webshaper.counts={ 5 = 7 }"])
    assert config.for_turn(1).rl.steps == config.rl.steps
    assert config.for_turn(2).rl.steps == 3
    assert config.for_turn(2).sft.learning_rate == 3e-4 != config.sft.learning_rate, "what the profile says of later turns stays"
    assert config.for_turn(2).rl.samples_per_task == config.rl.samples_per_task
    assert config.for_turn(3).synth.webshaper.counts == {5: 7}


def test_values_that_are_no_tables_are_read_as_they_are_written() -> None:
    for text, value in (("2025-01-01", "2025-01-01"), ("'a b'", "a b"), ("{broken", "{broken"), ("a=b", "a=b"), ("null", None)):
        assert parse_override(f"x={text}") == (["x"], value)


def test_no_command_waits_for_libraries_that_it_may_not_need() -> None:
    heavy = ("torch", "transformers", "trl", "vllm", "ray", "prefect", "datasets", "pandas", "datasketch", "bm25s", "numba", "networkx")
    for modules, unwanted in (
        ("flows.preflight, flows.report, flows.top", heavy),
        ("flows.doctor", ("torch", "vllm", "ray", "duckdb")),
        ("flows.cli", (*heavy, "duckdb", "pyarrow", "numpy", "pydantic")),
    ):
        script = f"import sys, {modules}; print(*(set(sys.modules) & set({unwanted})))"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [], modules
