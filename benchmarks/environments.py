"""Two thousand environments at once on this machine: `python -m benchmarks.environments [--instances N] [--steps N] [--json]`.

Half are tool worlds, a quarter FrozenLake, a quarter text games; all are open at the same time, in a few worker processes on Ray. Then
each takes its steps, once with all of them asking at once and once with as many in flight as a rollout has. Memory is what the
processes hold for themselves (USS), with nothing open, with all open, and at its peak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import psutil

from rl.env_pool.pool import EnvironmentPool, PooledEnvironment
from rl.envs.config import EnvironmentPoolConfig
from rl.ray_runtime import RayConfig, RayRuntime
from rl.renderers.base import Action
from rl.retrieval.indexes import Indexes
from synth.worlds.tool_tasks import generate_tasks
from warehouse.records import Task

KINDS = {
    "tool_world": {"workers": 2},
    "lake": {"factory": "game", "options": {"game": "FrozenLake-v1", "arguments": {"map_name": "8x8", "is_slippery": False}}},
    "house": {"factory": "game", "options": {"game": "flywheel/House-v0", "arguments": {"max_moves": 10_000}}},
}
IN_FLIGHT = 128
SAMPLE_SECONDS = 0.25
Playing = tuple[PooledEnvironment, Task, Iterator[Action]]


def moves_of(task: Task) -> Iterator[Action]:
    """Actions without end: the reference calls of a tool world over and over, or moves of a game."""
    calls = task.provenance.get("calls")
    written = [Action(call["tool"], json.dumps(call["arguments"])) for call in calls] if calls else None
    games = ("left", "up") if task.environment == "lake" else ("look", "go north", "inventory", "go south")
    actions = written or [Action("act", move) for move in games]
    return (actions[number % len(actions)] for number in count())


def tasks_of(instances: int) -> list[Task]:
    """Tasks of the three kinds, as many as there are instances."""
    worlds = list(generate_tasks(min(300, instances), seed=0))
    tasks = []
    for number in range(instances):
        kind = ("tool_world", "lake", "tool_world", "house")[number % 4]
        own = {"game": {"house": number}} if kind == "house" else {}
        tasks.append(worlds[number % len(worlds)] if kind == "tool_world" else Task(f"{kind}{number}", kind, "Play.", (), provenance=own))
    return tasks


def memory_mib() -> float:
    """What the environment workers hold for themselves, in MiB; this process and Ray's own are left out."""
    used = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "EnvironmentWorker" in " ".join(process.cmdline()):
                used += process.memory_full_info().uss / 2**20
        except psutil.Error:
            continue
    return used


@contextmanager
def watched() -> Iterator[list[float]]:
    """Samples of the memory while a block runs."""
    samples, done = [memory_mib()], threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            samples.append(memory_mib())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
        samples.append(memory_mib())


async def play(playing: Sequence[Playing], steps: int, in_flight: int) -> dict[str, float]:
    """Let each environment take `steps` steps, `in_flight` of them at once; steps a second and how long one takes."""
    places, seconds = asyncio.Semaphore(in_flight), list[float]()

    async def one(client: PooledEnvironment, actions: Iterator[Action]) -> None:
        for _ in range(steps):
            async with places:
                began = time.perf_counter()
                await client.step(next(actions))
                seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(one(client, actions) for client, _, actions in playing))
    whole = time.perf_counter() - began
    middle, high = np.percentile(seconds, [50, 99]) * 1000
    return {"in_flight": in_flight, "steps": len(seconds), "steps_per_second": len(seconds) / whole, "p50_ms": middle, "p99_ms": high}


async def measure(pool: EnvironmentPool, instances: int, steps: int) -> dict[str, Any]:
    """Open everything, then play."""
    for name in KINDS:
        await pool.open(name)
    tasks = tasks_of(instances)
    playing = [(pool.client(task.environment, f"t{number}"), task, moves_of(task)) for number, task in enumerate(tasks)]
    empty = memory_mib()
    with watched() as samples:
        began = time.perf_counter()
        await asyncio.gather(*(client.reset(task, number) for number, (client, task, _) in enumerate(playing)))
        opened = time.perf_counter() - began
        held = memory_mib()
        rounds = [await play(playing, steps, in_flight) for in_flight in (IN_FLIGHT, instances)]
    memory = {"empty_mib": empty, "open_mib": held, "peak_mib": max(samples), "kib_each": (held - empty) * 1024 / instances}
    return {"instances": instances, "open_seconds": opened, "memory": memory, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    runtime = RayRuntime(RayConfig(), cpus=4)
    pool = EnvironmentPool(EnvironmentPoolConfig.model_validate({"kinds": KINDS, "cpus": 0.5}), Indexes())
    try:
        figures = asyncio.run(measure(pool, arguments.instances, arguments.steps))
    finally:
        pool.close()
        runtime.close()
    if arguments.json:
        print(json.dumps(figures))
        return
    memory = figures["memory"]
    print(f"{figures['instances']} environments open at once, opened in {figures['open_seconds']:.1f} s")
    print(
        f"memory of their workers: {memory['empty_mib']:.0f} MiB empty, {memory['open_mib']:.0f} open, {memory['peak_mib']:.0f} at the peak"
    )
    print(f"{memory['kib_each']:.0f} KiB each\n\n{'in flight':>10} {'steps/s':>10} {'p50 ms':>10} {'p99 ms':>10}")
    for row in figures["rounds"]:
        print(f"{row['in_flight']:>10} {row['steps_per_second']:>10.0f} {row['p50_ms']:>10.1f} {row['p99_ms']:>10.1f}")


if __name__ == "__main__":
    main()
