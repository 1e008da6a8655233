"""What the tests of this folder ask of a pool of engines, and what they hold its answers against."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil
import torch
from transformers import PreTrainedModel

from rl.engines.base import Generation, Sampling
from rl.engines.pool import EnginePool
from rl.rollouts.rollout import Rollouts

Prompts = Sequence[tuple[int, ...]]


def prompts(count: int = 8) -> Prompts:
    return [(20 + i, 30) for i in range(count)]


async def generate_all(pool: EnginePool, contexts: Prompts, tokens: int = 200) -> list[Generation]:
    sampling = [Sampling(max_tokens=tokens, seed=i) for i in range(len(contexts))]
    try:
        return await asyncio.gather(*(pool.generate(f"g{i}", c, s) for i, (c, s) in enumerate(zip(contexts, sampling, strict=True))))
    finally:
        for number in range(len(contexts)):
            pool.release(f"g{number}")


def worst_difference(models: dict[int, PreTrainedModel], contexts: Prompts, generations: Sequence[Generation]) -> float:
    """Largest difference between a token's log-probability and that of the model whose version it bears."""
    return max(_worst(models, c, g) for c, g in zip(contexts, generations, strict=True))


@torch.no_grad()
def _worst(models: dict[int, PreTrainedModel], context: tuple[int, ...], generation: Generation) -> float:
    ids = torch.tensor([[*context, *generation.token_ids]])
    own = {version: torch.log_softmax(models[version](ids).logits[0].float(), -1) for version in set(generation.policy_versions)}
    rows = zip(generation.token_ids, generation.logprobs, generation.policy_versions, strict=True)
    return max(abs(float(own[version][len(context) - 1 + i, token]) - sampled) for i, (token, sampled, version) in enumerate(rows))


def engine_processes(title: str = "EngineCore") -> list[psutil.Process]:
    """vLLM's own processes beneath this one, or others by their title."""
    found = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if title in "".join(process.cmdline()):
                found.append(process)
    return found


def wait_until_busy(rollouts: Rollouts, requests_in_flight: int = 1) -> None:
    deadline = time.monotonic() + 120
    while rollouts.figures().in_flight < requests_in_flight:
        assert time.monotonic() < deadline, "no request came"
        time.sleep(0.001)
