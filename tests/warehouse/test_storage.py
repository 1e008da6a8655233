"""A catalogue in PostgreSQL and data in S3: the same lake elsewhere. Real servers, or a skip that says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pytest
from pydantic import ValidationError

from tests.ports import free_port
from warehouse import Lake, Record, RequestError, Trajectory
from warehouse.connections import ExtensionError, connect
from warehouse.storage import FILE, Storage
from warehouse.upkeep import compact

ROOT = Path(__file__).resolve().parents[2]
WRITERS, BATCHES, ROWS = 3, 6, 12
DEBIANS = Path("/usr/lib/postgresql")
"""Where Debian and Ubuntu put the programs of a server."""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"catalogue": "mysql:x"}, "postgres:"),
        ({"catalogue": "postgres:dbname=lake password=secret"}, "PGPASSWORD"),
        ({"data": "/somewhere/else"}, "s3://bucket/prefix"),
        ({"s3_endpoint": "localhost:9000"}, "data is not set"),
        ({"bucket": "x"}, "bucket"),
    ],
)
def test_impossible_storage_is_refused(fields: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Storage(**fields)


def _need_extension(name: str) -> None:
    try:
        connect((name,)).close()
    except (ExtensionError, duckdb.Error) as error:
        pytest.skip(f"DuckDB's extension {name} is not here: {str(error).splitlines()[0][:200]}")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The connection string of an empty database on a server of our own, which no other account may reach."""
    places = os.pathsep.join([os.environ["PATH"], *map(str, sorted(DEBIANS.glob("*/bin"), reverse=True))])
    programs = [shutil.which(name, path=places) for name in ("initdb", "postgres", "setpriv")]
    if not all(programs):
        pytest.skip("initdb, postgres and setpriv are needed for a PostgreSQL server")
    _need_extension("postgres_scanner")
    initdb, server, setpriv = map(str, programs)
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    run = [setpriv, f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    with tempfile.TemporaryDirectory() as place:  # pytest's folders are closed to others
        if user:
            try:
                shutil.chown(place, user, user)
            except LookupError:
                pytest.skip("a server cannot run as root, and there is no account postgres to run it")
        port = free_port()
        subprocess.run([*run, initdb, "-D", f"{place}/data", "-A", "trust", "-U", "flywheel"], check=True, capture_output=True, cwd="/")
        command = [*run, server, "-D", f"{place}/data", "-p", str(port), "-k", place, "-c", "listen_addresses=", "-c", "fsync=off"]
        with Path(place, "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd="/") as process:
            yield from _served(process, f"dbname=postgres host={place} port={port} user=flywheel")


def _served(process: subprocess.Popen[bytes], address: str) -> Iterator[str]:
    try:
        with connect(("postgres_scanner",)) as client:
            for _ in range(200):
                try:
                    client.execute(f"ATTACH '{address}' AS server (TYPE postgres)")
                    break
                except duckdb.Error:
                    time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def remote(postgres: str) -> Storage:
    """A catalogue in an empty database."""
    with connect(("postgres_scanner",)) as client:
        client.execute(f"ATTACH '{postgres}' AS server (TYPE postgres)")
        client.execute("CALL postgres_execute('server', 'DROP SCHEMA public CASCADE; CREATE SCHEMA public')")
    return Storage(catalogue=f"postgres:{postgres}")


@pytest.mark.slow
def test_every_record_comes_back_from_a_postgresql_catalogue(tmp_path: Path, remote: Storage, one_of_each: list[Record]) -> None:
    with Lake(tmp_path, storage=remote) as lake:
        lake.add(one_of_each)
        before = lake.snapshot()
        lake.add(one_of_each)
        assert lake.snapshot() == before and not lake.place.catalogue.exists()
        trajectories = lake.trajectories()
    with Lake(tmp_path, read_only=True) as reader:
        assert reader.trajectories() == trajectories and len(trajectories) == 3
        assert reader.query("SELECT count(*) AS n FROM turns", at=before).to_pylist() == [{"n": 3}]
        assert {row["tool"] for row in reader.query("FROM tool_use").to_pylist()} == {"search", "lookup", "answer"}
        with pytest.raises(RequestError, match="may not call"):
            reader.query("SELECT * FROM postgres_query('lake_locks', 'SELECT 1')")


@pytest.mark.long
@pytest.mark.slow
def test_writers_of_other_homes_share_one_catalogue(tmp_path: Path, remote: Storage) -> None:
    """The homes lie apart, as on several machines: no file of one locks the other."""
    data = tmp_path / "shared"
    for number in range(WRITERS):
        (tmp_path / f"home{number}" / "lake").mkdir(parents=True)
        (tmp_path / f"home{number}" / "lake" / FILE).write_text(remote.model_dump_json())
        (tmp_path / f"home{number}" / "lake" / "data").symlink_to(data, target_is_directory=True)
    data.mkdir()
    script = str(ROOT / "tests" / "warehouse" / "writer_process.py")
    writers = [
        subprocess.Popen(
            [sys.executable, script, str(tmp_path / f"home{number}"), f"w{number}", str(BATCHES), str(ROWS)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for number in range(WRITERS)
    ]
    assert [writer.wait() for writer in writers] == [0] * WRITERS
    expected = (WRITERS + 1) * (BATCHES // 2) * ROWS
    with Lake(tmp_path / "home0", read_only=True) as lake:
        counts = "SELECT count(*) AS n, count(DISTINCT id) AS ids, (SELECT count(*) FROM turns) AS turns FROM trajectories"
        assert lake.query(counts).to_pylist() == [{"n": expected, "ids": expected, "turns": expected}]


@pytest.mark.slow
def test_a_catalogue_that_does_not_answer_is_reported_in_one_line(tmp_path: Path) -> None:
    _need_extension("postgres_scanner")
    with pytest.raises(RequestError, match=r"cannot be reached: .*") as raised:
        Lake(tmp_path, storage=Storage(catalogue=f"postgres:dbname=lake host={tmp_path} port=1"))
    assert "\n" not in str(raised.value)


BUCKET = "lakes"
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
OPEN_REQUESTS = 4
"""Those that make a user, its key, its rights and the bucket; from then on the server checks the signature of each."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A bucket on an S3-compatible server of our own (moto), and in the environment the only key that it takes."""
    _need_extension("httpfs")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": str(OPEN_REQUESTS)}
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("w") as said, subprocess.Popen(command, env=environment, stdout=said, stderr=said) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/moto-api/")
            with pytest.MonkeyPatch.context() as patch:
                for name, value in _made_key(f"http://127.0.0.1:{port}").items():
                    patch.setenv(name, value)
                address = f"127.0.0.1:{port}"
                yield Storage(data=f"s3://{BUCKET}/one", s3_endpoint=address, s3_region="us-east-1", s3_path_style=True, s3_tls=False)
        finally:
            process.terminate()


def _made_key(endpoint: str) -> dict[str, str]:
    """Makes the bucket and a user who may use it; the user's key, as the environment has keys."""
    nobody: dict[str, Any] = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
    iam, client = (boto3.client(service, endpoint_url=endpoint, region_name="us-east-1", **nobody) for service in ("iam", "s3"))
    iam.create_user(UserName="flywheel")
    key = iam.create_access_key(UserName="flywheel")["AccessKey"]
    iam.put_user_policy(UserName="flywheel", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    client.create_bucket(Bucket=BUCKET)
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


def _wait_for(address: str) -> None:
    for _ in range(3_000):
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except urllib.error.HTTPError:
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError(f"{address} does not answer")


@pytest.mark.slow
def test_every_record_comes_back_from_s3(tmp_path: Path, s3: Storage, one_of_each: list[Record]) -> None:
    with Lake(tmp_path, storage=s3) as lake:
        lake.add(one_of_each)
        trajectories: list[Trajectory] = lake.trajectories()
        assert not lake.place.data.exists()
    with Lake(tmp_path, read_only=True) as reader:
        assert reader.trajectories() == trajectories and len(trajectories) == 3
        assert reader.query("SELECT count(*) AS n FROM turns").to_pylist() == [{"n": 3}]
        with pytest.raises(RequestError, match="names a file"):
            reader.query("SELECT * FROM 's3://another/bucket.parquet'")


@pytest.mark.slow
def test_upkeep_leaves_the_past_and_the_files_of_another_lake_under_the_same_prefix(
    tmp_path: Path, s3: Storage, make_trajectory: Callable[..., Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warehouse.upkeep.FILE_GRACE", timedelta(0))
    storage = s3.model_copy(update={"data": "s3://lakes/two"})
    for name in ("first", "second"):
        with Lake(tmp_path / name, storage=storage) as lake:
            for row in range(3):
                lake.add([make_trajectory(f"{name}-{row}")])
            before = lake.snapshot()
            compact(lake)
            assert lake.query("SELECT count(*) AS n FROM trajectories", at=before).to_pylist() == [{"n": 3}]
            assert lake.query("FROM ducklake_list_files('lake', 'trajectories')").num_rows == 1
    for name in ("first", "second"):
        with Lake(tmp_path / name, read_only=True) as reader:
            assert [trajectory.id for trajectory in reader.trajectories()] == [f"{name}-{row}" for row in range(3)]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(RequestError, match=r"cannot be reached: .*403"):
        Lake(tmp_path / "first", read_only=True)


def test_a_secret_takes_its_keys_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "it's")
    statement = Storage(data="s3://bucket/lake", s3_endpoint="localhost:9000", s3_path_style=True, s3_tls=False).secret() or ""
    assert "KEY_ID 'it''s'" in statement and "SCOPE 's3://bucket/lake'" in statement and "USE_SSL false" in statement
    assert Storage().secret() is None
