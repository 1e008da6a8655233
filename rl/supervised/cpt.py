"""Agentic continual pre-training: packed text of all kinds (documents, plans, reasoning, decisions), with loss on all tokens.

Trains in one stage, or several with growing context (AgentFounder, arXiv 2509.13310: 32 K tokens, then 128 K on the long examples), each
with its own trainer, schedule and checkpoints; steps are numbered across stages. Each may mix in general text against forgetting (Tongyi
DeepResearch, technical report, 2025), cut into pieces of the context length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.learner.base import TrainResult
from rl.learner.trainers import CHECKPOINTS, OnMetric
from rl.policies.policy import load_policy
from rl.ray_runtime import RayConfig
from rl.renderers.examples import EncodedExample
from rl.renderers.plain_text import PlainText
from rl.supervised.config import CptConfig
from rl.supervised.training import passes_of, train_on_examples
from warehouse.digests import seed_from
from warehouse.errors import RequestError

SUMS = ("examples", "tokens", "trained_tokens", "rows", "steps", "seconds")
"""Metrics that are summed over stages."""


def train_cpt(
    policy_path: Path,
    examples: Sequence[EncodedExample],
    output: Path,
    config: CptConfig,
    seed: int,
    on_metric: OnMetric,
    general: Sequence[str] = (),
    ray: RayConfig | None = None,
) -> TrainResult:
    """Train the policy in `policy_path` on all tokens of `examples` and write it to `output`; the same call resumes an interrupted run.

    Metrics: examples, examples_left_out (too long), tokens, trained_tokens, rows, packed (fraction of the rows' capacity), steps, seconds
    (of this call), loss in nats per token. With `config.contexts` they cover all stages, and `stage_N` holds each stage's; stages without
    examples are skipped. With `config.general`: general_tokens, general_share, general_loss_before and general_loss_after.

    Args:
        general: texts from which `config.general` takes its share.

    Raises:
        RequestError: nothing to train on, or a stage's rows cannot be divided among the workers.
    """
    if not config.contexts and config.general is None:
        return train_on_examples(policy_path, examples, output, config, seed, on_metric, masked=False, ray=ray)
    tokenizer = AutoTokenizer.from_pretrained(policy_path, local_files_only=True, trust_remote_code=False)
    read, held_out = split_texts(general, config.general.held_out, seed) if config.general else ([], [])
    before = _loss_of(policy_path, held_out, output, config, ray) if held_out else None
    if before is not None:
        on_metric(0, {"general_loss": before})
    filled = [example for example in examples if example.token_ids]
    result = _in_stages(policy_path, filled, read, tokenizer, output, config, seed, on_metric, ray)
    if before is None:
        return result
    after = _loss_of(output, held_out, output, config, ray)
    on_metric(result.metrics["steps"], {"general_loss": after})
    return TrainResult(output, {**result.metrics, "general_loss_before": before, "general_loss_after": after})


def stages_of(config: CptConfig) -> list[CptConfig]:
    """Settings of each stage. Rows grow with the context and their number per step falls, so that a step keeps its token count."""
    return [_with_context(config, context) for context in config.contexts] or [config]


def _with_context(config: CptConfig, context: int) -> CptConfig:
    rows, at_once = (max(1, size * config.row_tokens // context) for size in (config.rows_per_step, config.rows_per_pass))
    lengths = {"row_tokens": context, "max_example_tokens": context}
    return config.model_copy(update={**lengths, "rows_per_step": rows, "rows_per_pass": math.gcd(rows, at_once)})


def _in_stages(
    policy_path: Path,
    examples: Sequence[EncodedExample],
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    config: CptConfig,
    seed: int,
    on_metric: OnMetric,
    ray: RayConfig | None,
) -> TrainResult:
    """Train stage by stage; all but the last write their policy next to the checkpoints, for resuming."""
    for stage in stages_of(config):
        passes_of(stage)  # fail before the first stage if any stage is invalid
    parts = _by_context(examples, stages_of(config))
    used = [number for number, (_, chosen) in parts.items() if chosen]
    if not used:
        raise RequestError(f"nothing to pre-train on: no example has 1 to {stages_of(config)[-1].max_example_tokens} tokens.")
    found: dict[int, dict[str, Any]] = {number: {"examples": 0} for number in parts}
    start, done = policy_path, 0
    for number in used:
        stage, chosen = parts[number]
        folder = output if number == used[-1] else output / CHECKPOINTS / f"stage_{number}"
        mixed, metrics = _mix(chosen, texts, tokenizer, stage, seed_from(seed, number))
        seed_of_stage = seed if number == 1 else seed_from(seed, number)
        result = train_on_examples(start, mixed, folder, stage, seed_of_stage, _shifted(on_metric, done), masked=False, ray=ray)
        found[number] = {**result.metrics, **metrics}
        start, done = folder, done + result.metrics["steps"]
    left_out = len(examples) - sum(len(chosen) for _, chosen in parts.values())
    return TrainResult(output, _together(found, left_out, config))


def _by_context(examples: Sequence[EncodedExample], stages: Sequence[CptConfig]) -> dict[int, tuple[CptConfig, list[EncodedExample]]]:
    """Each stage by number (from 1), with the examples that fit its context but not the previous one."""
    limits = [0, *(stage.max_example_tokens for stage in stages)]
    return {
        number: (stage, [example for example in examples if limits[number - 1] < len(example.token_ids) <= limits[number]])
        for number, stage in enumerate(stages, start=1)
    }


def _mix(
    examples: Sequence[EncodedExample], texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, stage: CptConfig, seed: int
) -> tuple[list[EncodedExample], dict[str, Any]]:
    """A stage's examples with its share of general text, from a different offset in each stage."""
    if stage.general is None:
        return list(examples), {}
    tokens = sum(len(example.token_ids) for example in examples)
    turn = seed % len(texts)
    pieces = stretches([*texts[turn:], *texts[:turn]], tokenizer, stage.row_tokens)
    taken = take(pieces, round(tokens * stage.general.share / (1 - stage.general.share)))
    return [*examples, *taken], {"general_tokens": sum(len(example.token_ids) for example in taken)}


def _shifted(on_metric: OnMetric, steps: int) -> OnMetric:
    return lambda step, metrics: on_metric(steps + step, metrics)


def _together(found: Mapping[int, Mapping[str, Any]], left_out: int, config: CptConfig) -> dict[str, Any]:
    trained = [stage for stage in found.values() if stage["examples"]]
    metrics: dict[str, Any] = {**trained[-1], **{name: sum(stage[name] for stage in trained) for name in SUMS}}
    room = sum(stage["tokens"] / stage["packed"] for stage in trained)
    metrics |= {"examples_left_out": left_out, "packed": metrics["tokens"] / room}
    if config.general is not None:
        tokens = sum(stage["general_tokens"] for stage in trained)
        metrics |= {"general_tokens": tokens, "general_share": tokens / metrics["tokens"]}
    return metrics | ({f"stage_{number}": dict(stage) for number, stage in found.items()} if config.contexts else {})


LONGEST_TEXT = 200_000
"""Maximum characters that are encoded at once."""


def split_texts(texts: Sequence[str], held_out: int, seed: int) -> tuple[list[str], list[str]]:
    """Split distinct texts into training and held-out ones, in a seeded order. Raises RequestError if none is left to train on."""
    ordered = sorted(dict.fromkeys(texts), key=lambda text: (seed_from("general", seed, text), text))
    if len(ordered) <= held_out:
        raise RequestError(f"cpt.general has {len(ordered)} distinct texts; held_out = {held_out} leaves none to train on.")
    return ordered[held_out:], ordered[:held_out]


def stretches(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, context: int) -> Iterator[tuple[int, ...]]:
    """Token ids of `texts`, without control tokens, in pieces of at most `context` tokens."""
    plain = PlainText(tokenizer)
    for text in texts:
        for start in range(0, len(text), LONGEST_TEXT):
            ids = plain.ids(text[start : start + LONGEST_TEXT])
            yield from (ids[place : place + context] for place in range(0, len(ids), context))


def take(pieces: Iterator[tuple[int, ...]], tokens: int) -> list[EncodedExample]:
    """Convert the next `pieces` to examples, until they have `tokens` tokens."""
    taken: list[EncodedExample] = []
    while tokens > 0 and (ids := next(pieces, None)) is not None:
        taken.append(EncodedExample(ids, (True,) * len(ids)))
        tokens -= len(ids)
    return taken


def _loss_of(policy_path: Path, texts: Sequence[str], folder: Path, config: CptConfig, ray: RayConfig | None) -> float:
    if not config.learner.on_ray:
        return mean_loss(policy_path, texts, config.row_tokens)
    from rl.learner.group import learn_on_workers  # imports Ray, which a single process does not need

    device, path, context = "cuda" if config.learner.gpus else "cpu", policy_path.resolve(), config.row_tokens
    alone = config.learner.model_copy(update={"workers": 1, "sharded": False})
    return learn_on_workers(alone, ray, lambda _: mean_loss(path, texts, context, device), {})


@torch.no_grad()
def mean_loss(policy_path: Path, texts: Sequence[str], context: int, device: str = "cpu") -> float:
    """Mean loss of a policy on `texts` in nats per token, each token with at most `context` tokens before it."""
    model, tokenizer = load_policy(policy_path)
    torch.nn.Module.to(model, device)
    total, tokens = 0.0, 0
    for stretch in stretches(texts, tokenizer, context):  # one per pass, since not every model separates sequences of one row
        if len(stretch) > 1:
            ids = torch.tensor([stretch], device=device)
            total += model(input_ids=ids, labels=ids, use_cache=False).loss.item() * (len(stretch) - 1)
            tokens += len(stretch) - 1
    return total / tokens
