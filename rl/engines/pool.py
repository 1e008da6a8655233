"""A pool of inference engines on Ray that acts as one engine.

A trajectory stays on its engine, where its prefix is cached; a new one goes to the engine with the fewest requests in flight. Engines can
join and leave during requests. A dead engine is replaced by one with the newest weights on disk, and its requests are reissued from their
token ids. Some engines may serve an older policy, for requests that ask for it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl.content import PlacedImage
from rl.engines.base import EngineDead, EngineFault, EnginePressure, Generation, PoolFigures, Sampling, WeightProbe
from rl.engines.config import EngineConfig
from rl.engines.replica import Replica, create_replica
from rl.engines.weight_sync import PendingTransfer, Receivers, Shapes, check_fit, shapes_in
from rl.policies.transfer import base_of, is_adapters
from rl.worker_death import WorkerDied, worker_died
from warehouse.errors import RequestError

logger = logging.getLogger(__name__)

MOST_RETAKES = 3
"""Maximum times that one request moves to another engine because its own died."""
NOT_YET_SECONDS = 0.02
"""Pause before asking again for the tokens of a request that its engine does not run yet."""


class EnginePool:
    """A `Generator` made of several engines. All methods run in the event loop of `begin`."""

    def __init__(self, config: EngineConfig, policy_path: str, version: int) -> None:
        self._config = config
        self._weights = (policy_path, version)
        """Folder and version that a starting engine loads before it serves."""
        self._whole = self._weights
        """Newest full policy, from which vLLM can start."""
        self._version = version
        """Newest version, which may have been sent without being in any folder."""
        self._replicas: list[Replica] = []
        self._removed: list[Replica] = []
        self._pinned: dict[tuple[str, bool], Replica] = {}
        self._names = itertools.count()
        self._asleep = False
        self._update = asyncio.Lock()
        self._started = time.monotonic()
        self._retaken = self._replacements = self._updates = self._transfers = 0
        self._receivers: Receivers | None = None

    @classmethod
    async def begin(cls, config: EngineConfig, policy_path: str, version: int = 0) -> EnginePool:
        """Start `config.count` engines, and `config.older` with an older policy, without waiting; requests and `up` wait for them."""
        pool = cls(config, policy_path, version)
        for number in range(config.count + config.older):
            pool._launch(older=number >= config.count)
        return pool

    @classmethod
    async def start(cls, config: EngineConfig, policy_path: str, version: int = 0) -> EnginePool:
        """Start the engines and wait until all serve. On failure, shuts down and raises as `up` does."""
        pool = await cls.begin(config, policy_path, version)
        try:
            await pool.up()
        except BaseException:
            await pool.shutdown()
            raise
        return pool

    async def up(self) -> None:
        """Wait until all engines serve.

        Raises:
            EngineFault: an engine fails to start, or takes longer than `start_timeout_seconds`.
            WorkerDied: an engine's process died.
        """
        try:
            await asyncio.gather(*(replica.ready for replica in self._replicas))
        except EngineFault as error:
            if isinstance(error.__cause__, WorkerDied):
                raise error.__cause__ from error
            raise

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """Continue a trajectory on its engine, or on another if that one dies.

        Raises:
            EngineFault: the engine rejects the request, `MOST_RETAKES` + 1 engines died under it, or no engine is left.
        """
        context, retakes = tuple(prompt_ids), 0
        while True:
            replica = self._route(request_id, sampling.older)
            try:
                return await replica.generate(request_id, context, sampling, tuple(images))
            except EngineDead as error:
                self._replace(replica)
                if retakes == MOST_RETAKES:
                    raise EngineFault(f"gave up after {retakes + 1} engines died: {error}") from error
                retakes += 1
                self._retaken += 1

    async def stream(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[tuple[int, ...] | Generation, None]:
        """Continue a trajectory; yields sampled ids as they come, and last the whole generation.

        Raises:
            EngineFault: as `generate` does, or another engine continued the request differently after its own died.
        """
        work = asyncio.ensure_future(self.generate(request_id, prompt_ids, replace(sampling, streamed=True)))
        sent: tuple[int, ...] = ()
        try:
            while not work.done():
                more = asyncio.ensure_future(self._sampled(request_id, len(sent)))
                try:
                    await asyncio.wait([work, more], return_when=asyncio.FIRST_COMPLETED)
                    ids = more.result() if more.done() and not work.done() else ()
                finally:
                    more.cancel()
                if ids:
                    sent += ids
                    yield ids
            generation = await work
        finally:
            work.cancel()
        if generation.token_ids[: len(sent)] != sent:
            raise EngineFault("an engine died, and another continued differently from what was streamed")
        yield generation

    async def _sampled(self, request_id: str, seen: int) -> tuple[int, ...]:
        """Newly sampled ids of a request; none after a pause if its engine died or does not run it yet."""
        replica = self._pinned.get((request_id, False))
        try:
            ids = () if replica is None else await replica.sampled(request_id, seen)
        except EngineFault:  # `generate` handles it
            ids = ()
        if not ids:
            await asyncio.sleep(NOT_YET_SECONDS)
        return ids

    def release(self, request_id: str) -> None:
        """Unpin a finished trajectory from its engines."""
        for older in (False, True):
            replica = self._pinned.pop((request_id, older), None)
            if replica is not None:
                replica.trajectories.discard(request_id)

    async def add_engine(self) -> str:
        """Start one more engine with the newest weights on disk; return its name once it serves.

        Raises:
            EngineFault: it does not start in time, for example because Ray lacks resources.
            RequestError: the engines sleep and have lent their memory to the learner.
        """
        if self._memory_is_lent:
            raise RequestError("the engines are asleep and their memory is freed: add an engine after they wake.")
        replica = self._launch()
        try:
            await replica.ready
        except EngineFault:
            self._forget(replica)
            await replica.close()
            raise
        return replica.name

    async def remove_engine(self, name: str, drain: bool = True) -> None:
        """Remove an engine after its requests end, or without `drain` reissue them on others.

        Raises:
            RequestError: no such engine, or it is the last one.
        """
        replica = next((replica for replica in self._replicas if replica.name == name and not replica.leaving), None)
        if replica is None:
            raise RequestError(f"there is no engine {name!r}, only {', '.join(self.engines)}.")
        if len(self.engines) == 1:
            raise RequestError(f"engine {name!r} is the last one: add another before removing it.")
        self._unpin(replica)
        replica.leaving = True
        if drain:
            await replica.idle.wait()
        self._forget(replica)
        await replica.close()

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engines that serve the newest policy, including starting ones."""
        return tuple(replica.name for replica in self._replicas if not replica.leaving and not replica.older)

    def figures(self) -> PoolFigures:
        replicas = [*self._replicas, *self._removed]
        return PoolFigures(
            seconds=time.monotonic() - self._started,
            engines=tuple(replica.figures() for replica in self._replicas),
            requests=sum(replica.requests for replica in replicas),
            tokens=sum(replica.tokens for replica in replicas),
            retaken=self._retaken,
            replacements=self._replacements,
            updates=self._updates,
            transfers=self._transfers,
        )

    async def load_weights(self, path: str, version: int) -> None:
        """Load the weights in folder `path` into all engines; engines that start or replace a dead one load them before they serve.

        Older-policy engines load them once they are `older_every` versions behind, or if versions restart. Engines that received this
        version from the learner are skipped; one stuck in a failed transfer has `transfer_timeout_seconds` to return.

        Raises:
            RequestError: the folder holds no policy, an incomplete weight file, or adapters that engines do not serve. No engine was
                changed.
        """
        whole = self._check_folder(Path(path))
        async with self._update:
            self._weights, self._version = (path, version), version
            if whole:
                self._whole = self._weights
            receivers, self._receivers = self._receivers, None
            sent = receivers.replicas if receivers is not None and receivers.done and receivers.weights == self._weights else ()
            self._updates += not sent  # already counted by step_transfer
            broken = receivers.replicas if receivers is not None and not receivers.done else ()
            behind = [replica for replica in self._serving if replica not in sent and (not replica.older or self._is_due(replica, version))]
            await asyncio.gather(*(self._command(replica, self._load(replica, replica in broken)) for replica in behind))

    async def record(self, path: str, version: int) -> None:
        """Set the folder that engines starting from now on load; it may be older than the weights that were sent.

        Raises:
            RequestError: the folder holds no policy or an incomplete weight file.
        """
        shapes_in(Path(path))
        async with self._update:
            self._weights = self._whole = (path, version)

    async def probe(self, prompt_ids: Sequence[int], tokens: int, temperature: float = 1.0) -> list[WeightProbe]:
        """Continue a prompt on each up-to-date engine. A crashed engine is replaced and returns no probe."""
        sampling = Sampling(temperature=temperature, max_tokens=tokens, seed=0)
        serving = [replica for replica in self._serving if not replica.older and replica.weights[1] == self._version]
        found: list[WeightProbe] = []

        async def ask(replica: Replica) -> None:
            result = await replica.generate(f"probe-{replica.name}-{self._updates}", tuple(prompt_ids), sampling, ())
            found.append(WeightProbe(replica.name, tuple(prompt_ids), result.token_ids, result.logprobs))

        await asyncio.gather(*(self._command(replica, ask(replica)) for replica in serving))
        return sorted(found, key=lambda probe: probe.engine)

    async def pressures(self) -> list[EnginePressure]:
        """Pressure on each engine since the last call. A crashed engine is replaced and returns none."""
        found: list[EnginePressure] = []

        async def ask(replica: Replica) -> None:
            found.append(await replica.call("pressure"))

        await asyncio.gather(*(self._command(replica, ask(replica)) for replica in self._serving))
        return found

    async def begin_transfer(self, shapes: Shapes, path: str, version: int) -> PendingTransfer:
        """Hold the engines that need these weights for a transfer from the learner; afterwards call `load_weights` if any was left out.

        Raises:
            RequestError: the weights do not match the engines' policy; no engine was held.
        """
        check_fit(shapes, Path(self._weights[0]))
        async with self._update:
            wanting = [replica for replica in self._serving if not replica.older or self._is_due(replica, version)]
            await asyncio.gather(*(self._command(replica, replica.call("hold")) for replica in wanting))
            held = [replica for replica in wanting if replica in self._replicas]
            left_out = [replica for replica in self._replicas if replica not in held and not replica.older and not replica.leaving]
            config = self._config
            self._receivers = Receivers((path, version), held, config.tensor_parallel, config.transfer_timeout_seconds)
        names, workers = tuple(replica.name for replica in held), len(held) * config.tensor_parallel
        return PendingTransfer(config.transfer, config.transfer_timeout_seconds, names, workers, len(left_out))

    async def step_transfer(self, step: str, info: Mapping[str, Any]) -> None:
        """Run one step of vLLM's weight transfer on the held engines; after the last they continue. Raises as `Receivers.step` does."""
        if self._receivers is None:
            raise EngineFault("no weight transfer is in progress")
        await self._receivers.step(step, info)
        if self._receivers.done:
            self._version = self._receivers.weights[1]
            self._transfers += 1
            self._updates += 1

    async def sleep(self) -> None:
        """Stop sampling until `wake` and free memory according to `sleep_level`; requests in flight keep their tokens.

        If memory is freed, replacements of dead engines start only at `wake`.
        """
        self._asleep = True
        await asyncio.gather(*(self._command(replica, replica.sleep()) for replica in self._serving))

    async def wake(self) -> None:
        """Wake all engines. Engines that lost their weights and received no new ones load the newest on disk."""
        self._asleep = False
        for replica in self._replicas:
            replica.may_start.set()
        await asyncio.gather(*(self._command(replica, replica.wake(self._weights)) for replica in self._serving))

    async def shutdown(self) -> None:
        """Stop all engines; requests in flight raise `EngineFault`."""
        replicas, self._replicas = self._replicas, []
        self._pinned.clear()
        await asyncio.gather(*(replica.close() for replica in replicas))

    @property
    def _serving(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.serving]

    def _check_folder(self, folder: Path) -> bool:
        """Return whether the folder holds a full policy rather than adapters. Raises RequestError as `load_weights` does."""
        if not is_adapters(folder):
            shapes_in(folder)
            return True
        if self._config.adapter_rank is None:
            raise RequestError(f"{folder} contains only adapters: set rollout.engine.adapter_rank, or use a complete policy.")
        base_of(folder)
        return False

    async def _load(self, replica: Replica, broken: bool) -> None:
        try:
            async with asyncio.timeout(self._config.transfer_timeout_seconds if broken else None):
                await replica.load_weights(self._weights)
        except TimeoutError as error:
            raise EngineDead(f"{replica.name} did not recover from a failed weight transfer") from error

    def _is_due(self, replica: Replica, version: int) -> bool:
        held = replica.weights[1]
        return version < held or version - held >= self._config.older_every

    def _route(self, request_id: str, older: bool) -> Replica:
        """The engine for a trajectory's requests; if no older-policy engine exists, one of the newest policy."""
        replica = self._pinned.get((request_id, older))
        if replica is None:
            staying = [replica for replica in self._replicas if not replica.leaving]
            candidates = [replica for replica in staying if replica.older == older] or [
                each for each in staying if older and not each.older
            ]
            if not candidates:
                raise EngineFault(f"no engine is left, and all replacements are used up ({self._config.max_replacements} per engine)")
            replica = min(candidates, key=lambda candidate: candidate.load)
            self._pinned[request_id, older] = replica
            replica.trajectories.add(request_id)
        return replica

    @property
    def _memory_is_lent(self) -> bool:
        return self._asleep and self._config.sleep_level > 0

    def _launch(self, older: bool = False, died: int = 0) -> Replica:
        replica = create_replica(f"engine-{next(self._names)}", self._config, self._whole, older, died)
        if not self._memory_is_lent:
            replica.may_start.set()
        replica.ready = asyncio.ensure_future(self._bring_up(replica))
        # Retrieve the exception in case nothing awaits the task; requests routed to the engine still get it.
        replica.ready.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._replicas.append(replica)
        return replica

    async def _bring_up(self, replica: Replica) -> None:
        """Start an engine and bring it to the pool's current weights and sleep state, which may change meanwhile.

        An older-policy engine takes the weights that are newest now, and none that come later.
        """
        now = self._weights
        await replica.may_start.wait()
        try:
            async with asyncio.timeout(self._config.start_timeout_seconds):
                await replica.start()
                while (wanted := now if replica.older else self._weights) != replica.weights or replica.asleep != self._asleep:
                    if wanted != replica.weights:
                        await replica.load_weights(wanted)
                    elif self._asleep:
                        await replica.sleep()
                    else:
                        await replica.wake(self._weights)
        except TimeoutError as error:
            seconds = self._config.start_timeout_seconds
            raise EngineDead(
                f"an engine did not start within {seconds:g} seconds; does Ray have the CPUs and GPUs that it needs?"
            ) from error
        except EngineFault as error:
            died = worker_died(f"the engine {replica.name}", error)
            raise EngineDead(f"an engine did not start: {died or error}") from (died or error)

    def _replace(self, dead: Replica) -> None:
        """Remove a dead engine and start a replacement if its slot has any left and it was not leaving.

        Replacements are counted per slot, so a failed collective transfer costs each engine one instead of exhausting a shared count.
        """
        if dead not in self._replicas:
            return
        self._unpin(dead)
        self._forget(dead)
        dead.kill()
        if not dead.leaving and dead.died < self._config.max_replacements:
            self._replacements += 1
            logger.warning("%s died and is being replaced (%d of %d)", dead.name, dead.died + 1, self._config.max_replacements)
            self._launch(dead.older, dead.died + 1)

    def _forget(self, replica: Replica) -> None:
        if replica in self._replicas:
            self._replicas.remove(replica)
            self._removed.append(replica)

    def _unpin(self, replica: Replica) -> None:
        for trajectory in replica.trajectories:
            self._pinned.pop((trajectory, replica.older), None)
        replica.trajectories.clear()

    async def _command(self, replica: Replica, work: Coroutine[Any, Any, Any]) -> None:
        """Await a command of a serving engine; a dead one is replaced by one that catches up as it starts."""
        try:
            await work
        except EngineDead:
            self._replace(replica)
