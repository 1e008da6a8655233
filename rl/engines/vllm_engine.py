"""An inference engine on vLLM's `AsyncLLM`, for CPUs and GPUs.

Weights load in place between two engine steps, from a folder or from the learner. Requests in flight are frozen with their tokens (or
drained, by configuration) and continue from a recomputed context, so no stale cache is read. vLLM records the weight version of each token.
A sleeping engine wakes in vLLM's order: memory for weights, new weights, KV cache.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from rl.content import PlacedImage, collapse_images, decode_image
from rl.engines.base import EngineDead, EngineFault, EnginePressure, Generation, GenerationStop, PressureGauge, Sampling
from rl.engines.config import ADAPTER_RANKS, EngineConfig
from rl.env_pool.batched_actor import BatchedActor
from rl.hardware import GIB
from rl.policies.transfer import Adapters, PolicyFile, ReceivedPolicy, files_in, no_adapters
from rl.policies.vision import has_vision
from rl.worker_death import own_process_died

CACHE_BLOCK_TOKENS = 32
"""Tokens per block of the KV cache; prefixes are shared in whole blocks."""
SHUTDOWN_SECONDS = 1.0
"""Seconds for vLLM's process to end by itself."""
DEATH_SECONDS = 0.5
"""Seconds between checks by waiting calls that vLLM's process is alive."""
STRUCTURED = {"backend": "guidance", "disable_any_whitespace": True}
"""vLLM's settings for JSON schema output: the backend that supports most of JSON Schema, and fixed whitespace, since small models can emit
it until their token limit.
"""
SPACED = {"x-guidance": {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}}
"""One space after each separator, as models are used to; without it, small models misspell the first word of a value."""
SLEEPING = ("weights", "kv_cache")
"""Memory tags that vLLM puts to sleep, in waking order."""


def environment_variables(config: EngineConfig) -> dict[str, str]:
    """Environment variables to set before vLLM is imported. Threads are not bound to cores, since engine and learner share them."""
    return {
        "PYTHONSAFEPATH": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # On CPUs vLLM otherwise forces a separate worker process, which uses a third of a core even when idle.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(config.threads),
        # CUDA memory handles are Python objects, which vLLM can only pass to its process by pickle.
        **({"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if config.transfer == "ipc" else {}),
    }


P = ParamSpec("P")
T = TypeVar("T")


def _tells_its_death(method: Callable[Concatenate[VllmEngine, P], Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Make a method raise `EngineDead` when vLLM's process dies.

    vLLM never answers a call that is in flight when its process dies (vLLM pull request 56416), nor a request that arrives before it
    notices, so the wrapper polls.
    """

    @functools.wraps(method)
    async def told(engine: VllmEngine, *arguments: P.args, **named: P.kwargs) -> T:
        from vllm.v1.engine.exceptions import EngineDeadError

        work = asyncio.ensure_future(method(engine, *arguments, **named))
        try:
            while not (await asyncio.wait([work], timeout=DEATH_SECONDS))[0]:
                if engine.dead:
                    raise EngineDead("vLLM's process died")
            return await work
        except EngineDeadError as error:
            raise EngineDead(f"{type(error).__name__}: {error}") from error
        finally:
            work.cancel()

    return told


@dataclass(slots=True, eq=False)
class Streamed:
    """Ids of a running streamed request; `more` is set when some were added, or the request has ended."""

    ids: Sequence[int] = ()
    ended: bool = False
    more: asyncio.Event = field(default_factory=asyncio.Event)


class VllmEngine(BatchedActor):
    """One vLLM engine; its process must have the variables of `environment_variables(config)`."""

    def __init__(self, config: EngineConfig, policy_path: str, version: int = 0) -> None:
        super().__init__()
        self._config = config
        self._policy_path = policy_path
        self._version = version
        self._serial = itertools.count()
        self._paused = False
        self._held = False
        self._receiving = False
        self._asleep: list[str] = []
        """Memory tags that are freed and not yet reallocated."""
        self._lost = False
        """Weights were discarded and not yet replaced."""
        self._turn = asyncio.Lock()
        """Serializes pausing and resuming, each of which takes several vLLM calls."""
        self._llm: Any = None
        self._adapters: Any = None
        """LoRA request that names the current adapters."""
        self._received: ReceivedPolicy | None = None
        self._gauge = PressureGauge()
        self._streamed: dict[str, Streamed] = {}

    async def misses(self, path: str, files: tuple[PolicyFile, ...]) -> bool:
        """Return whether these files are missing in folder `path` on this machine; `receive` calls must then deliver them."""
        self._drop_received()
        if await asyncio.to_thread(files_in, Path(path)) == files:
            return False
        self._received = ReceivedPolicy(path, files)
        return True

    async def receive(self, name: str, piece: bytes) -> None:
        if self._received is None:
            raise EngineFault(f"the file {name} was not announced")
        await asyncio.to_thread(self._received.take, name, piece)

    async def start(self) -> None:
        """Load vLLM and the policy; return when requests can be served."""
        gc.disable()  # saves a quarter of the import time
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        gc.freeze()
        gc.enable()
        arguments = AsyncEngineArgs(**_engine_arguments(self._config, self._place(self._policy_path)))
        try:
            self._llm = AsyncLLM.from_engine_args(arguments, stat_loggers=self._stat_loggers())
        except RuntimeError as error:
            raise own_process_died("the vLLM process of an engine", error) or error from error
        finally:
            self._drop_received()
        if self._config.adapter_rank is not None:
            await self._serve_adapters(no_adapters(self._policy_path))
        await self._llm.update_weight_version(str(self._version))

    @_tells_its_death
    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """Continue `prompt_ids`, across weight updates if necessary.

        Raises:
            EngineFault: the request failed, or vLLM expands images to other placeholders than `prompt_ids` has.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        unique_id = f"{request_id}-{next(self._serial)}"
        streamed = Streamed()
        if sampling.streamed:
            self._streamed[request_id] = streamed
        try:
            prompt = await asyncio.to_thread(_prompt, prompt_ids, images) if images else _prompt(prompt_ids)
            stream = self._llm.generate(prompt, _sampling_parameters(sampling), unique_id, lora_request=self._adapters)
            async for output in stream:
                streamed.ids = output.outputs[0].token_ids
                streamed.more.set()
        except EngineDeadError:
            raise  # `_tells_its_death` converts it
        except Exception as error:
            raise EngineFault(f"{type(error).__name__}: {error}") from error
        finally:
            streamed.ended = True
            streamed.more.set()
            if self._streamed.get(request_id) is streamed:
                del self._streamed[request_id]
        if images and list(output.prompt_token_ids) != list(prompt_ids):
            raise EngineFault("the engine's image placeholders differ from those of the context; check the policy's processor")
        return _as_generation(output.outputs[0])

    @_tells_its_death
    async def sampled(self, request_id: str, seen: int) -> tuple[int, ...]:
        """Ids of a running streamed request after the first `seen`, once there are any; none if it does not run."""
        streamed = self._streamed.get(request_id)
        while streamed is not None and not streamed.ended and len(streamed.ids) <= seen:
            streamed.more.clear()
            await streamed.more.wait()
        return () if streamed is None else tuple(streamed.ids[seen:])

    @_tells_its_death
    async def load_weights(self, path: str, version: int) -> None:
        """Load the weights in folder `path` between two engine steps and drop all cached prefixes.

        Raises:
            EngineDead: loading failed; weights may be mixed, so the engine stays paused.
        """
        await self.hold()
        try:
            if self._receiving:
                await self._llm.collective_rpc("abandon_transfer")
                self._receiving = False
            await self._load_policy(path)
        except Exception as error:
            raise EngineDead(f"the weights in {path} could not be loaded: {type(error).__name__}: {error}") from error
        await self._go_on(version)

    @_tells_its_death
    async def load_adapters(self, adapters: Adapters, version: int) -> None:
        """Serve these adapters from the next engine step on and drop all cached prefixes.

        Raises:
            EngineDead: loading failed; the engine stays paused.
        """
        await self.hold()
        try:
            if adapters.base != self._policy_path:
                await self._load_policy(adapters.base)
            await self._serve_adapters(adapters)
        except Exception as error:
            raise EngineDead(f"adapters of version {version} could not be loaded: {type(error).__name__}: {error}") from error
        await self._go_on(version)

    @_tells_its_death
    async def hold(self) -> None:
        """Pause between two engine steps until new weights arrive; freeze or drain requests, drop cached prefixes.

        Reallocates the memory of weights if it was freed; the KV cache only after the weights have arrived.
        """
        async with self._turn:
            if not self._paused and not self._held:
                await self._llm.pause_generation(mode=self._pause_mode)
            self._held = True
            if "weights" in self._asleep:
                await self._rouse(["weights"])

    @_tells_its_death
    async def join_transfer(self, info: dict[str, Any]) -> None:
        """Join the learner's transfer group (vLLM's `init_weight_transfer_engine`)."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(info))

    @_tells_its_death
    async def start_transfer(self) -> None:
        self._receiving = True
        await self._llm.start_weight_update()

    @_tells_its_death
    async def receive_weights(self, info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.update_weights(WeightTransferUpdateRequest(info))

    @_tells_its_death
    async def finish_transfer(self, version: int) -> None:
        """Switch to the received weights as `version` and continue."""
        await self._llm.finish_weight_update()
        self._receiving = False
        await self._go_on(version)

    @_tells_its_death
    async def sleep(self) -> None:
        """Pause between two engine steps; freeze or drain requests, drop cached prefixes.

        With `sleep_level` 1 or 2, also free the KV cache and the weights, which level 1 keeps in host memory and level 2 discards. During a
        weight transfer this happens after it.
        """
        async with self._turn:
            self._paused = True
            if not self._held:
                await self._lie_down()

    @_tells_its_death
    async def wake(self) -> bool:
        """Reallocate what `sleep` freed and continue waiting requests; during a transfer, after it.

        Returns False if the weights were discarded: the engine then sleeps until others are loaded.
        """
        async with self._turn:
            self._paused = False
            if self._held:
                return True
            if self._lost:
                return False
            await self._rise()
            return True

    async def pressure(self) -> EnginePressure:
        """Pressure since the last call; zero unless `pressure` is configured."""
        return self._gauge.take()

    async def close(self) -> None:
        if self._llm is not None:
            self._llm.shutdown(timeout=SHUTDOWN_SECONDS)

    async def _load_policy(self, path: str) -> None:
        """Load a full policy; vLLM drops its adapters."""
        await self._llm.collective_rpc("load_policy", args=(self._place(path),))
        self._drop_received()
        self._policy_path = path
        if self._config.adapter_rank is not None:
            await self._serve_adapters(no_adapters(path))

    def _place(self, path: str) -> str:
        """Local folder of the policy `path`: where its files were received, or `path` itself."""
        received = self._received
        return path if received is None or received.path != path else str(received.folder)

    def _drop_received(self) -> None:
        if self._received is not None:
            self._received.drop()
            self._received = None

    async def _serve_adapters(self, adapters: Adapters) -> None:
        """Switch all requests, including those in flight, to these adapters.

        All requests name the same adapters, so that their weights can change in place. vLLM reads them once, from a temporary folder.
        """
        from vllm.lora.request import LoRARequest

        with tempfile.TemporaryDirectory(prefix="adapters-") as folder:
            for name, content in adapters.files.items():
                (Path(folder) / name).write_bytes(content)
            await self._llm.add_lora(LoRARequest("policy", 1, folder, load_inplace=True))
            self._adapters = LoRARequest("policy", 1, folder)

    def _stat_loggers(self) -> list[Any] | None:
        """vLLM's statistics logger, only if `pressure` is configured, because it costs time."""
        if self._config.pressure is None:
            return None
        from rl.engines.vllm_extensions import pressure_logger

        return [pressure_logger(self._gauge)]

    @property
    def dead(self) -> bool:
        return self._llm is not None and bool(self._llm.errored)

    @property
    def _pause_mode(self) -> Literal["keep", "wait"]:
        return "wait" if self._config.updates == "drain" else "keep"

    async def _go_on(self, version: int) -> None:
        """Serve the new weights, or go back to sleep if that was requested meanwhile."""
        await self._llm.update_weight_version(str(version))
        async with self._turn:
            self._held = self._lost = False
            if not self._paused:
                await self._rise()
            elif self._config.sleep_level and not self._asleep:
                await self._lie_down()

    async def _lie_down(self) -> None:
        level = self._config.sleep_level
        if not level:
            await self._llm.pause_generation(mode=self._pause_mode)
        elif set(self._asleep) != set(SLEEPING):
            self._lost = level > 1
            await self._llm.sleep(level=level, mode=self._pause_mode)
            await self._llm.collective_rpc("give_back_memory", args=(level,))
            self._asleep = list(SLEEPING)

    async def _rise(self) -> None:
        if self._asleep:
            await self._rouse(list(self._asleep))
        await self._llm.resume_generation()

    async def _rouse(self, parts: list[str]) -> None:
        """Reallocate memory. vLLM resumes by itself once it has all parts, so the KV cache comes last."""
        await self._llm.collective_rpc("take_memory", args=(parts,))
        await self._llm.wake_up(tags=parts)
        self._asleep = [part for part in self._asleep if part not in parts]


def _engine_arguments(config: EngineConfig, policy_path: str) -> dict[str, Any]:
    arguments = {
        "model": policy_path,
        # vLLM needs the tokenizer to expand image placeholders and to constrain output.
        "skip_tokenizer_init": not (config.structured or has_vision(Path(policy_path))),
        "dtype": config.own_dtype,
        "seed": 0,
        "tensor_parallel_size": config.tensor_parallel,
        "distributed_executor_backend": _executor(config),
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        **_adapters(config),
        **_passes(config, Path(policy_path)),
        "kv_cache_memory_bytes": int(config.kv_cache_gib * GIB),
        # The cache size is explicit; this is then only the fraction of the GPU that must be free at start.
        "gpu_memory_utilization": config.gpus if 0 < config.gpus < 1 else None,
        "block_size": CACHE_BLOCK_TOKENS,
        "enable_prefix_caching": True,
        "structured_outputs_config": STRUCTURED if config.structured else None,
        "enforce_eager": config.enforce_eager,
        "enable_sleep_mode": bool(config.sleep_level and config.gpus),  # vLLM rejects it on CPUs, see `CpuSleep`
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "worker_extension_cls": "rl.engines.vllm_extensions.WeightExtension",
        "weight_transfer_config": None if config.transfer == "files" else {"backend": config.transfer},
        "disable_log_stats": True,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _adapters(config: EngineConfig) -> dict[str, Any]:
    """Arguments for serving one set of adapters, if configured."""
    if config.adapter_rank is None:
        return {}
    rank = next(rank for rank in ADAPTER_RANKS if rank >= config.adapter_rank)
    return {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": rank}


def _passes(config: EngineConfig, policy: Path) -> dict[str, Any]:
    """Tokens per forward pass; on CPUs, prompts must not be split over passes.

    After each chunk of a prompt but the last, vLLM rewinds the request's random generator, which a CPU generator cannot do, and the engine
    dies (`GPUModelRunner._bookkeeping_sync`, vLLM 0.32).
    """
    if config.gpus:
        return {"max_num_batched_tokens": config.max_batched_tokens}
    longest = config.longest_context(policy) or config.max_batched_tokens
    return {"max_num_batched_tokens": max(config.max_batched_tokens, longest), "enable_chunked_prefill": False}


def _prompt(prompt_ids: Sequence[int], images: Sequence[PlacedImage] = ()) -> Any:
    """vLLM's prompt: one marker and the pixels per image; the digest saves hashing the pixels."""
    from vllm import TokensPrompt

    if not images:
        return TokensPrompt(prompt_token_ids=list(prompt_ids))
    records = [placed.image for placed in images]
    return TokensPrompt(
        prompt_token_ids=collapse_images(prompt_ids, images),
        multi_modal_data={"image": [decode_image(image.data, image.media_type) for image in records]},
        multi_modal_uuids={"image": [image.digest for image in records]},
    )


def _executor(config: EngineConfig) -> str:
    if config.workers == "ray":
        return "ray"
    return "uni" if config.tensor_parallel == 1 else "mp"


def _sampling_parameters(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed if sampling.temperature > 0 else None,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        logprobs=0,
        detokenize=False,
        skip_special_tokens=False,
        output_kind=RequestOutputKind.CUMULATIVE if sampling.streamed else RequestOutputKind.FINAL_ONLY,
        structured_outputs=None if sampling.form is None else StructuredOutputsParams(json=_spaced(sampling.form)),
    )


@functools.cache
def _spaced(form: str) -> str:
    return json.dumps(json.loads(form) | SPACED)


def _as_generation(output: Any) -> Generation:
    token_ids = tuple(output.token_ids)
    logprobs = tuple(step[token].logprob for step, token in zip(output.logprobs or (), token_ids, strict=True))
    versions = tuple(int(span.version) for span in output.weight_versions or () for _ in range(span.start, span.end))
    if output.finish_reason == "abort" or len(versions) != len(token_ids):
        raise EngineFault("the engine aborted the request")
    return Generation(token_ids, logprobs, GenerationStop(output.finish_reason), versions)
