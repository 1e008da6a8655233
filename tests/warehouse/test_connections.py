"""Extensions come from the package where nothing is installed, and a failure names every step."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from warehouse import connections


@pytest.mark.slow
def test_an_empty_extension_folder_is_filled(tmp_path: Path) -> None:
    with duckdb.connect(config={"extension_directory": str(tmp_path)}) as connection:
        connections.load_extensions(connection, connections.EXTENSIONS)
        loaded = connection.execute("SELECT extension_name FROM duckdb_extensions() WHERE loaded").fetchall()
    assert {(name,) for name in connections.EXTENSIONS} <= set(loaded)


def test_the_error_names_every_step(tmp_path: Path) -> None:
    with (
        duckdb.connect(
            config={"extension_directory": str(tmp_path), "custom_extension_repository": str(tmp_path / "nowhere")}
        ) as connection,
        pytest.raises(connections.ExtensionError, match=r"installed: .*; package: .*; network: .*duckdb-extension-no-such-extension"),
    ):
        connections.load_extensions(connection, ["no_such_extension"])
