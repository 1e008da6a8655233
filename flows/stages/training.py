"""The first policy and the supervised stages, CPT and SFT. Every training stage leaves a folder and a row in `policies`."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from flows.context import RunContext, StageRun
from flows.inputs import check_examples
from flows.plan import policy_id
from rl.policies.policy import create_policy
from rl.renderers.base import Truncation
from rl.renderers.examples import EncodedExample, encode_examples
from rl.renderers.registry import open_dialect
from rl.renderers.tags import tagged_text
from rl.rollouts.config import RolloutConfig
from rl.supervised.config import CptConfig, SftConfig
from rl.supervised.cpt import train_cpt
from rl.supervised.training import train_sft
from synth.parts import CPT_KINDS, SFT_KINDS
from synth.worlds.world import world_words
from warehouse import Example, Failure, Policy
from warehouse.corpora.files import read_texts
from warehouse.digests import digest_files, seed_from

if TYPE_CHECKING:
    from rl.learner.base import TrainResult

log = logging.getLogger("flywheel")


def initialise(context: RunContext, run: StageRun) -> dict[str, Any]:
    """Create the first policy. From scratch, its tokenizer is trained on the training text."""
    policy = policy_id(0, "init")
    folder = context.home.policies / policy
    examples = context.lake.examples()
    texts = [tagged_text(example.parts) for example in examples[:: max(1, len(examples) // 20_000)]]
    create_policy(
        context.config.policy,
        texts,
        world_words() if context.config.corpus.kind == "generated" else (),
        folder,
        seed_from(context.config.seed, "policy"),
        tags=context.config.rollout.speaks_tags,
    )
    register(context, policy, None, "init", folder, 0)
    return {"policy": policy}


def pretrain(context: RunContext, run: StageRun, turn: int, parent: str) -> dict[str, Any]:
    """Continue pre-training (CPT) on this iteration's documents, plans, reasoning and decision records."""
    config = context.config.for_turn(turn).cpt
    check_examples(context.lake, context.config, "cpt", turn)
    return supervise(context, run, turn, parent, context.lake.examples(CPT_KINDS, turn=turn), config)


def finetune(context: RunContext, run: StageRun, turn: int, parent: str, variant: str = "") -> dict[str, Any]:
    """Fine-tune (cold-start SFT) on this iteration's selected trajectories with observations masked. `variant` has another parent."""
    config = context.config.for_turn(turn).sft
    check_examples(context.lake, context.config, "sft", turn)
    return supervise(context, run, turn, parent, context.lake.examples(SFT_KINDS, turn=turn), config, variant)


def supervise(
    context: RunContext,
    run: StageRun,
    turn: int,
    parent: str,
    examples: Sequence[Example],
    config: CptConfig | SftConfig,
    variant: str = "",
) -> dict[str, Any]:
    """Train the policy `parent` on `examples`, by CPT or SFT according to `config`."""
    stage = "cpt" if isinstance(config, CptConfig) else "sft"
    folder = context.home.policies / policy_id(turn, stage, variant)
    start, seed = context.folder(context.policy(parent)), seed_from(context.config.seed, run.id)
    encoded, not_written = encode(context.config.rollout, start, examples)
    refused = {failure.item["example"] for failure in not_written}
    if not_written:
        log.warning("%s: %d of %d examples are not expressible: %s", run.run.id, len(refused), len(examples), not_written[0].reason)
    written = [example for example in examples if example.id not in refused]
    most = config.contexts[-1] if isinstance(config, CptConfig) and config.contexts else config.max_example_tokens
    context.lake.add([replace(failure, stage=stage) for failure in (*not_written, *_too_long(written, encoded, most))])
    context.rest_engines()
    if config.learner.on_ray:
        context.start_ray()
    ray = context.config.rollout.ray
    if isinstance(config, CptConfig):
        texts, unread = _general_texts(config)
        result = train_cpt(start, encoded, folder, config, seed, run.metric, general=texts, ray=ray)
        context.lake.add(unread)
    else:
        result = train_sft(start, encoded, folder, config, seed, run.metric, ray=ray)
    finished = finish(context, run, turn, stage, parent, result, variant)
    return {**finished, "examples_not_expressible": len(not_written)} if not_written else finished


def _too_long(examples: Sequence[Example], encoded: Sequence[EncodedExample], most: int) -> list[Failure]:
    lengths = [(example, len(own.token_ids)) for example, own in zip(examples, encoded, strict=True)]
    return [
        Failure(
            "train", "too_long", f"it has {length} tokens, and max_example_tokens is {most}", {"example": example.id, "kind": example.kind}
        )
        for example, length in lengths
        if length > most
    ]


def encode(config: RolloutConfig, policy: Path, examples: Sequence[Example]) -> tuple[list[EncodedExample], list[Failure]]:
    """Encode examples for the policy in folder `policy`, in its rollouts' dialect and limits. Also return failures for the rest."""
    tokenizer = AutoTokenizer.from_pretrained(policy, local_files_only=True, trust_remote_code=False)
    dialect = open_dialect(config.dialect, config.dialects, tokenizer)
    return encode_examples(examples, dialect, Truncation(config.limits.max_observation_tokens, config.limits.truncate))


def _general_texts(config: CptConfig) -> tuple[list[str], list[Failure]]:
    if config.general is None:
        return [], []
    texts, failures = read_texts(config.general.path, config.general.column)
    return texts, [replace(failure, stage="cpt") for failure in failures]


def finish(
    context: RunContext, run: StageRun, turn: int, stage: str, parent: str, result: TrainResult, variant: str = ""
) -> dict[str, Any]:
    """Register the trained policy and delete its checkpoints and published weights. Return the stage's metrics."""
    policy = policy_id(turn, stage, variant)
    register(context, policy, parent, stage, result.path, turn, run.run.snapshot_before)
    for name in ("checkpoints", "weights"):
        shutil.rmtree(result.path / name, ignore_errors=True)
    return {"policy": policy, **result.metrics}


def register(
    context: RunContext, policy: str, parent: str | None, stage: str, folder: Path, turn: int, snapshot: int | None = None
) -> None:
    """Store a policy in the lake, with its path relative to the home and the digest of its files."""
    context.lake.replace([Policy(policy, parent, stage, str(folder.relative_to(context.home.root)), digest_files(folder), snapshot, turn)])
