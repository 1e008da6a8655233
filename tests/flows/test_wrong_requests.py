"""Wrong requests over all commands: each is one sentence with status 2, soon, and leaves home and current folder as they were."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app, exit_status
from flows.config import load_config
from flows.home import Home
from tests.clock import processor_seconds
from tests.flows.homes import SMALL
from tests.rl.conftest import create_tiny_policy
from warehouse import Lake, Policy, StopReason, Task, Trajectory
from warehouse.digests import digest_files

pytestmark = pytest.mark.slow

LONGEST_SECONDS = 15.0
"""Processor's time of one request."""

RUN = "run --profile {small} --home {new} --set "
EVAL = "eval --home {home} --policy t1-sft "
REQUESTS = (  # `{new}` is a home that does not exist, `{home}` one that does; the rest are files
    (RUN + "policy.path={folder}/nothing", "nothing is not a model: it has no config.json"),
    (
        RUN + "policy.path={policy} --set rollout.limits.max_context_tokens=200 --set rollout.dialect=mine "
        "--set 'rollout.dialects={mine={template=\"{folder}/deaf.jinja\"}}'",
        "tools",
    ),
    ("model smollm2 --to {folder}/full", "--to"),
    ("export duckdb --home {home} --to {folder}/all.duckdb --at 3", "--at"),
    (RUN + "'rl.rewards.parts={\"{folder}/raising.py:reward\"=1}'", "cannot be imported: ValueError: on purpose"),
    (RUN + "synth.webshaper.environment=chess", "chess"),
    (RUN + "'rollout.environments.kinds={tools={options={file=\"{folder}/tools.toml\"}}}'", "in the tools file"),
    (RUN + "policy.path={folder}/mute --set rollout.limits.max_context_tokens=200", "mute cannot"),
    (RUN + "'rollout.environments.kinds={tools={options={file=\"{folder}/bare.toml\"}}}'", "has no type annotation for 'word'"),
    (RUN + "'rollout.environments.kinds={tools={options={file=\"{folder}/server.toml\"}}}'", "'no-such-program', which is not installed"),
    (RUN + "'rollout.environments.kinds={mine={factory=\"{folder}/code.py:environment\"}}'", "is called with (resources)"),
    (RUN + "rollout.loop={folder}/code.py:loop", "is called with (engine, dialect, limits)"),
    (RUN + "'rl.rewards.parts={\"{folder}/code.py:reward\"=1}'", "is called with (attempts, context)"),
    ("run --profile {small} --home {folder}/file", "file is not a folder"),
    (RUN + "policy.width=131072 --set policy.intermediate_size=1048576 --set policy.layers=80 --set policy.heads=64", "GiB free"),
    ("run --profile {folder}/broken.toml --home {new}", "is not TOML"),
    ("train sft --home {home}", "`flywheel init"),
    ("fly --home {home}", "'fly'"),
    ("rollout --home {home} --policy nobody --suite train", "has no policy 'nobody'; it has t1-sft"),
    ("rollout --home {home} --policy t1-rl --suite train", "1` makes it"),
    ("policy serve nobody --home {home}", "has no policy 'nobody'; it has t1-sft"),
    ("policy serve t1-sft --home {home} --host 0.0.0.0", "set --api-key or FLYWHEEL_API_KEY"),
    ("chat t1-rl --home {home} --tools search", "1` makes it"),
    ("chat t1-sft --home {home} --tools chess", "chess"),
    ("eval --home {home} --policy t1-sft --suite held_out", "`flywheel synth"),
    ("rollout --home {home} --policy t1-sft --tasks 'colour = 3'", "--tasks is not a valid condition"),
    ("rollout --home {home} --policy teacher --suite train", "synth.teacher.kind"),
    ("rollout --home {home} --policy t1-sft --tasks 'hops = 1' --temperature 0.001", "0.01 to 2, not 0.001"),
    ("eval --home {home} --suite held_out", "--policy (it has t1-sft)"),
    (EVAL + "--suite tasks --set source.path={folder}/tasks.jsonl --set source.documents=nothing", "source.documents"),
    (EVAL + "--suite tasks --set source.path={folder}/broken.toml", "is not valid JSON"),
    ("sql 'SELECT * FROM nothing' --home {home}", "nothing"),
    ("sql 'SELECT 1' --home {new}", "has no lake"),
    ("show nobody --home {home}", "nobody"),
    ("reverify --home {home} --verifier judge", "evaluation.judge.kind"),
    ("traces --home {home} --to ftp://nowhere", "ftp://nowhere"),
    ("lake pin 'two words' --home {home}", "two words"),
    ("sql 'FROM duckdb_databases' --home {home}", "connection"),
    ("import chess {folder}/tasks.jsonl --home {new}", "chess"),
    ("import documents {folder}/nothing --home {new}", "nothing does not exist"),
    ("validate --home {new}", "has no lake"),
    ("extract {folder}/full --to {folder}/graph", "teacher"),
    ("lake pin mine --home {home} --query 'DELETE FROM tasks'", "query"),
    ("deploy --home {home} --pool p --schedule tea=x", "tea"),
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home with a policy, tasks and a trajectory, and files that are wrong in one way each."""
    folder = tmp_path_factory.mktemp("wrong")
    policy = create_tiny_policy(folder / "policy", seed=0)
    texts = {
        "deaf.jinja": "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}",
        "raising.py": "raise ValueError('on purpose')\n",
        "code.py": "def look_up(word) -> str: ...\ndef reward(completions): ...\ndef environment(): ...\ndef loop(engine): ...\n",
        "bare.toml": '[tools.look_up]\nfunction = "code.py:look_up"\n',
        "server.toml": '[servers.web]\ncommand = ["no-such-program"]\n',
        "tools.toml": "[tools.search]\nfunction = 3\n",
        "broken.toml": "seed = \n",
        "tasks.jsonl": json.dumps({"question": "Who?", "answers": ["Ann"]}) + "\n",
        "file": "",
        "full/letter.txt": "Dear Ann",
    }
    shutil.copytree(policy, folder / "mute", ignore=shutil.ignore_patterns("tokenizer*"))
    (folder / "full").mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
    home = Home(folder / "home")
    home.claim(load_config(SMALL))
    with Lake(home.root) as lake:
        lake.add([Policy("t1-sft", None, "sft", "policies/t1-sft", digest_files(policy), None)])
        lake.add([Task("k", "search", "Who?", ("Ann",))])
        lake.add([Trajectory("t", "k", "t1-sft", "eval", 3, (), (), StopReason.MAX_TURNS, None, None, 0, None, None)])
    with closing(sqlite3.connect(home.root / "lake" / "catalog.sqlite")) as catalogue:  # else a request that only reads may do it
        catalogue.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (folder / "current").mkdir()
    return {"small": SMALL, "folder": str(folder), "policy": str(policy), "home": str(home.root), "new": str(folder / "new")}


def filled(text: str, places: dict[str, str]) -> list[str]:
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", value)
    return shlex.split(text)


def contents(folder: Path) -> dict[str, str]:
    """The digests of all that lies in a folder, without what SQLite leaves beside a catalogue and what Python keeps of a file it read."""
    found = (path for path in sorted(folder.rglob("*")) if not path.name.endswith(("-wal", "-shm")) and path.name != "lock")
    found = (path for path in found if "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder" for path in found}


@pytest.mark.parametrize(("command", "told"), REQUESTS)
def test_a_wrong_request_is_one_sentence_with_status_2_and_nothing_is_written(
    command: str, told: str, places: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(places["folder"])
    monkeypatch.chdir(folder / "current")
    monkeypatch.delenv("FLYWHEEL_HOME", raising=False)
    before, began = contents(folder), processor_seconds()
    result = CliRunner().invoke(app, filled(command, places))
    seconds = processor_seconds() - began
    capsys.readouterr()
    assert isinstance(result.exception, Exception), result.output
    status = exit_status(result.exception)
    said = capsys.readouterr().err
    assert status == 2 and told in said, said
    assert said.startswith("flywheel: ") and len(said.strip().splitlines()) == 1, said
    assert len(said) < 700 and "Traceback" not in said and "validation error" not in said, said
    assert seconds < LONGEST_SECONDS
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["run --profile {small} --home {new} --set seed=many", "sql 'SELECT * FROM nothing' --home {home}"])
def test_the_command_in_a_process_ends_with_status_2(command: str, places: dict[str, str]) -> None:
    folder = Path(places["folder"])
    before = contents(folder)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [sys.executable, "-m", "flows.cli", *filled(command, places)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=folder / "current", env=environment, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("flywheel: ") and len(done.stderr.splitlines()) == 1
    assert contents(folder) == before
