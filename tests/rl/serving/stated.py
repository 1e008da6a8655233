"""An engine that samples the texts it is given, under a real chat template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import date

from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from rl.renderers.chat_template import ChatTemplate
from tests.rl.renderers.templates_of_trl import tokenizer_for
from warehouse.records import Trajectory

TEMPLATE = ChatTemplate(tokenizer_for("qwen3_training"), None, {}, date(2025, 1, 1))


class Stated:
    """Ends each text by the template's token or another, and notes its contexts and samplings.

    A stream brings one token at a time, and a fault that stands behind a text comes in its middle.
    """

    def __init__(self, *texts: str | EngineFault) -> None:
        self.end = "<|im_end|>"
        self.texts = list(texts)
        self.contexts: list[tuple[int, ...]] = []
        self.samplings: list[Sampling] = []
        self.streamed = 0
        self.cuts = 0
        self.pause = self.delay = 0.0

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.contexts.append(tuple(prompt_ids))
        self.samplings.append(sampling)
        text = self.texts.pop(0)
        if isinstance(text, EngineFault):
            raise text
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            self.cuts += 1
            raise
        ids = TEMPLATE.encode([f"{text}{self.end}"], {})[: sampling.max_tokens]
        stop = GenerationStop.STOP if ids[-1] in sampling.stop_token_ids else GenerationStop.LENGTH
        return Generation(ids, (-0.5,) * len(ids), stop, (3,) * len(ids))

    async def stream(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[tuple[int, ...] | Generation, None]:
        generation = await self.generate(request_id, prompt_ids, sampling)
        try:
            for token in generation.token_ids[:-1]:
                await asyncio.sleep(self.pause)
                self.streamed += 1
                yield (token,)
            if self.texts and isinstance(self.texts[0], EngineFault):
                raise self.texts.pop(0)
            yield generation
        except (GeneratorExit, asyncio.CancelledError):
            self.cuts += 1
            raise


def context_of(trajectory: Trajectory) -> tuple[int, ...]:
    return (*trajectory.prompt_ids, *(i for turn in trajectory.turns for i in (*turn.action_ids, *turn.observation_ids)))
