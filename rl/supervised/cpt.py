"""Agentic continual pre-training: packed text of every kind (documents, plans, reasoning, decisions), loss on all tokens.

In one stage, or in several of growing context (AgentFounder, arXiv 2509.13310: 32 K tokens, then 128 K on the long examples), each with a
share of general text. A stage has a trainer, a schedule and checkpoints of its own; its steps are counted on from those of the one before.

A policy that reads only agentic text forgets the rest. Tongyi DeepResearch (technical report, 2025) interleaves a small proportion of
general text in both stages. Texts are cut into stretches of the stage's context: unlike an example, a text has no end to learn.
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
"""Figures of the stages that add up."""


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
    """Train the policy in `policy_path` on all tokens of `examples`; the same call goes on where an earlier one was stopped.

    The result lies in `output`, its checkpoints below that. Figures: examples, examples left out because too long, tokens, trained tokens,
    rows, the share of their room that is used (`packed`), steps, seconds (of this call) and the last loss in nats a token. With
    `config.contexts` these are of all stages together, and `stage_N` holds those of each; a stage without examples is passed over. With
    `config.general` there are further `general_tokens`, `general_share` of all tokens, `general_loss_before` and `general_loss_after`, in
    nats a token.

    Args:
        general: texts of which `config.general` takes its share.

    Raises:
        RequestError: there is nothing to train on, or the rows of a stage's step cannot be shared out among the workers.
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
    on_metric(result.figures["steps"], {"general_loss": after})
    return TrainResult(output, {**result.figures, "general_loss_before": before, "general_loss_after": after})


def stages_of(config: CptConfig) -> list[CptConfig]:
    """The settings of each stage. Rows grow with the context, and a step has as many fewer of them, so that it keeps its tokens."""
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
    """Stage after stage; all but the last leave their policy among the checkpoints, from which a call that was stopped takes it up."""
    for stage in stages_of(config):
        passes_of(stage)  # what the last stage refuses is refused before the first
    parts = _by_context(examples, stages_of(config))
    used = [number for number, (_, chosen) in parts.items() if chosen]
    if not used:
        raise RequestError(f"There is nothing to pre-train on: no example has 1 to {stages_of(config)[-1].max_example_tokens} tokens.")
    found: dict[int, dict[str, Any]] = {number: {"examples": 0} for number in parts}
    start, done = policy_path, 0
    for number in used:
        stage, chosen = parts[number]
        folder = output if number == used[-1] else output / CHECKPOINTS / f"stage_{number}"
        mixed, figures = _mix(chosen, texts, tokenizer, stage, seed_from(seed, number))
        seed_of_stage = seed if number == 1 else seed_from(seed, number)
        result = train_on_examples(start, mixed, folder, stage, seed_of_stage, _shifted(on_metric, done), masked=False, ray=ray)
        found[number] = {**result.figures, **figures}
        start, done = folder, done + result.figures["steps"]
    left_out = len(examples) - sum(len(chosen) for _, chosen in parts.values())
    return TrainResult(output, _together(found, left_out, config))


def _by_context(examples: Sequence[EncodedExample], stages: Sequence[CptConfig]) -> dict[int, tuple[CptConfig, list[EncodedExample]]]:
    """Each stage, by its number from 1, and the examples that its context holds and that of the one before does not."""
    limits = [0, *(stage.max_example_tokens for stage in stages)]
    return {
        number: (stage, [example for example in examples if limits[number - 1] < len(example.token_ids) <= limits[number]])
        for number, stage in enumerate(stages, start=1)
    }


def _mix(
    examples: Sequence[EncodedExample], texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, stage: CptConfig, seed: int
) -> tuple[list[EncodedExample], dict[str, Any]]:
    """The examples of a stage with its share of general text, from another place of it in each stage, and how much that is."""
    if stage.general is None:
        return list(examples), {}
    tokens = sum(len(example.token_ids) for example in examples)
    turn = seed % len(texts)
    pieces = stretches([*texts[turn:], *texts[:turn]], tokenizer, stage.row_tokens)
    taken = take(pieces, round(tokens * stage.general.share / (1 - stage.general.share)))
    return [*examples, *taken], {"general_tokens": sum(len(example.token_ids) for example in taken)}


def _shifted(on_metric: OnMetric, steps: int) -> OnMetric:
    return lambda step, figures: on_metric(steps + step, figures)


def _together(found: Mapping[int, Mapping[str, Any]], left_out: int, config: CptConfig) -> dict[str, Any]:
    """The figures of all stages, with those of each where there are several."""
    trained = [stage for stage in found.values() if stage["examples"]]
    figures: dict[str, Any] = {**trained[-1], **{name: sum(stage[name] for stage in trained) for name in SUMS}}
    room = sum(stage["tokens"] / stage["packed"] for stage in trained)
    figures |= {"examples_left_out": left_out, "packed": figures["tokens"] / room}
    if config.general is not None:
        tokens = sum(stage["general_tokens"] for stage in trained)
        figures |= {"general_tokens": tokens, "general_share": tokens / figures["tokens"]}
    return figures | ({f"stage_{number}": dict(stage) for number, stage in found.items()} if config.contexts else {})


LONGEST_TEXT = 200_000
"""Characters of a text that are encoded at once."""


def split_texts(texts: Sequence[str], held_out: int, seed: int) -> tuple[list[str], list[str]]:
    """Texts to train on and texts to measure on, in an order that follows from `seed` and their content; no text is on both sides.

    Raises:
        RequestError: where none would be left to train on.
    """
    ordered = sorted(dict.fromkeys(texts), key=lambda text: (seed_from("general", seed, text), text))
    if len(ordered) <= held_out:
        raise RequestError(f"cpt.general has {len(ordered)} different texts, and held_out = {held_out} leaves none to train on.")
    return ordered[held_out:], ordered[:held_out]


def stretches(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, context: int) -> Iterator[tuple[int, ...]]:
    """The token ids of `texts`, none of them a control token, one text after the other, in stretches of at most `context` tokens."""
    plain = PlainText(tokenizer)
    for text in texts:
        for start in range(0, len(text), LONGEST_TEXT):
            ids = plain.ids(text[start : start + LONGEST_TEXT])
            yield from (ids[place : place + context] for place in range(0, len(ids), context))


def take(pieces: Iterator[tuple[int, ...]], tokens: int) -> list[EncodedExample]:
    """The next of `pieces` as examples, until they hold `tokens` tokens or there are no more."""
    taken: list[EncodedExample] = []
    while tokens > 0 and (ids := next(pieces, None)) is not None:
        taken.append(EncodedExample(ids, (True,) * len(ids)))
        tokens -= len(ids)
    return taken


def _loss_of(policy_path: Path, texts: Sequence[str], folder: Path, config: CptConfig, ray: RayConfig | None) -> float:
    """`mean_loss` where the learner computes: here, or on one of Ray's workers, whose notes lie in `folder`."""
    if not config.learner.on_ray:
        return mean_loss(policy_path, texts, config.row_tokens)
    from rl.learner.group import learn_on_workers  # Ray: not where this process is enough

    device, path, context = "cuda" if config.learner.gpus else "cpu", policy_path.resolve(), config.row_tokens
    alone = config.learner.model_copy(update={"workers": 1, "sharded": False})
    return learn_on_workers(alone, ray, lambda _: mean_loss(path, texts, context, device), {})


@torch.no_grad()
def mean_loss(policy_path: Path, texts: Sequence[str], context: int, device: str = "cpu") -> float:
    """Mean loss of the policy in `policy_path` on `texts`, in nats a token, each token after at most `context` others."""
    model, tokenizer = load_policy(policy_path)
    torch.nn.Module.to(model, device)
    total, tokens = 0.0, 0
    for stretch in stretches(texts, tokenizer, context):  # each by itself, for not every model keeps those of one row apart
        if len(stretch) > 1:
            ids = torch.tensor([stretch], device=device)
            total += model(input_ids=ids, labels=ids, use_cache=False).loss.item() * (len(stretch) - 1)
            tokens += len(stretch) - 1
    return total / tokens
