"""A learner's end of weight transfers, adapters over a policy, and a sampler with engines, for tests of what comes to engines and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from rl.engines.base import Generation
from rl.policies.policy import as_saved, load_policy, save_policy
from rl.policies.transfer import adapter_weights, save_adapters
from rl.rollouts.collect import Collected
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from tests.rl.conftest import DOCUMENTS
from tests.rl.engines.probing import generate_all, prompts
from tests.rl.toy import Sampler

RANK = 4
ENGINE = {"kv_cache_gib": 0.1, "cpus": 0.25, "transfer": "gloo", "transfer_timeout_seconds": 60}


def start(policy: Path, address: str | None = None, context: int = 240, kinds: Any = None, **changes: Any) -> Rollouts:
    """An engine that weights are sent to, with `changes` of its settings, on the Ray cluster at an address or on this machine's own."""
    limits = {"max_action_tokens": 60, "max_observation_tokens": 32, "max_context_tokens": context}
    settings = {"limits": limits, "engine": ENGINE | changes, "ray": {"address": address}, "environments": {"kinds": kinds or {}}}
    return Rollouts.start(RolloutConfig.model_validate(settings), policy, DOCUMENTS)


class Learner:
    """A learner's end. `before` is called with each step that the engines are to make."""

    def __init__(self, engines: Rollouts, before: Callable[[str], None] = lambda step: None) -> None:
        from rl.engines.weight_sender import WeightSender  # vLLM

        weight_sync = engines.weight_sync

        def step(name: str, told: dict[str, Any]) -> str | None:
            before(name)
            return weight_sync.step(name, told)

        self.engines = engines
        self.sender = WeightSender(replace(weight_sync, step=step))

    def send(self, policy: Path, folder: Path, version: int) -> bool:
        """Send the weights that lie in `policy`, as those that `folder` will hold; whether the engines have them."""
        model = load_policy(policy)[0]
        return self.sender.send(as_saved(model, model.state_dict()), folder, version)

    def publish(self, policy: Path, folder: Path, version: int) -> bool:
        """Send them, write them and have the engines look into the folder, as the learner does where one is left out."""
        sent = self.send(policy, folder, version)
        save_policy(*load_policy(policy), folder)
        self.engines.load_weights(folder, version)
        return sent


def adapted(policy: Path, folder: Path, seed: int = 0) -> PreTrainedModel:
    """Write random adapters over a policy, and return the model that has them."""
    torch.manual_seed(seed)
    model: Any = get_peft_model(load_policy(policy)[0], LoraConfig(r=RANK, lora_alpha=8, target_modules="all-linear"))
    for name, weight in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(weight, std=0.05)
    save_adapters(model.peft_config["default"], adapter_weights(model), folder)
    merged: PreTrainedModel = model.merge_and_unload()
    return merged.eval()


def said(engines: Rollouts, count: int = 6) -> list[Generation]:
    """What the engines sample now, which is the same as long as the weights are."""
    return engines.wait(generate_all(engines.pool, prompts(count), 24))


def versions(generations: list[Generation]) -> set[int]:
    return {version for generation in generations for version in generation.policy_versions}


def assert_same(ours: list[Generation], theirs: list[Generation]) -> None:
    """The same tokens with the same log-probabilities, bit for bit."""
    assert [each.token_ids for each in ours] == [each.token_ids for each in theirs]
    assert [each.logprobs for each in ours] == [each.logprobs for each in theirs]


def said_by_files(engines: Rollouts, policy: Path, version: int) -> list[Generation]:
    engines.load_weights(policy, version)
    return said(engines)


class EngineSampler(Sampler):
    """The toy's sampler, with engines in the place of a model; notes which files of weights there are as each step is collected."""

    def __init__(self, engines: Rollouts, folder: Path) -> None:
        super().__init__(samples=4)
        self.engines, self.folder = engines, folder
        self.files: dict[int, set[str]] = {}

    def collect(self, step: int) -> Collected:
        self.files[step] = {file.parent.name for file in (self.folder / "weights").rglob("*") if file.is_file()}
        return super().collect(step)

    def generate(self, contexts: list[list[int]], tokens: int) -> list[tuple[list[int], list[float]]]:
        generations = self.engines.wait(generate_all(self.engines.pool, [tuple(context) for context in contexts], tokens))
        return [(list(each.token_ids), list(each.logprobs)) for each in generations]
