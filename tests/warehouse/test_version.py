"""A lake of another version is left alone, and views of an earlier program are made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from warehouse import Lake, RequestError
from warehouse.version import VERSION, definitions_digest

pytestmark = pytest.mark.slow


def test_a_lake_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        for change, told in (("UPDATE versions SET version = 99", "version 99"), ("DROP TABLE versions", "version none")):
            lake.write(lambda cursor, change=change: cursor.execute(change).fetchall())
            before = lake.snapshot()
            for read_only in (True, False):
                with pytest.raises(RequestError, match=rf"of {told}, .* version {VERSION}: .*begin another --home"):
                    Lake(tmp_path, read_only=read_only)
            assert lake.snapshot() == before


def test_views_of_an_earlier_program_are_made_anew(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.write(lambda cursor: cursor.execute("CREATE OR REPLACE VIEW outcomes AS SELECT 1 AS old").fetchall())
        lake.write(lambda cursor: cursor.execute("UPDATE versions SET definitions = 'another'").fetchall())
    with Lake(tmp_path) as lake:
        assert lake.query("FROM outcomes").column_names[:3] == ["trajectory_id", "outcome", "reward"]
        newest = "SELECT definitions FROM versions ORDER BY recorded DESC LIMIT 1"
        assert lake.query(newest).column("definitions").to_pylist() == [definitions_digest()]
