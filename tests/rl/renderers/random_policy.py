"""A very small model with random weights that samples, where a test needs a policy that says anything at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rl.engines.base import Generation, GenerationStop, Sampling


class RandomPolicy:
    """Samples from a Qwen3 of one layer; the part of an engine that the agent loop uses."""

    def __init__(self, vocabulary_size: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=vocabulary_size,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=8192,
            initializer_range=0.5,
        )
        self._model = Qwen3ForCausalLM(config).eval()
        self.contexts: list[tuple[int, ...]] = []
        self.sampled: list[tuple[int, ...]] = []

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue a context, token by token, and note what was asked and given."""
        generator = torch.Generator().manual_seed(sampling.seed or 0)
        new: list[int] = []
        logprobs: list[float] = []
        fed, cache = list(prompt_ids), None
        with torch.no_grad():
            while len(new) < sampling.max_tokens and not (new and new[-1] in sampling.stop_token_ids):
                output = self._model(torch.tensor([fed]), past_key_values=cache, logits_to_keep=1)
                cache, scores = output.past_key_values, output.logits[0, -1].log_softmax(-1)
                fed = [int(torch.multinomial(scores.exp(), 1, generator=generator))]
                new += fed
                logprobs.append(float(scores[fed[0]]))
        self.contexts.append(tuple(prompt_ids))
        self.sampled.append(tuple(new))
        stop = GenerationStop.STOP if new[-1] in sampling.stop_token_ids else GenerationStop.LENGTH
        return Generation(tuple(new), tuple(logprobs), stop, (0,) * len(new))
