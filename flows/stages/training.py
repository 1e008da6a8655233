"""The first policy, and the two supervised stages: each takes the policy before it and examples from the lake, and leaves a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flows.plan import policy_id
from flows.runs import StageRun
from flows.stages.policies import finish, register
from flows.workshop import Workshop
from rl.config import CptConfig
from rl.learning.cpt import train_cpt
from rl.learning.sft import train_sft
from rl.policies.policy import create_policy
from synth.worlds.world import world_words
from warehouse import Example, Failure
from warehouse.corpora.texts import read_texts
from warehouse.digests import seed_from

CPT_KINDS = ("document", "fas_plan", "fas_reason", "has")


def initialise(shop: Workshop, run: StageRun) -> dict[str, Any]:
    """Make the first policy, its tokenizer trained on the training corpus where it is from scratch."""
    policy = policy_id(0, "init")
    folder = shop.home.policies / policy
    examples = shop.lake.examples()
    texts = [example.text for example in examples[:: max(1, len(examples) // 20_000)]]
    create_policy(
        shop.config.policy,
        texts,
        world_words() if shop.config.corpus.kind == "generated" else (),
        folder,
        seed_from(shop.config.seed, "policy"),
    )
    register(shop, policy, None, "init", folder, 0)
    return {"policy": policy}


def pretrain(shop: Workshop, run: StageRun, turn: int, parent: str) -> dict[str, Any]:
    """Agentic continual pre-training on documents, plans, reasoning and decision records of this turn."""
    examples = _examples(shop, CPT_KINDS, turn)
    return _supervise(shop, run, turn, "cpt", parent, examples)


def finetune(shop: Workshop, run: StageRun, turn: int, parent: str, variant: str = "") -> dict[str, Any]:
    """Cold-start SFT on the trajectories chosen for this turn, observations masked; `variant` tells policies of other parents apart."""
    return _supervise(shop, run, turn, "sft", parent, _examples(shop, ("trajectory",), turn), variant)


def _supervise(
    shop: Workshop, run: StageRun, turn: int, stage: str, parent: str, examples: Sequence[Example], variant: str = ""
) -> dict[str, Any]:
    settings = shop.config.for_turn(turn)
    folder = shop.home.policies / policy_id(turn, stage, variant)
    start, seed = shop.folder(shop.policy(parent)), seed_from(shop.config.seed, run.id)
    if stage == "cpt":
        texts, unread = _general_texts(settings.cpt)
        result = train_cpt(start, examples, folder, settings.cpt, seed, run.metric, general=texts, ray=shop.config.rollout.ray)
        shop.lake.add(unread)
    else:
        result = train_sft(start, examples, folder, settings.sft, seed, run.metric, ray=shop.config.rollout.ray)
    return finish(shop, run, turn, stage, parent, result, variant)


def _general_texts(config: CptConfig) -> tuple[list[str], list[Failure]]:
    """The general text that pre-training takes its share of, and what of it cannot be read."""
    if config.general is None:
        return [], []
    texts, failures = read_texts(config.general.path, config.general.column)
    return texts, [replace(failure, stage="cpt") for failure in failures]


def _examples(shop: Workshop, kinds: Sequence[str], turn: int) -> list[Example]:
    return [example for example in shop.lake.examples(kinds) if example.wheel_turn == turn]
