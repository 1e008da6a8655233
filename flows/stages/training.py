"""The first policy, and the two supervised stages: each takes the policy before it and examples from the lake, and leaves a policy.

What every training stage leaves is a folder, and a row of `policies` in the lake.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.context import RunContext
from flows.plan import policy_id
from flows.stage_run import StageRun
from rl.config import CptConfig
from rl.policies.policy import create_policy
from rl.training.cpt import train_cpt
from rl.training.supervised import train_sft
from synth.worlds.world import world_words
from warehouse import Example, Failure, Policy
from warehouse.corpora.files import read_texts
from warehouse.digests import digest_files, seed_from

if TYPE_CHECKING:
    from rl.training.base import TrainResult


CPT_KINDS = ("document", "fas_plan", "fas_reason", "has")


def initialise(context: RunContext, run: StageRun) -> dict[str, Any]:
    """Make the first policy, its tokenizer trained on the training corpus where it is from scratch."""
    policy = policy_id(0, "init")
    folder = context.home.policies / policy
    examples = context.lake.examples()
    texts = [example.text for example in examples[:: max(1, len(examples) // 20_000)]]
    create_policy(
        context.config.policy,
        texts,
        world_words() if context.config.corpus.kind == "generated" else (),
        folder,
        seed_from(context.config.seed, "policy"),
    )
    register(context, policy, None, "init", folder, 0)
    return {"policy": policy}


def pretrain(context: RunContext, run: StageRun, turn: int, parent: str) -> dict[str, Any]:
    """Agentic continual pre-training on documents, plans, reasoning and decision records of this turn."""
    examples = _examples(context, CPT_KINDS, turn)
    return _supervise(context, run, turn, "cpt", parent, examples)


def finetune(context: RunContext, run: StageRun, turn: int, parent: str, variant: str = "") -> dict[str, Any]:
    """Cold-start SFT on the trajectories chosen for this turn, observations masked; `variant` tells policies of other parents apart."""
    return _supervise(context, run, turn, "sft", parent, _examples(context, ("trajectory",), turn), variant)


def _supervise(
    context: RunContext, run: StageRun, turn: int, stage: str, parent: str, examples: Sequence[Example], variant: str = ""
) -> dict[str, Any]:
    settings = context.config.for_turn(turn)
    folder = context.home.policies / policy_id(turn, stage, variant)
    start, seed = context.folder(context.policy(parent)), seed_from(context.config.seed, run.id)
    if stage == "cpt":
        texts, unread = _general_texts(settings.cpt)
        result = train_cpt(start, examples, folder, settings.cpt, seed, run.metric, general=texts, ray=context.config.rollout.ray)
        context.lake.add(unread)
    else:
        result = train_sft(start, examples, folder, settings.sft, seed, run.metric, ray=context.config.rollout.ray)
    return finish(context, run, turn, stage, parent, result, variant)


def _general_texts(config: CptConfig) -> tuple[list[str], list[Failure]]:
    """The general text that pre-training takes its share of, and what of it cannot be read."""
    if config.general is None:
        return [], []
    texts, failures = read_texts(config.general.path, config.general.column)
    return texts, [replace(failure, stage="cpt") for failure in failures]


def _examples(context: RunContext, kinds: Sequence[str], turn: int) -> list[Example]:
    return [example for example in context.lake.examples(kinds) if example.wheel_turn == turn]


def finish(
    context: RunContext, run: StageRun, turn: int, stage: str, parent: str, result: TrainResult, variant: str = ""
) -> dict[str, Any]:
    """Register the policy that training made, and take away what only its resumption needed; returns the stage's figures."""
    policy = policy_id(turn, stage, variant)
    register(context, policy, parent, stage, result.path, turn, run.run.snapshot_before)
    for name in ("checkpoints", "weights"):
        shutil.rmtree(result.path / name, ignore_errors=True)
    return {"policy": policy, **result.figures}


def register(
    context: RunContext, policy: str, parent: str | None, stage: str, folder: Path, turn: int, snapshot: int | None = None
) -> None:
    """Enter a policy into the lake: its path relative to the home, so that a home can be moved, and the digest of its files."""
    context.lake.replace([Policy(policy, parent, stage, str(folder.relative_to(context.home.root)), digest_files(folder), snapshot, turn)])
