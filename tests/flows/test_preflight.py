"""What a configuration names is checked before anything starts: one sentence, status 2, nothing written, and long before a stage would."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from transformers import Qwen2Tokenizer
from typer.testing import CliRunner

from flows.cli import app
from flows.config import load_config
from flows.preflight import check_teacher, disk_needed, preflight
from rl.policies.policy import load_policy, save_policy
from rl.policies.tokenization import SPECIAL_TOKENS, TAG_TOKENS
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
    (folder / "bare.toml").write_text('[tools.look_up]\nfunction = "code.py:look_up"\n')
    (folder / "server.toml").write_text('[servers.web]\ncommand = ["no-such-program"]\n')
    (folder / "code.py").write_text(CODE)
    return {"policy": policy, "folder": folder}


CODE = """
def look_up(word) -> str:
    return word

def reward(completions, **columns): return 0.0

def environment(): ...

def loop(engine): ...

class Judge:
    name, version = "mine", "1"
    def verify(self, answer): ...

from eval.graders.verifiers import Grader
grader = Grader("mine", "1", lambda answer: (1.0, True))
"""

WRONG = (
    (["policy.path={folder}/mute", "rollout.limits.max_context_tokens=200"], "has no tokenizer that can"),
    (["rollout.dialect=mine", "rollout.dialects={mine={}}"], "rollout.dialect = mine needs a chat template"),
    (['rollout.environments.kinds={mine={factory="no_such:thing"}}'], "the environment 'no_such:thing' cannot be imported"),
    (['rollout.environments.kinds={tools={options={file="{folder}/bare.toml"}}}'], "has no type annotation for 'word': add one"),
    (['rollout.environments.kinds={tools={options={file="{folder}/server.toml"}}}'], "there is no such program: install it"),
    (['rollout.environments.kinds={mine={factory="tools"}}'], "rollout.environments.kinds.mine"),
    (['rollout.environments.kinds={mine={factory="{folder}/code.py:environment"}}'], "takes (), and is called with (resources)"),
    (["rollout.loop={folder}/code.py:loop"], "is called with (engine, dialect, limits)"),
    (['rl.rewards.parts={"{folder}/code.py:reward"=1}'], "takes (completions, **columns), and is called with (attempts, context)"),
    (["rl.learning_rate=100"], "rl.learning_rate must be less than or equal to 1, not 100"),
    (['cpt.general={path="{folder}/missing"}'], "cpt.general.path: there is no"),
)


@pytest.mark.slow
def test_a_wrong_request_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    places = {**{name: str(path) for name, path in files(tmp_path).items()}, "port": str(closed_port())}
    for overrides, reason in WRONG:
        settings = [part for override in overrides for part in ("--set", filled(override, places))]
        result = CliRunner().invoke(app, ["run", "--profile", SMALL, "--home", str(tmp_path / "home"), *settings, "--dry-run"])
        assert isinstance(result.exception, RequestError), (overrides, result.output, result.exception)
        assert reason in str(result.exception), overrides
        assert len(str(result.exception).splitlines()) == 1, overrides
    assert not (tmp_path / "home").exists()


def filled(text: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def unreachable(setting: str = "synth.teacher") -> list[str]:
    return [f"{setting}.{rest}" for rest in ("kind=openai", "model=m", f"base_url=http://127.0.0.1:{closed_port()}/v1")]


def test_a_teacher_is_looked_for_only_where_questions_are_still_to_be_made() -> None:
    config = load_config("quickstart", unreachable())
    preflight(config, synthesis=())
    with pytest.raises(RequestError, match=r"^synth\.teacher\.base_url: nothing answers at"):
        preflight(config, synthesis=(1,))
    check_teacher(config, 1, "webshaper")
    later = load_config("quickstart", unreachable("later.synth.teacher"))
    preflight(later, synthesis=(1,))
    with pytest.raises(RequestError, match=r"^later\.synth\.teacher\.base_url: nothing answers at"):
        preflight(later, synthesis=(2,))


def test_adapters_are_refused_where_nobody_would_train_the_embeddings_of_new_tags(tmp_path: Path) -> None:
    known = create_tiny_policy(tmp_path / "known", seed=0)
    model, ours = load_policy(known)
    vocabulary = [token for token in ours.get_vocab() if token not in SPECIAL_TOKENS]
    foreign = Qwen2Tokenizer(vocab={token: number for number, token in enumerate(vocabulary)}, merges=[])
    save_policy(model, foreign, tmp_path / "foreign")

    def check(model: str, *overrides: str) -> None:
        path = [f"policy.path={tmp_path / model}", "rollout.limits.max_context_tokens=200", 'wheel.stages=["sft", "rl"]']
        preflight(load_config(SMALL, [*path, *overrides]))

    with pytest.raises(RequestError) as refused:
        check("foreign", "sft.lora.rank=4")
    assert str(refused.value) == (
        f"sft.lora leaves embeddings as they are, and the dialect tags brings {len(TAG_TOKENS)} tokens that the model in policy.path has "
        "never seen: take rollout.dialect = chat, or train the weights in sft."
    )
    check("foreign", "rl.lora.rank=4")  # SFT has trained them by then
    check("known", "sft.lora.rank=4")


# Room on the disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Path]]:
    """Gives every disk so many free bytes; what is asked about comes into the list."""

    def with_free(free: int) -> list[Path]:
        asked: list[Path] = []

        def usage(folder: Path) -> object:
            asked.append(Path(folder))
            return type("Usage", (), {"free": free})()

        monkeypatch.setattr(shutil, "disk_usage", usage)
        return asked

    return with_free


def test_a_command_asks_for_what_it_writes_itself(tmp_path: Path, disk: Callable[[int], list[Path]]) -> None:
    config = load_config(SMALL)
    asked = {stage: sum(disk_needed(config, stages=[stage]).values()) for stage in ("init", "sft", "rl")}
    for stage, needed in asked.items():
        disk(needed)
        preflight(config, tmp_path, stages=[stage])
        disk(needed - 1)
        with pytest.raises(RequestError, match="make room"):
            preflight(config, tmp_path, stages=[stage])
    assert 8 * asked["init"] <= asked["sft"] + asked["init"] < asked["rl"] + asked["init"], "checkpoints are what costs"


def test_what_an_iteration_needs_follows_from_the_weights_and_the_stages(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": np.zeros((10, 30), np.float32), "b": np.zeros(200, np.float16)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_bytes(bytes(9_000))
    weights = 4 * 500  # four bytes a number in what is written, whatever they are read from
    checkpoints, published = 2 * 3 * weights, 3 * weights
    for stages in ('["cpt", "sft", "rl"]', '["rl"]'):
        config = load_config(SMALL, [f"policy.path={tmp_path}", f"wheel.stages={stages}"])
        assert sum(disk_needed(config).values()) == (len(config.wheel.stages) + 1) * weights + checkpoints + published
    config = load_config(SMALL, [f"policy.path={tmp_path}", 'wheel.stages=["sft"]'])
    assert sum(disk_needed(config).values()) == 2 * weights + checkpoints, "nothing is published where no engine learns of it"
    half = load_config(SMALL, [f"policy.path={tmp_path}", 'wheel.stages=["sft", "rl"]', "sft.policy_dtype=bfloat16"])
    assert sum(disk_needed(half).values()) == 2.5 * weights + checkpoints + published, "checkpoints stay in float32"
    config = load_config(SMALL, [f"policy.path={tmp_path}", 'wheel.stages=["rl"]', "rollout.engine.dtype=bfloat16"])
    assert sum(disk_needed(config).values()) == 2 * weights + checkpoints + published / 2, "engines are given theirs"
