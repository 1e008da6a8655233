"""What a configuration names is checked before anything starts: one sentence, status 2, nothing written, and long before a stage would."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.config import load_config
from flows.preflight import preflight
from tests.rl.conftest import create_tiny_policy
from warehouse.errors import RequestError

SMALL = str(Path(__file__).parent.parent / "end_to_end" / "small.toml")


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def files(folder: Path) -> dict[str, Path]:
    """A policy of the project's own tokenizer, the same without weights, without a tokenizer, and a file of tools that is none."""
    policy = create_tiny_policy(folder / "policy", seed=0)
    for name, missing in (("weightless", "model.safetensors"), ("mute", "tokenizer.json")):
        (folder / name).mkdir()
        for file in policy.iterdir():
            if file.name != missing:
                (folder / name / file.name).write_bytes(file.read_bytes())
    (folder / "mute" / "tokenizer_config.json").unlink(missing_ok=True)
    (folder / "tools.toml").write_text("[tools.search]\nfunction = 3\n")
    (folder / "broken.py").write_text("def reward(:\n")
    return {"policy": policy, "folder": folder}


WRONG = (
    (["policy.path={folder}/nothing"], "holds no policy: there is no config.json in it"),
    (["policy.path={folder}/weightless", "rollout.limits.max_context_tokens=200"], "no file that ends in .safetensors or .bin"),
    (["policy.path={folder}/mute", "rollout.limits.max_context_tokens=200"], "has no tokenizer that can"),
    (["policy.path={policy}", "rollout.limits.max_context_tokens=100000"], "max_context_tokens = 100000 is more than"),
    (["policy.path={policy}", "rollout.limits.max_context_tokens=200", "rollout.dialect=chat"], "has no chat template"),
    (["rollout.dialect=chat"], "a policy from scratch has none"),
    (["rollout.dialect=chess"], "there is no dialect 'chess'"),
    (['rl.rewards.parts={"nothing"=1}'], "there is no part of the reward 'nothing'"),
    (['rl.rewards.parts={"{folder}/broken.py:reward"=1}'], "cannot be imported"),
    (['rl.rewards.parts={"{folder}/missing.py:reward"=1}'], "names a file that is not there"),
    (["rl.rewards.verifier=nobody"], "there is no verifier 'nobody'"),
    (["evaluation.verifier=nobody"], "verifier is 'nobody'"),
    (['rollout.environments.kinds={mine={factory="no_such:thing"}}'], "the environment 'no_such:thing' cannot be imported"),
    (['rollout.environments.kinds={tools={options={file="{folder}/missing.toml"}}}'], "cannot be read"),
    (['rollout.environments.kinds={tools={options={file="{folder}/tools.toml"}}}'], "in the file of tools"),
    (["rollout.loop=chess"], "there is no agent loop 'chess'"),
    (["synth.webshaper.environment=chess"], "there is no environment 'chess'"),
    (['cpt.general={path="{folder}/missing"}'], "cpt.general.path: there is no"),
    (["rollout.search.by=vectors", "rollout.search.encoder={folder}/missing"], "rollout.search.encoder: there is no"),
    (["synth.teacher.kind=openai", "synth.teacher.model=m", "synth.teacher.base_url=http://127.0.0.1:{port}/v1"], "nothing answers at"),
    (["corpus.kind=files", "corpus.path={folder}/missing"], "there is no folder"),
    (["wheel.stages=[]"], "wheel.stages"),
    (["rollout.limits.top_p=0.5"], "top_p must be 1"),
)


@pytest.mark.slow
def test_a_wrong_request_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    places = {**{name: str(path) for name, path in files(tmp_path).items()}, "port": str(closed_port())}
    for overrides, reason in WRONG:
        settings = [part for override in overrides for part in ("--set", filled(override, places))]
        for more in ([], ["--dry-run"]):
            result = CliRunner().invoke(app, ["run", "--profile", SMALL, "--home", str(tmp_path / "home"), *settings, *more])
            assert isinstance(result.exception, RequestError), (overrides, result.output, result.exception)
            assert reason in str(result.exception), overrides
            assert len(str(result.exception).splitlines()) == 1, overrides
    assert not (tmp_path / "home").exists()


def filled(text: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def test_what_is_there_passes() -> None:
    preflight(load_config("quickstart"))
