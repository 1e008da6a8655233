"""What a start in the sandbox costs: `python -m benchmarks.sandbox [--json]`.

The same empty Python program, with the same view of installed packages: started plainly, in the sandbox one at a time, and in the
sandbox eight at once from asyncio. Rounds of the three take turns, so that whatever else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable

from eval.sandbox.sandbox import INTERPRETER, Sandbox, python_program

PROGRAMS = 40
ROUNDS = 5
AT_ONCE = 8


def plainly(sandbox: Sandbox) -> None:
    """Start the program without a sandbox."""
    for _ in range(PROGRAMS):
        subprocess.run((INTERPRETER, "-c", "pass"), env={"PATH": os.environ["PATH"]}, check=True)


def one_at_a_time(sandbox: Sandbox) -> None:
    """Start it in the sandbox, again and again."""
    for _ in range(PROGRAMS):
        sandbox.run(python_program("pass"))


def many_at_once(sandbox: Sandbox) -> None:
    """Start it in the sandbox from asyncio."""
    asyncio.run(_many(sandbox))


async def _many(sandbox: Sandbox) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with slots:
            await sandbox.run_async(python_program("pass"))

    await asyncio.gather(*(one() for _ in range(PROGRAMS)))


def measure(way: Callable[[Sandbox], None], sandbox: Sandbox) -> tuple[float, float]:
    """(starts a second, milliseconds of processor time a start) of one round."""
    processor, clock = _processor_seconds(), time.perf_counter()
    way(sandbox)
    seconds, busy = time.perf_counter() - clock, _processor_seconds() - processor
    return PROGRAMS / seconds, 1000 * busy / PROGRAMS


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json: bool = parser.parse_args().json
    sandbox = Sandbox()
    sandbox.run(python_program("pass"))
    ways = {"plain process": plainly, "sandbox": one_at_a_time, f"sandbox, {AT_ONCE} at once": many_at_once}
    rounds = [{name: measure(way, sandbox) for name, way in ways.items()} for _ in range(ROUNDS)]
    figures = {name: [statistics.median(one[name][part] for one in rounds) for part in (0, 1)] for name in ways}
    ratio = figures["plain process"][0] / figures["sandbox"][0]
    if as_json:
        print(json.dumps({"starts_per_second_and_processor_ms": figures, "plain_over_sandbox": ratio, "load": os.getloadavg()}))
        return
    for name, (rate, busy) in figures.items():
        print(f"{name:24} {rate:6.1f} starts a second, {busy:5.1f} ms of processor time each")
    print(f"{'plain over sandbox':24} {ratio:6.2f}")
    print(f"{'load of the machine':24} {os.getloadavg()[0]:6.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
