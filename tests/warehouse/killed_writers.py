"""Writers that are killed: `killed_writers.py HOME LOG KILLS SEED` starts one after another and kills each with SIGKILL at a random moment.

A writer notes a batch in LOG before it commits it (`?`) and once it is committed (`=`); three writers are at work at any time.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.warehouse.writer_process import trajectory
from warehouse import Lake, Outcome, Score
from warehouse.connections import connect

ROWS = 30
LONGEST_LIFE_S = 0.2
AT_ONCE = 3


class Writer(NamedTuple):
    """`ready` becomes readable when it has the lake open."""

    process: int
    number: int
    ready: int


def write(home: Path, log: int, writer: int, told: int) -> None:
    """Adds batches until it is killed."""
    with Lake(home) as lake:
        os.write(told, b"!")
        for batch in range(1_000_000):
            ids = [f"{writer}-{batch}-{row}" for row in range(ROWS)]
            os.write(log, f"? {writer}-{batch}\n".encode())
            lake.add([*map(trajectory, ids), *(Score(id, "qa_em", "1", 1.0, Outcome.SUCCESS) for id in ids)])
            os.write(log, f"= {writer}-{batch}\n".encode())


def start(home: Path, log: int, writer: int) -> Writer:
    """A writer in a process of its own; the parent holds no connection that it could inherit."""
    ready, told = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            write(home, log, writer, told)
        finally:
            os._exit(1)
    os.close(told)
    return Writer(process, writer, ready)


def main(home: str, log_path: str, kills: str, seed: str) -> None:
    chance = random.Random(int(seed))
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    connect().close()  # the extensions' signatures are checked once and not in every writer
    alive: list[Writer] = []
    for number in range(int(kills)):
        alive.append(start(Path(home), log, number))
        if len(alive) == AT_ONCE:
            kill(alive.pop(0), Path(log_path), chance)
    while alive:
        kill(alive.pop(), Path(log_path), chance)


def kill(writer: Writer, log: Path, chance: random.Random) -> None:
    """Kills a writer at a random moment: four of five while they write, three of these after a commit or two; one as it opens the lake."""
    if chance.random() < 0.8:
        select.select([writer.ready], [], [])
        wanted = chance.choice((0, 1, 1, 2))  # however slow the machine is
        while log.read_text().count(f"= {writer.number}-") < wanted:
            time.sleep(0.01)
    time.sleep(chance.uniform(0, LONGEST_LIFE_S))
    os.kill(writer.process, signal.SIGKILL)
    _, status = os.waitpid(writer.process, 0)
    os.close(writer.ready)
    if os.WTERMSIG(status) != signal.SIGKILL:
        sys.exit(f"a writer ended by itself with status {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
