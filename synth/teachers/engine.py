"""Completions from local vLLM engines on Ray.

Messages are rendered by the tokenizer's chat template, or as plain lines if it has none.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.engines.base import EngineFault, GenerationStop, Sampling
from rl.engines.config import EngineConfig
from rl.engines.pool import EnginePool
from rl.placement import total_cpus
from rl.ray_runtime import RayRuntime
from synth.teachers.config import TeacherConfig
from synth.teachers.source import BackgroundLoop, SourceError
from synth.teachers.teacher import Ending, Fault, completion_id
from warehouse.digests import digest_files
from warehouse.errors import RequestError
from warehouse.records import Completion, Request


class EngineSource:
    def __init__(self, config: TeacherConfig, pool: EnginePool, ray: RayRuntime | None = None) -> None:
        folder = _folder(config)
        self._pool, self._ray = pool, ray
        self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self._longest = config.engine.longest_context(folder)
        self._serial = itertools.count()
        self.name: str = f"{config.name}:{digest_files(folder, length=8)}"

    @classmethod
    def start(cls, config: TeacherConfig, loop: BackgroundLoop) -> EngineSource:
        """Start engines in `loop`, and Ray if it is not running.

        Raises:
            RequestError: the folder contains no model.
            EngineFault: an engine does not start.
        """
        folder = _folder(config)
        ray = RayRuntime(config.ray, total_cpus([config.engine.reservation("teacher")]))
        try:
            engine = EngineConfig(**config.engine.model_dump(), structured=config.holds_to_forms)
            return cls(config, loop.wait(EnginePool.start(engine, str(folder))), ray)
        except BaseException:
            ray.close()
            raise

    async def generate(self, request: Request) -> Completion:
        """Generate one completion. Raises SourceError."""
        clock, request_id = time.perf_counter(), f"teacher-{next(self._serial)}"
        prompt = render(self._tokenizer, request)
        if self._longest is not None and len(prompt) + request.max_tokens > self._longest:
            reason = f"{len(prompt)} tokens of prompt and {request.max_tokens} of completion are more than the model's {self._longest}"
            raise SourceError(Fault.REFUSED, reason)
        try:
            generation = await self._pool.generate(request_id, prompt, self._sampling(request))
        except EngineFault as error:
            raise SourceError(Fault.SERVER_ERROR, str(error)) from error
        finally:
            self._pool.release(request_id)
        text = str(self._tokenizer.decode(list(generation.token_ids), skip_special_tokens=True))
        cut, stopped = until(text, request.stop)
        return Completion(
            id=completion_id(self.name, request),
            teacher=self.name,
            request=request.content,
            text=cut,
            ending=Ending.STOP if stopped or generation.stop_reason is GenerationStop.STOP else Ending.LENGTH,
            prompt_tokens=len(prompt),
            completion_tokens=len(generation.token_ids),
            seconds=time.perf_counter() - clock,
        )

    async def close(self) -> None:
        """Shut down the engines, and Ray if it was started here."""
        await self._pool.shutdown()
        if self._ray is not None:
            self._ray.close()

    def _sampling(self, request: Request) -> Sampling:
        end = self._tokenizer.eos_token_id
        stop_ids = () if end is None else (int(end),)
        return Sampling(request.temperature, request.max_tokens, stop_ids, seed=request.seed, form=request.form)


def render(tokenizer: PreTrainedTokenizerBase, request: Request) -> list[int]:
    """Token ids of a conversation with its tools, up to the start of the assistant's turn."""
    if tokenizer.chat_template is None:
        text = "".join(f"{message.role}: {message.content}\n" for message in request.messages) + "assistant:"
        return list(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
    conversation: Any = [{"role": message.role, "content": message.content} for message in request.messages]
    tools = None if request.tools is None else json.loads(request.tools)
    return list(tokenizer.apply_chat_template(conversation, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False))


def until(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """`text` up to the first of `stops`, and whether one occurred."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _folder(config: TeacherConfig) -> Path:
    folder = Path(config.path or ".").resolve()
    if not (folder / "config.json").is_file():
        raise RequestError(f"teacher.path = {folder} is not a model: there is no config.json in it.")
    return folder
