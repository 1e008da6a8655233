"""An engine that samples the texts it is given, under a real chat template."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from rl.renderers.chat_template import ChatTemplate
from tests.rl.renderers.templates_of_trl import tokenizer_for
from warehouse.records import Trajectory

TEMPLATE = ChatTemplate(tokenizer_for("qwen3_training"), None, {}, date(2025, 1, 1))


class Stated:
    """Ends each text by the template's token or another, and notes its contexts."""

    def __init__(self, *texts: str | EngineFault) -> None:
        self.end = "<|im_end|>"
        self.texts = list(texts)
        self.contexts: list[tuple[int, ...]] = []

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.contexts.append(tuple(prompt_ids))
        text = self.texts.pop(0)
        if isinstance(text, EngineFault):
            raise text
        ids = TEMPLATE.encode([f"{text}{self.end}"], {})
        return Generation(ids, (-0.5,) * len(ids), GenerationStop.STOP, (3,) * len(ids))


def context_of(trajectory: Trajectory) -> tuple[int, ...]:
    return (*trajectory.prompt_ids, *(i for turn in trajectory.turns for i in (*turn.action_ids, *turn.observation_ids)))
