"""General text in pre-training: how much of it is read, and how well the policy knows it before and after.

A policy that reads only agentic text forgets the rest. Tongyi DeepResearch (technical report, 2025) interleaves a small proportion of
general text in both stages. Texts are cut into stretches of the stage's context: unlike an example, a text has no end to learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from rl.dialects.plain_text import PlainText
from rl.learning.packing import PackingCollator, pack_examples
from rl.policies.examples import EncodedExample
from rl.policies.policy import load_policy
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import Example

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


def take(pieces: Iterator[tuple[int, ...]], tokens: int) -> list[Example]:
    """The next of `pieces` as examples, until they hold `tokens` tokens or there are no more."""
    taken: list[Example] = []
    while tokens > 0 and (ids := next(pieces, None)) is not None:
        taken.append(Example(digest(["general", list(ids)]), "general", (), (), token_ids=ids, loss_mask=(1,) * len(ids)))
        tokens -= len(ids)
    return taken


@torch.no_grad()
def mean_loss(policy_path: Path, texts: Sequence[str], context: int) -> float:
    """Mean loss of the policy in `policy_path` on `texts`, in nats a token, each token after at most `context` others."""
    model, tokenizer = load_policy(policy_path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.nn.Module.to(model, device)
    rows = pack_examples([EncodedExample(ids, (True,) * len(ids)) for ids in stretches(texts, tokenizer, context)], context, masked=False)
    total, tokens = 0.0, 0
    for row in rows:
        batch = {name: tensor.to(device) for name, tensor in PackingCollator(0)([row]).items()}
        predicted = int((batch["labels"][:, 1:] >= 0).sum())
        total += model(**batch, use_cache=False).loss.item() * predicted
        tokens += predicted
    return total / tokens
