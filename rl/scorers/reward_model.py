"""A reward model: a sequence classifier with one output, over the question and what was handed in.

The two are given to the tokenizer as a pair, or, where its model has a chat template, as a question and an answer in it: reward models
are trained on one or the other. The value is the raw output; `sigmoid` brings it into [0, 1].
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from rl.environments.judge import Judgement
from warehouse.errors import RequestError
from warehouse.records import Task
from warehouse.settings import Section, read_options


class RewardModelOptions(Section):
    """Options of the scorer `reward_model`."""

    path: Path
    """Folder of the model with its tokenizer."""
    sigmoid: bool = True
    max_tokens: PositiveInt = 1024
    """Longer inputs are cut off at the right."""


class RewardModel:
    """One model in this worker; scores run one at a time in a thread."""

    def __init__(self, options: RewardModelOptions) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self._options = options
        self._tokenizer: Any = AutoTokenizer.from_pretrained(options.path, local_files_only=True)
        self._model: Any = AutoModelForSequenceClassification.from_pretrained(options.path, local_files_only=True).eval()
        self._turn = asyncio.Lock()
        if self._model.config.num_labels != 1:
            raise RequestError(f"{options.path} is no reward model: it has {self._model.config.num_labels} outputs instead of one.")

    async def score(self, task: Task, text: str) -> Judgement:
        """The model's value of `text` as an answer to the task's question."""
        async with self._turn:
            logit = await asyncio.to_thread(self._logit, task.question, text)
        value = 1 / (1 + math.exp(-logit)) if self._options.sigmoid else logit
        return Judgement(value, figures={"logit": logit})

    def _logit(self, question: str, text: str) -> float:
        import torch

        with torch.inference_mode():
            return float(self._model(**self._inputs(question, text)).logits[0, 0])

    def _inputs(self, question: str, text: str) -> Any:
        limits = {"truncation": True, "max_length": self._options.max_tokens, "return_tensors": "pt"}
        if self._tokenizer.chat_template is None:
            return self._tokenizer(question, text, **limits)
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
        return self._tokenizer.apply_chat_template(messages, return_dict=True, **limits)


def create(options: Mapping[str, Any]) -> RewardModel:
    """The scorer of one worker.

    Raises:
        RequestError: where the folder holds no reward model.
    """
    read = read_options(RewardModelOptions, options)
    if not (read.path / "config.json").is_file():
        raise RequestError(f"{read.path} holds no reward model: there is no config.json in it.")
    return RewardModel(read)
