"""A lake at size: `python -m benchmarks.lake [--size N] [--seconds S] [--part ingest|counts|views|processes|step] [--home DIR] [--keep]`.

ingest     N trajectories of five turns on average, records in, against DuckDB's own COPY of the same rows to Parquet, batch by batch
counts     how the trajectories of that lake searched, counted as the ends of stages do it
views      every view and macro over that lake, or those of `--only`, each read whole, in a process whose peak memory is told
processes  eight processes that write and two that compact and read, for S seconds; then nothing may be lost, doubled or torn
step       how long the RL steps of a run (`--run HOME`) waited for the lake, as a share of them

`--keep` puts the figures into `benchmarks/results/lake.json`, in the place of those of the same parts and views.

Lengths are those of search trajectories: prompts of 150 tokens, actions of 10 to 50, observations of 30 to 150, four characters a token.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from benchmarks import evidence
from warehouse import (
    Call,
    Check,
    Completion,
    Document,
    Example,
    Fact,
    Failure,
    Lake,
    Metric,
    Outcome,
    Part,
    PartKind,
    Policy,
    Record,
    Score,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from warehouse.schema import SCORES, TOOL_CALLS, TRAJECTORIES, TURNS, owned_calls, owned_turns
from warehouse.upkeep import compact, count_searches
from warehouse.views import MACROS, VIEWS
from warehouse.views.searches import UNCOUNTED

PARTS = ("ingest", "counts", "views", "processes", "step")
BATCH = 10_000
ENOUGH_SECONDS = 30.0
"""Of reads of one view, however few they are."""
TASKS = 20_000
POLICIES = tuple((f"t{turn}-{stage}", turn, stage) for turn in range(1, 5) for stage in ("cpt", "sft", "rl"))
TURNS_OF = (3, 4, 5, 6, 7)
WRITERS, KEEPERS, WRITTEN = 8, 2, 24


class Pool:
    """Random ids, log-probabilities and text, of which everything generated is a slice: making a turn costs microseconds."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ids = tuple(self.random.choices(range(32_000), k=200_000))
        self.logprobs = tuple(-self.random.expovariate(2.0) for _ in range(200_000))
        words = ["".join(self.random.choices("abcdefghijklmnopqrstuvwxyz", k=self.random.randint(2, 9))) for _ in range(8_000)]
        self.text = " ".join(self.random.choices(words, k=200_000))

    def cut(self, whole: Any, length: int) -> Any:
        start = self.random.randrange(200_000 - 2_000)
        return whole[start : start + length]


def turn(pool: Pool, index: int, last: bool) -> Turn:
    """A search with what it found, or an answer."""
    written, seen = pool.random.randint(10, 50), 0 if last else pool.random.randint(30, 150)
    arguments, observation = pool.cut(pool.text, 4 * written - 20), pool.cut(pool.text, 4 * seen)
    tool, outcome = ("answer", None) if last else ("search", "ok" if pool.random.random() < 0.97 else "timeout")
    latency = pool.random.expovariate(5.0)
    call = Call(tool, arguments, outcome, observation, latency)
    return Turn(
        index, pool.cut(pool.ids, written), pool.cut(pool.logprobs, written), f"<{tool}>{arguments}</{tool}>", tool, arguments,
        pool.cut(pool.ids, seen), observation, None, outcome, latency, 1, calls=(call,),
    )  # fmt: skip


def trajectory(pool: Pool, number: int) -> Trajectory:
    """Seven of ten from RL, the others from evaluation; one in fifty invalid. What is stored together is of one policy."""
    chance = pool.random
    name, wheel_turn, _ = POLICIES[number // BATCH % len(POLICIES)]
    rl, turns = chance.random() < 0.7, chance.choice(TURNS_OF)
    outcome = chance.choices((Outcome.SUCCESS, Outcome.FAILURE, Outcome.INVALID), (60, 38, 2))[0]
    return Trajectory(
        id=f"{name}-{'rl' if rl else 'held_out'}-{number:09d}-{chance.getrandbits(64):016x}",
        task_key=f"{chance.randrange(TASKS):016x}", policy=name if not rl else f"t{wheel_turn}-rl", stage="rl" if rl else "eval",
        horizon=chance.choice((4, 8, 12)), prompt_ids=pool.cut(pool.ids, 150),
        turns=tuple(turn(pool, index, index == turns - 1) for index in range(turns)),
        stop_reason=StopReason.FAULT if outcome is Outcome.INVALID else StopReason.ANSWERED, outcome=outcome,
        reward=None if outcome is Outcome.INVALID else float(outcome is Outcome.SUCCESS), seed=number,
        started=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number), seconds=chance.expovariate(0.5), wheel_turn=wheel_turn,
        step=chance.randint(1, 500) if rl else None, suite=None if rl else chance.choice(("held_out", "deep")),
        error="EngineDied: worker lost" if outcome is Outcome.INVALID else None,
    )  # fmt: skip


def score(run: Trajectory) -> Score:
    """The verdict on a trajectory."""
    assert run.outcome is not None
    return Score(run.id, "qa_em", "1", run.reward, run.outcome, run.error)


def surroundings(pool: Pool) -> list[Record]:
    """The other records of a lake: tasks, facts, examples, policies, figures, failures."""
    names = [f"Entity {number}" for number in range(TASKS + 5)]
    paths = [{"source": "world", "path": names[number : number + 4]} for number in range(TASKS)]
    parents = [None, *(name for name, _, _ in POLICIES)]
    figures = ("loss", "reward", "kl", "entropy", "turns")
    kinds = ("fas_reason", "trajectory")
    return [
        *(Task(f"{n:016x}", "search", f"Who is {n}?", (names[n],), hops=n % 4 + 1, provenance=paths[n]) for n in range(TASKS)),
        *(Document(f"d{n}", names[n], pool.cut(pool.text, 800), "world") for n in range(TASKS)),
        *(Fact(names[n], "knows", names[n + gap], (f"d{n}",), "world") for n in range(TASKS) for gap in (1, 2, 3)),
        *(Policy(name, parent, stage, name, name, 3, turn) for (name, turn, stage), parent in zip(POLICIES, parents, strict=False)),
        *(
            Example(
                f"e{n}", kinds[n % 2], (Part(PartKind.TEXT, pool.cut(pool.text, 600), True),), (f"{n % TASKS:016x}", f"d{n % TASKS}"),
                n % 4 + 1,
            )
            for n in range(100_000)
        ),
        *(Metric(f"r{n % 12}", "rl", n % 4 + 1, n // 60, figures[n // 12 % 5], n / 7) for n in range(60_000)),
        *(Completion(f"c{n}", "teacher", {"n": n}, pool.cut(pool.text, 400), "stop", 300, 100, 1, 0.5) for n in range(20_000)),
        *(Check(f"e{n}", "fas_reason", checker, "1", n % 5 > 0) for n in range(10_000) for checker in ("index", "teacher")),
        *(Failure("synth", f"fas_reason_{('vague', 'wrong')[n % 2]}", f"reason {n}", {"n": n}) for n in range(20_000)),
    ]  # fmt: skip


@dataclass(slots=True)
class Clock:
    """Seconds of pieces of work: on the wall, and of all processors together, which other work on the machine disturbs less."""

    walls: list[float] = field(default_factory=list)
    processor: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began, worked = time.perf_counter(), time.process_time()
        yield
        self.walls.append(time.perf_counter() - began)
        self.processor += time.process_time() - worked


def ingest(home: Path, size: int, log: Any) -> dict[str, Any]:
    """Seconds to store trajectories up to the number `size`, and seconds that DuckDB takes to copy the same rows to Parquet.

    A lake that holds some already, from a call that was cut short, is filled up; the figures are those of this call.
    """
    pool, ours, copies, written = Pool(0), Clock(), Clock(), 0
    with Lake(home) as lake, tempfile.TemporaryDirectory(dir=home) as folder, duckdb.connect() as plain:
        lake.add(surroundings(pool))
        (already,) = lake.query("SELECT count(*) AS n FROM trajectories").column("n").to_pylist()
        pool.random.seed(already)
        for start in range(already, size, BATCH):
            runs = [trajectory(pool, number) for number in range(start, min(start + BATCH, size))]
            records = [*runs, *map(score, runs)]
            with ours.running():
                lake.add(records)
            written += copy(plain, runs, Path(folder), copies)
            if start // BATCH % 5 == 4:
                print(f"{start + BATCH:9} trajectories: {compared(ours, copies)}", file=log, flush=True)
        (counts,) = lake.query(
            "SELECT (SELECT count(*) FROM trajectories) AS trajectories, (SELECT count(*) FROM turns) AS turns"
        ).to_pylist()
    return counts | compared(ours, copies) | {
        "copied_bytes": written, "trajectories_per_second": (size - already) / sum(ours.walls),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def compared(ours: Clock, copies: Clock) -> dict[str, float]:
    """The lake's seconds and those of DuckDB's copies, which are one a batch as well, and their ratios."""
    lake, copied = statistics.median(ours.walls), statistics.median(copies.walls)
    return {
        "lake_seconds": sum(ours.walls), "copy_seconds": sum(copies.walls), "ratio": sum(copies.walls) / sum(ours.walls),
        "ratio_of_medians": copied / lake, "lake_processor": ours.processor, "copy_processor": copies.processor,
        "ratio_of_processor": copies.processor / ours.processor,
    }  # fmt: skip


def copy(plain: duckdb.DuckDBPyConnection, runs: list[Trajectory], folder: Path, clock: Clock) -> int:
    """Bytes of DuckDB's COPY of the rows of `runs`, which stand in Arrow tables already; `clock` times all of its tables as one piece."""
    parts: tuple[tuple[Any, Sequence[Any]], ...] = (
        (TRAJECTORIES, runs), (TURNS, owned_turns(runs)), (TOOL_CALLS, owned_calls(runs)), (SCORES, [*map(score, runs)]),
    )  # fmt: skip
    paths = [folder / f"{table.name}.parquet" for table, _ in parts]
    for table, own in parts:
        plain.register(table.name, table.encode(own))
    with clock.running():
        for (table, _), path in zip(parts, paths, strict=True):
            plain.execute(f"COPY (FROM {table.name}) TO '{path}' (FORMAT parquet)")
    return sum(path.stat().st_size for path in paths)


def counts(home: Path) -> dict[str, Any]:
    """Seconds to count how the trajectories searched of which that is not known yet, and how many those are."""
    clock = Clock()
    with Lake(home) as lake:
        waiting = lake.query(f"SELECT count(*) AS n FROM ({UNCOUNTED})").column("n")[0].as_py()
        with clock.running():
            count_searches(lake)
    return {"trajectories": waiting, "seconds": sum(clock.walls), "processor": clock.processor}


def views(home: Path, repeats: int, only: Sequence[str], log: Any) -> dict[str, Any]:
    """Seconds of every view and macro, or of those that are named, read whole: on the wall, and of all processors together."""
    questions = {name: f"FROM {name}" for name in VIEWS} | {name: f"FROM {name}('t2-rl')" for name in MACROS}
    told = {}
    with Lake(home, read_only=True) as lake:
        for name, sql in ((name, questions[name]) for name in only or questions):
            times: list[float] = []
            work: list[float] = []
            while not times or (len(times) < repeats and sum(times) < ENOUGH_SECONDS):
                began, worked = time.perf_counter(), time.process_time()
                rows = lake.query(sql).num_rows
                times.append(time.perf_counter() - began)
                work.append(time.process_time() - worked)
            p95 = sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]
            told[name] = {"rows": rows, "reads": len(times), "median": statistics.median(times), "p95": p95, "cpu": statistics.median(work)}
            print(
                f"{name:22} {rows:9} rows  median {told[name]['median']:6.3f} s  p95 {p95:6.3f} s  cpu {told[name]['cpu']:6.3f} s",
                file=log,
                flush=True,
            )
    return {"views": told, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def processes(home: Path, seconds: float) -> dict[str, Any]:
    """What eight writers stored and two keepers saw, and what of it is lost, doubled or torn afterwards."""
    with Lake(home):
        pass
    roles = [("write", number) for number in range(WRITERS)] + [("keep", number) for number in range(KEEPERS)]
    commands = [
        [sys.executable, "-m", "benchmarks.lake", "--role", role, str(number), "--home", str(home), "--seconds", str(seconds)]
        for role, number in roles
    ]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands]
    ended = [(process.communicate(), process.returncode) for process in started]
    reports = [json.loads(out) if code == 0 else {"error": err.strip().splitlines()[-1:]} for (out, err), code in ended]
    batches = [report.get("batches", 0) for report in reports[:WRITERS]]
    expected = {f"{writer}-{batch}-{row}" for writer, n in enumerate(batches) for batch in range(n) for row in range(WRITTEN)}
    with Lake(home, read_only=True) as lake:
        ids = lake.query("SELECT id FROM trajectories").column("id").to_pylist()
        torn = lake.query(TORN).num_rows
    return {
        "commits": sum(batches), "commits_per_second": sum(batches) / seconds, "reads": sum(report.get("reads", 0) for report in reports),
        "compactions": sum(report.get("compactions", 0) for report in reports), "lost": len(expected - set(ids)),
        "unexpected": len(set(ids) - expected), "doubled": len(ids) - len(set(ids)), "torn": torn,
        "torn_reads": sum(report.get("torn", 0) for report in reports), "errors": [one["error"] for one in reports if "error" in one],
    }  # fmt: skip


def steps(run: Path) -> dict[str, Any]:
    """Seconds of the RL steps of the home `run`, and how long they waited for the lake, as the run itself has measured them."""
    with Lake(run, read_only=True) as lake:
        (figures,) = lake.query(STEPS).to_pylist()
    if not figures["steps"]:
        raise SystemExit(f"The lake in {run} has no RL step that says how long it waited for the lake: run `flywheel train rl` there.")
    return dict(figures)


STEPS = """
WITH s AS (
    SELECT run_id, step, max(value) FILTER (name = 'lake_seconds') AS lake, max(value) FILTER (name = 'step_seconds') AS whole
    FROM metrics WHERE stage = 'rl' GROUP BY ALL HAVING lake IS NOT NULL AND whole IS NOT NULL
)
SELECT (SELECT count(*) FROM trajectories) AS trajectories_in_lake, count(*) AS steps, median(lake) AS median, max(lake) AS longest,
    avg(lake) AS lake_seconds_a_step, avg(whole) AS step_seconds, sum(lake) / sum(whole) AS share FROM s
"""


TORN = """
SELECT t.id FROM trajectories t
LEFT JOIN (SELECT trajectory_id AS id, count(*) AS n FROM turns GROUP BY ALL) u USING (id)
LEFT JOIN (SELECT trajectory_id AS id, count(*) AS n FROM tool_calls GROUP BY ALL) c USING (id)
WHERE t.n_turns IS DISTINCT FROM u.n OR t.n_turns IS DISTINCT FROM c.n
"""


def play(role: str, number: int, home: Path, seconds: float) -> None:
    """One process: a writer adds batches, a keeper reads and compacts in turn; each ends with its figures as JSON."""
    deadline, figures, pool = time.monotonic() + seconds, {"batches": 0, "reads": 0, "torn": 0, "compactions": 0}, Pool(number)
    with Lake(home) as lake:
        while time.monotonic() < deadline:
            if role == "write":
                lake.add(batch(pool, number, figures["batches"]))
                figures["batches"] += 1
                continue
            figures["torn"] += lake.query(TORN).num_rows
            figures["reads"] += 1
            if figures["reads"] % 10 == 0:
                compact(lake)
                figures["compactions"] += 1
    print(json.dumps(figures))


def batch(pool: Pool, writer: int, number: int) -> Iterator[Trajectory]:
    """A batch whose ids name its writer."""
    from dataclasses import replace

    return (replace(trajectory(pool, row), id=f"{writer}-{number}-{row}") for row in range(WRITTEN))


def in_fresh_process(part: str, home: Path, arguments: list[str]) -> dict[str, Any]:
    """The figures of one part, run alone so that its peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.lake", "--part", part, "--home", str(home), "--json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout)[part])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--only", nargs="+", default=[], choices=[*VIEWS, *MACROS], metavar="VIEW", help="of the views, for the part views")
    parser.add_argument("--run", type=Path, help="home of a run with RL, for the part step")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="put the figures into benchmarks/results")
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part == "step" and given.run is None:
        parser.error("the part step needs --run HOME")
    if given.role:
        play(given.role[0], int(given.role[1]), given.home, given.seconds)
        return
    home = given.home or Path(tempfile.mkdtemp(prefix="lake-"))
    try:
        figures = measure(given, home)
    finally:
        if given.home is None:
            shutil.rmtree(home)
    if given.keep:
        old = evidence.kept("lake")
        command = shlex.join(["python", "-m", "benchmarks.lake", *sys.argv[1:]])
        evidence.keep("lake", {"commands": [*old.get("commands", []), command], **merged(old, figures)})
    if given.json:
        print(json.dumps(figures))
    else:
        print_figures(figures)


def measure(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    """The figures of one part, or of all of them, each in a process of its own."""
    log = sys.stderr
    match given.part:
        case "ingest":
            return {"ingest": ingest(home, given.size, log)}
        case "counts":
            return {"counts": counts(home)}
        case "views":
            return {"views": views(home, given.repeats, given.only, log)}
        case "processes":
            return {"processes": processes(home / "together", given.seconds)}
        case "step":
            return {"step": steps(given.run)}
    options = ["--size", str(given.size), "--seconds", str(given.seconds), "--repeats", str(given.repeats)]
    return {part: in_fresh_process(part, home, options) for part in ("ingest", "counts", "views", "processes")}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The figures of all parts that were ever measured; new ones take the place of old ones, of views each by itself."""
    read = {**old.get("views", {}).get("views", {}), **new.get("views", {}).get("views", {})}
    parts = {**{name: old[name] for name in PARTS if name in old}, **new}
    return {**parts, "views": {**parts["views"], "views": read}} if read else parts


def print_figures(figures: dict[str, Any]) -> None:
    """The figures as tables."""
    for part, told in figures.items():
        print(part)
        for name, value in told.pop("views", {}).items():
            print(f"  {name:24} {value['rows']:9} rows  median {value['median']:.3f} s  p95 {value['p95']:.3f} s  cpu {value['cpu']:.3f} s")
        for name, value in told.items():
            print(f"  {name:24} {value:.3f}" if isinstance(value, float) else f"  {name:24} {value}")


if __name__ == "__main__":
    main()
