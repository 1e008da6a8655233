"""A lake of any earlier version opens as one of this version: nothing lost, nothing done twice, and a newer one is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.warehouse.old_lakes import BEFORE_VERSIONS, EXAMPLES, VERSION_1, make_old_lake
from warehouse import Call, Example, Lake, RequestError, Task
from warehouse.migrations import VERSION, definitions_digest

pytestmark = pytest.mark.slow

OLD = pytest.mark.parametrize(
    "statements", [BEFORE_VERSIONS, pytest.param(VERSION_1, marks=pytest.mark.long)], ids=["before versions", "version 1"]
)
COLUMNS = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE database_name = 'lake' ORDER BY ALL"
STEPS = "SELECT version FROM migrations ORDER BY version"


@OLD
def test_an_old_lake_becomes_what_a_new_one_is(tmp_path: Path, statements: Sequence[str]) -> None:
    make_old_lake(tmp_path / "old", statements)
    with Lake(tmp_path / "old") as old, Lake(tmp_path / "new") as new:
        assert old.query(COLUMNS).to_pylist() == new.query(COLUMNS).to_pylist()
        assert old.query(STEPS).column("version").to_pylist() == list(range(1, VERSION + 1))
        assert new.query(STEPS).column("version").to_pylist() == [VERSION]


@OLD
def test_what_an_old_lake_held_is_read_as_before(tmp_path: Path, statements: Sequence[str]) -> None:
    make_old_lake(tmp_path, statements)
    with Lake(tmp_path) as lake:
        (trajectory,) = lake.trajectories()
        search, answer = Call("search", "x", "ok", "found", 0.25), Call("answer", "one", None, "", 0.25)
        assert [turn.calls for turn in trajectory.turns] == [(search,), (), (answer,)]
        assert [turn.policy_versions for turn in trajectory.turns] == [(), (), ()]
        counts = "SELECT n_calls, prompt_tokens, action_tokens, observation_tokens FROM trajectories"
        assert [tuple(row.values()) for row in lake.query(counts).to_pylist()] == [(1, 2, 4, 4)]
        assert {row["tool"] for row in lake.query("FROM tool_use").to_pylist()} == {"search", "answer"}
        assert lake.tasks()[0].question == "Who?"


def test_a_snapshot_from_before_a_migration_is_read_with_what_it_had(tmp_path: Path) -> None:
    before = make_old_lake(tmp_path, BEFORE_VERSIONS)
    with Lake(tmp_path) as lake:
        lake.add([Task("t2", "search", "What?", ("two",))])
        (trajectory,) = lake.trajectories(at=before)
        assert [len(turn.action_ids) for turn in trajectory.turns] == [2, 1, 1] and trajectory.turns[0].calls == ()
        assert [(task.key, task.proofs) for task in lake.tasks(at=before)] == [("t1", {})]
        assert lake.read(type(lake.tasks()[0]), at=before) == lake.tasks(at=before)


@OLD
def test_examples_of_text_in_tags_become_parts_and_sampled_ids_stay_as_they_were(tmp_path: Path, statements: Sequence[str]) -> None:
    before = make_old_lake(tmp_path, statements)
    with Lake(tmp_path) as lake:
        examples = lake.examples()
        assert tuple(examples) == EXAMPLES
        old = lake.query("SELECT id, token_ids, loss_mask FROM examples WHERE len(token_ids) > 0 ORDER BY id", at=before).to_pylist()
        now = [example for example in examples if any(part.ids for part in example.parts)]
        assert [row["id"] for row in old] == [example.id for example in now]
        for row, example in zip(old, now, strict=True):
            assert [token for part in example.parts for token in part.ids] == row["token_ids"]
            assert [int(part.learnt) for part in example.parts for _ in part.ids] == (row["loss_mask"] or [1] * len(row["token_ids"]))


def test_examples_from_before_they_had_parts_are_read_in_sql_alone(tmp_path: Path) -> None:
    before = make_old_lake(tmp_path, VERSION_1)
    with Lake(tmp_path) as lake:
        for read in (lambda: lake.examples(at=before), lambda: lake.read(Example, at=before)):
            with pytest.raises(RequestError, match=r"examples .*without parts.*use SQL"):
                read()
        assert lake.query("SELECT count(*) AS n FROM examples WHERE len(segments) > 0", at=before).to_pylist() == [{"n": 4}]


def test_migrating_again_changes_nothing(tmp_path: Path) -> None:
    make_old_lake(tmp_path, VERSION_1)
    with Lake(tmp_path) as lake:
        first = lake.snapshot()
    with Lake(tmp_path) as lake:
        assert lake.snapshot() == first


def test_a_migration_that_breaks_leaves_the_old_lake(tmp_path: Path) -> None:
    make_old_lake(tmp_path, [*BEFORE_VERSIONS, "CREATE VIEW checks AS SELECT 1"])
    for _ in range(2):
        with pytest.raises(Exception, match="checks"):
            Lake(tmp_path)
    with pytest.raises(RequestError, match="a view in the place of the table checks"):
        Lake(tmp_path, read_only=True)


def test_to_read_an_old_lake_says_what_to_do(tmp_path: Path) -> None:
    make_old_lake(tmp_path, BEFORE_VERSIONS)
    with pytest.raises(RequestError, match=rf"version 0 .*version {VERSION}: .*`flywheel lake migrate --home"):
        Lake(tmp_path, read_only=True)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_newer_lake_is_refused(tmp_path: Path, read_only: bool) -> None:
    with Lake(tmp_path) as lake:
        lake.write(lambda cursor: cursor.execute("INSERT INTO migrations (version, definitions) VALUES (99, '')").fetchall())
        before = lake.snapshot()
        with pytest.raises(RequestError, match=rf"version 99 .*up to {VERSION}"):
            Lake(tmp_path, read_only=read_only)
        assert lake.snapshot() == before


def test_views_of_an_earlier_program_are_made_anew(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.write(lambda cursor: cursor.execute("CREATE OR REPLACE VIEW outcomes AS SELECT 1 AS old").fetchall())
        lake.write(lambda cursor: cursor.execute("UPDATE migrations SET definitions = 'another'").fetchall())
    with Lake(tmp_path) as lake:
        assert lake.query("FROM outcomes").column_names[:3] == ["trajectory_id", "outcome", "reward"]
        newest = "SELECT definitions FROM migrations ORDER BY recorded DESC NULLS LAST LIMIT 1"
        assert lake.query(newest).column("definitions").to_pylist() == [definitions_digest()]
