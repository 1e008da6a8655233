"""Records come back as they were, nothing doubles, and a batch is stored whole or not at all."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from functools import partial
from pathlib import Path

import duckdb
import pytest

from warehouse import Document, Failure, Image, Lake, Metric, Policy, Record, RequestError, Run, Trajectory, connections
from warehouse.digests import digest_bytes
from warehouse.lake import describe
from warehouse.rows import gc_paused
from warehouse.schema import TABLE_OF, TABLES
from warehouse.version import VERSION, definitions_digest
from warehouse.views import MACROS, VIEWS

MakeTrajectory = Callable[..., Trajectory]


@pytest.mark.slow
def test_every_record_comes_back_as_it_was_and_adding_it_again_changes_nothing(lake: Lake, one_of_each: list[Record]) -> None:
    lake.add(one_of_each)
    before = lake.snapshot()
    lake.add(one_of_each)
    lake.add([Document("d1", "Other title", "Other text", "elsewhere")])
    assert lake.snapshot() == before
    assert lake.query("SELECT count(*) AS n FROM turns").to_pylist() == [{"n": 3}]
    assert {type(record) for record in one_of_each} == set(TABLE_OF)
    for kind in TABLE_OF:
        assert {*map(repr, lake.read(kind))} == {repr(_in_utc(record)) for record in one_of_each if type(record) is kind}


def _in_utc(record: Record) -> Record:
    return replace(record, started=record.started.astimezone(UTC)) if isinstance(record, Run) else record


@pytest.mark.slow
def test_replace_overwrites_rows_and_turns_and_earlier_snapshots_stay_readable(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    lake.add([make_trajectory("a", 4), make_trajectory("b", 2), Policy("p1", None, "rl", "/w", "d", None)])
    before = lake.snapshot()
    lake.replace([make_trajectory("a", 1), make_trajectory("c", 2), Policy("p1", None, "rl", "/w", "d", None, promoted=True)])
    assert [(trajectory.id, len(trajectory.turns)) for trajectory in lake.trajectories()] == [("a", 1), ("b", 2), ("c", 2)]
    assert [policy.promoted for policy in lake.policies()] == [True]
    assert lake.query("SELECT count(*) AS n FROM turns").to_pylist() == [{"n": 5}]
    assert [(trajectory.id, len(trajectory.turns)) for trajectory in lake.trajectories(at=before)] == [("a", 4), ("b", 2)]
    assert lake.query("SELECT sum(n_turns)::INT AS n FROM trajectories", at=before).to_pylist() == [{"n": 6}]
    with pytest.raises(RequestError, match="999"):
        lake.query("SELECT 1", at=999)


@pytest.mark.slow
def test_a_batch_that_breaks_leaves_nothing(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    broken = replace(make_trajectory("broken"), seed="not a number")  # type: ignore[arg-type]
    with pytest.raises(duckdb.InvalidInputException, match="not a number"):
        lake.add([Document("d", "t", "x", "s"), make_trajectory("good"), broken])
    assert lake.documents() == [] and lake.trajectories() == []


@pytest.mark.slow
def test_threads_share_one_lake(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    batches = [[make_trajectory(f"{batch}-{row}") for row in range(12)] for batch in (0, 1, 2, 0, 1, 2)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lake.add, batches))
    assert len(lake.trajectories()) == 36
    assert lake.query("SELECT count(*) AS n FROM turns").to_pylist() == [{"n": 72}]


def test_a_conflict_is_tried_again_and_another_error_is_not(lake: Lake) -> None:
    tries: list[str] = []

    def work(message: str, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.execute("INSERT INTO metrics(run_id, step, name, value) VALUES ('r', 1, 'loss', 0.5)")
        tries.append(message)
        if len(tries) < 3:
            raise duckdb.TransactionException(message)

    lake.write(partial(work, "database is locked"))
    assert len(tries) == 3 and len(lake.metrics()) == 1
    tries.clear()
    with pytest.raises(duckdb.TransactionException, match="something else"):
        lake.write(partial(work, "something else"))
    assert len(tries) == 1 and len(lake.metrics()) == 1


@pytest.mark.slow
def test_figures_that_are_not_finite_do_not_stop_a_run(lake: Lake) -> None:
    lake.add([Failure("rl", "loss", "not finite", {"loss": float("nan"), "steps": [1.0, float("inf")]})])
    lake.add([Metric("r", "rl", 1, 1, "loss", float("nan"))])
    assert lake.failures()[0].item == {"loss": None, "steps": [1.0, None]}
    assert lake.query("SELECT count(*) AS n FROM metrics WHERE isnan(value)").to_pylist() == [{"n": 1}]


def test_a_reader_needs_a_lake_and_cannot_write(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="nowhere"):
        Lake(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()
    lake.add([Document("d", "t", "x", "s")])
    with Lake(lake.place.home, read_only=True) as reader:
        assert [document.id for document in reader.documents()] == ["d"]
        lake.add([Document("e", "t", "x", "s")])
        assert [document.id for document in reader.documents()] == ["d", "e"]
        with pytest.raises(RequestError, match="read_only"):
            reader.add([Document("f", "t", "x", "s")])


def test_every_table_column_view_and_macro_has_a_meaning(lake: Lake) -> None:
    told = describe(lake)
    assert {row.name for row in told if row.kind == "table"} == {table.name for table in TABLES} | {"versions"}
    assert {row.name for row in told if row.kind == "view"} == set(VIEWS)
    assert [row.name for row in told if row.kind == "macro"] == [macro.signature for macro in MACROS.values()]
    silent = [(row.name, row.column) for row in told if not row.comment and not (row.kind == "view" and row.column)]
    assert silent == []


@pytest.mark.slow
def test_a_home_may_be_moved_and_have_an_awkward_name(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    with Lake(tmp_path / "it's here") as lake:
        lake.add([make_trajectory(f"t{number}", 3) for number in range(20)])
    (tmp_path / "it's here").rename(tmp_path / "moved away")
    with Lake(tmp_path / "moved away") as lake:
        lake.add([make_trajectory("t20", 3)])
        assert len(lake.trajectories()) == 21
        assert lake.query("SELECT count(*) AS n FROM turns").to_pylist() == [{"n": 63}]


@pytest.mark.slow
def test_a_lake_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        for change, told in (("UPDATE versions SET version = 99", "version 99"), ("DROP TABLE versions", "version none")):
            lake.write(lambda cursor, change=change: cursor.execute(change).fetchall())
            before = lake.snapshot()
            for read_only in (True, False):
                with pytest.raises(RequestError, match=rf"{told}, .* version {VERSION}: .*--home"):
                    Lake(tmp_path, read_only=read_only)
            assert lake.snapshot() == before


@pytest.mark.slow
def test_views_of_an_earlier_program_are_replaced(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.write(lambda cursor: cursor.execute("CREATE OR REPLACE VIEW outcomes AS SELECT 1 AS old").fetchall())
        lake.write(lambda cursor: cursor.execute("UPDATE versions SET definitions = 'another'").fetchall())
    with Lake(tmp_path) as lake:
        assert lake.query("FROM outcomes").column_names[:3] == ["trajectory_id", "outcome", "reward"]
        newest = "SELECT definitions FROM versions ORDER BY recorded DESC LIMIT 1"
        assert lake.query(newest).column("definitions").to_pylist() == [definitions_digest()]


@pytest.mark.slow
def test_an_empty_extension_folder_is_filled(tmp_path: Path) -> None:
    with duckdb.connect(config={"extension_directory": str(tmp_path)}) as connection:
        connections.load_extensions(connection, connections.EXTENSIONS)
        loaded = connection.execute("SELECT extension_name FROM duckdb_extensions() WHERE loaded").fetchall()
    assert {(name,) for name in connections.EXTENSIONS} <= set(loaded)


def test_the_error_names_every_step(tmp_path: Path) -> None:
    places = {"extension_directory": str(tmp_path), "custom_extension_repository": str(tmp_path / "nowhere")}
    with duckdb.connect(config=places) as connection, pytest.raises(connections.ExtensionError, match=r"installed.*package.*network"):
        connections.load_extensions(connection, ["no_such_extension"])


def test_nothing_is_collected_within_and_all_is_as_before_afterwards() -> None:
    assert gc.isenabled()
    with suppress(ValueError), gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the inner one is not the last"
        raise ValueError
    assert gc.isenabled()


def image(content: bytes) -> Image:
    return Image(digest_bytes(content), "image/png", 2, 1, content)


RED, BLUE = image(b"red\x00\xff"), image(b"blue")


def showing(trajectory: Trajectory, *images: tuple[Image, ...]) -> Trajectory:
    """`trajectory` whose turns show `images`."""
    return replace(trajectory, turns=tuple(replace(turn, images=shown) for turn, shown in zip(trajectory.turns, images, strict=True)))


@pytest.mark.slow
def test_an_image_is_stored_once_and_stays_for_every_turn_that_shows_it(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    first = showing(make_trajectory("a", 3), (RED, BLUE, RED), (), (BLUE,))
    second = showing(make_trajectory("b", 1), (RED,))
    before = lake.snapshot()
    lake.add([first, make_trajectory("c", 2)])
    assert lake.snapshot() == before + 1, "images are of the same commit"
    lake.add([second])
    assert [each.images for each in lake.trajectories()] == [(RED, BLUE, RED, BLUE), (RED,), ()]
    assert [turn.images for turn in lake.trajectories("id = 'a'")[0].turns] == [(RED, BLUE, RED), (), (BLUE,)]
    assert sorted(lake.read(Image), key=lambda each: each.data) == [BLUE, RED]
    named = lake.query("SELECT images FROM turns WHERE trajectory_id = 'b'").to_pylist()
    assert named == [{"images": [RED.digest]}]
    lake.remove(Trajectory, ["a"])
    lake.replace([showing(make_trajectory("b", 1), (BLUE, RED))])
    assert [each.images for each in lake.trajectories()] == [(BLUE, RED), ()]
    assert len(lake.read(Image)) == 2
