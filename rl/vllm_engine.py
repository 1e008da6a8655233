"""An engine around vLLM's `AsyncLLM`: the same code on CPUs and on GPUs, told apart by the configuration alone.

Weights are loaded in place. Requests that an update cuts short keep the tokens they have, and go on under the new weights from
a context computed anew: no stale key or value is read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rl.config import EngineConfig
from rl.engine import EngineFault, Generation, GenerationStop, Sampling

GIB = 1024**3
SHUTDOWN_SECONDS = 1.0
"""How long vLLM's process may take to end by itself; it holds nothing that would have to be saved."""


def environment_variables(config: EngineConfig) -> dict[str, str]:
    """What must stand in the environment of the engine's process before vLLM is imported.

    Threads are not bound to cores: engine and learner take turns on the same ones.
    """
    return {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Without this vLLM insists on a worker process of its own on CPUs, which spins on a third of a core even when idle.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(config.threads),
    }


class VllmEngine:
    """One vLLM engine. Lives in a process of its own, whose environment holds `environment_variables(config)`."""

    def __init__(self, config: EngineConfig, policy_path: str, version: int = 0) -> None:
        self._config = config
        self._policy_path = policy_path
        self._version = version
        self._serial = itertools.count()
        self._running = asyncio.Event()
        self._running.set()
        self._pauses = 0
        self._llm: Any = None

    async def start(self) -> None:
        """Load vLLM and the policy; returns when requests can be served."""
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**_engine_arguments(self._config, self._policy_path)))

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Continue `prompt_ids`, across updates of the weights where need be."""
        parts: list[Generation] = []
        context, left = list(prompt_ids), sampling
        while True:
            await self._running.wait()
            pauses = self._pauses
            part = await self._generate_once(request_id, context, left)
            parts.append(part)
            if part.stop_reason is not GenerationStop.ABORT or self._pauses == pauses:
                return _join(parts)
            context = [*context, *part.token_ids]
            left = replace(left, max_tokens=left.max_tokens - len(part.token_ids))

    async def load_weights(self, path: str, version: int) -> None:
        """Load the weights in folder `path` between two steps of the engine, and forget every cached prefix."""
        await self.pause()
        await self._llm.collective_rpc("load_policy", args=(path,))
        await self._llm.reset_prefix_cache()
        self._version = version
        await self.resume()

    async def pause(self) -> None:
        """Cut requests short; `generate` holds on to what they have until `resume`."""
        self._running.clear()
        self._pauses += 1
        await self._llm.pause_generation(mode="abort")

    async def resume(self) -> None:
        """Go on with what `pause` cut short."""
        await self._llm.resume_generation()
        self._running.set()

    async def sleep(self) -> None:
        """Offload weights and drop the cache, where `sleep_mode` is on."""
        if self._config.sleep_mode:
            await self._llm.sleep(level=1)

    async def wake(self) -> None:
        """Bring the weights back."""
        if self._config.sleep_mode:
            await self._llm.wake_up()

    async def close(self) -> None:
        """End vLLM's processes."""
        if self._llm is not None:
            self._llm.shutdown(timeout=SHUTDOWN_SECONDS)

    async def _generate_once(self, request_id: str, context: list[int], sampling: Sampling) -> Generation:
        from vllm import TokensPrompt

        prompt = TokensPrompt(prompt_token_ids=context)
        version = self._version
        unique_id = f"{request_id}-{next(self._serial)}"
        try:
            outputs = [output async for output in self._llm.generate(prompt, _sampling_parameters(sampling), unique_id)]
        except Exception as error:
            raise EngineFault(f"{type(error).__name__}: {error}") from error
        return _as_generation(outputs[-1].outputs[0], version)


def _engine_arguments(config: EngineConfig, policy_path: str) -> dict[str, Any]:
    """The configuration in vLLM's words."""
    arguments = {
        "model": policy_path,
        "skip_tokenizer_init": True,
        "dtype": config.dtype,
        "seed": config.seed,
        "tensor_parallel_size": config.tensor_parallel,
        "distributed_executor_backend": "uni" if config.tensor_parallel == 1 else "mp",
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_batched_tokens,
        "kv_cache_memory_bytes": int(config.kv_cache_gib * GIB),
        "block_size": config.block_size,
        "enable_prefix_caching": True,
        "enforce_eager": config.enforce_eager,
        "enable_sleep_mode": config.sleep_mode,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "worker_extension_cls": "rl.worker_extension.WeightExtension",
        "disable_log_stats": True,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _sampling_parameters(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed if sampling.temperature > 0 else None,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        logprobs=0,
        detokenize=False,
        skip_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _as_generation(output: Any, version: int) -> Generation:
    token_ids = tuple(output.token_ids)
    logprobs = tuple(step[token].logprob for step, token in zip(output.logprobs or (), token_ids, strict=True))
    return Generation(token_ids, logprobs, GenerationStop(output.finish_reason), (version,) * len(token_ids))


def _join(parts: Sequence[Generation]) -> Generation:
    """The parts of one continuation as one."""
    return Generation(
        tuple(token for part in parts for token in part.token_ids),
        tuple(logprob for part in parts for logprob in part.logprobs),
        parts[-1].stop_reason,
        tuple(version for part in parts for version in part.policy_versions),
    )
