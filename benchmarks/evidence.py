"""Figures that are published: raw counts in `benchmarks/results`, and the tables that docs make of them.

    python -m benchmarks.evidence collect smollm2 runs/smollm2 --command "flywheel run --profile smollm2 --home runs/smollm2 --set seed=100"
    python -m benchmarks.evidence write      # fills every marked place in docs/ and benchmarks/notes/
    python -m benchmarks.evidence check      # recomputes all from raw counts; status 1 where a page or a count says something else

A place is marked by comments that name a table and a file of results: `<!-- evidence: stages smollm2 -->`, then what the data says, then
`<!-- /evidence -->`. What stands in one line is put in line. A file holds of each home, that is of each seed: successes and valid tasks of
each policy, how many tasks of a suite two policies solved both, either or neither, calls of tools, failures and those of them that had been
shown the answer, searches in vain and those that another followed, successes of each RL step, and seconds of each stage; with command,
commit and machine; and the verdict on every task, from which successes and pairs follow. A home that several versions of the code made is
refused. The tables are `benchmarks/evidence_tables.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import packages_distributions, version
from itertools import combinations
from pathlib import Path

from benchmarks.evidence_tables import TABLES, Record
from eval.statistics import PairedTest, SignFlips
from flows.home import Home
from flows.pipeline import CODE
from flows.results import Solved, paired, read_verdicts
from warehouse import Lake
from warehouse.errors import RequestError

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PAGES = ("docs/*.md", "benchmarks/notes/*.md")
PACKAGES = ("torch", "transformers", "trl", "vllm", "ray", "duckdb")
ONE_ATTEMPT = "evidence counts tasks that were solved or not: evaluate suites with one attempt a task"
_PLACE = re.compile(r"(<!-- evidence: (\w+)((?: [\w.-]+)*) -->)(.*?)(<!-- /evidence -->)", re.DOTALL)

_HABITS = """
    WITH task AS (SELECT key, any_value(hops) AS hops, any_value(answers) AS answers FROM tasks GROUP BY key),
    shown AS (
        SELECT trajectory_id, string_agg(lower(observation), chr(10)) AS text FROM turns WHERE observation IS NOT NULL GROUP BY ALL
    )
    SELECT policy, suite, hops, count(*) AS valid, sum(n_calls)::INT AS calls, count_if(outcome = 'failure')::INT AS failures,
        count_if(outcome = 'failure' AND list_bool_or([contains(shown.text, lower(answer)) FOR answer IN answers]))::INT AS had_the_answer
    FROM trajectories JOIN task ON task.key = task_key LEFT JOIN shown ON shown.trajectory_id = trajectories.id
    WHERE stage = 'eval' AND outcome IN ('success', 'failure') GROUP BY ALL ORDER BY ALL
"""
_STEPS = """
    SELECT policy, step, count(*) AS valid, count_if(outcome = 'success')::INT AS successes
    FROM trajectories WHERE stage = 'rl' AND step IS NOT NULL AND outcome IN ('success', 'failure') GROUP BY ALL ORDER BY ALL
"""

_TRIES = """
    SELECT policy, stage, suite, count(*) AS valid, sum(in_vain)::INT AS in_vain, sum(retried)::INT AS retried,
        count_if(same + pages + words > 0)::INT AS again
    FROM search_habits WHERE stage IN ('eval', 'rollout') AND outcome IN ('success', 'failure') GROUP BY ALL ORDER BY ALL
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    collecting = commands.add_parser("collect", help="read finished homes, one a seed")
    collecting.add_argument("name")
    collecting.add_argument("homes", nargs="+", type=Path)
    collecting.add_argument("--command", action="append", required=True, help="what made them; repeatable")
    collecting.add_argument("--add", action="store_true", help="keep what the file has of other seeds")
    collecting.add_argument("--words", action="append", default=[], metavar="POLICY=TEXT", help="what a policy is; repeatable")
    commands.add_parser("write")
    commands.add_parser("check")
    options = parser.parse_args()
    if options.do == "collect":
        words = dict(text.split("=", 1) for text in options.words)
        try:
            homes = [read_home(home) for home in options.homes]
            if options.add:
                homes = merged(kept(options.name).get("homes", []), homes)
            keep(options.name, {"commands": options.command, "words": words, "homes": homes})
        except RequestError as error:
            parser.error(str(error))
        return
    stale = [page for page in pages() if filled(text := page.read_text()) != text]
    for page in stale if options.do == "write" else ():
        page.write_text(filled(page.read_text()))
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is written anew' if options.do == 'write' else 'says something else than the data'}")
    files = {path.stem: kept(path.stem).get("homes", []) for path in sorted(RESULTS.glob("*.json"))}
    wrong = [f"{name}: {what}" for name, homes in files.items() for home in homes for what in recomputed(home)]
    for what in wrong:
        print(f"{what} does not follow from its verdicts per task")
    raise SystemExit(1 if wrong or (stale and options.do == "check") else 0)


def merged(old: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """All of both by their seeds: what is new of a seed takes the place of all that was old of it."""
    seeds = {each["seed"] for each in new}
    return sorted([*(each for each in old if each["seed"] not in seeds), *new], key=lambda each: each["seed"])


def keep(name: str, content: Record) -> Path:
    """Write a file of results, with commit, machine, versions and day."""
    RESULTS.mkdir(exist_ok=True)
    record = {
        "measured": datetime.now(UTC).date().isoformat(),
        "commit": current_commit(),
        "machine": {"processor": _processor(), "cpus": len(os.sched_getaffinity(0)), "system": platform.platform(terse=True)},
        "versions": {"python": platform.python_version(), **_versions()},
        **content,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def current_commit() -> str:
    """The commit of this checkout, in short."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _versions() -> dict[str, str]:
    found = packages_distributions()
    return {package: version(found[package][0]) for package in PACKAGES}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def read_home(root: Path) -> Record:
    """The raw counts of one finished home.

    Raises:
        RequestError: it holds calls twice, as where trajectories were deleted by hand and made anew: what counts calls would count both.
    """
    with Lake(root, read_only=True) as lake:
        calls = "count(*) - count(DISTINCT (trajectory_id, turn_index, call_index))"
        (found,) = lake.query(f"SELECT {calls} AS twice FROM tool_calls").to_pylist()
        if found["twice"]:
            raise RequestError(f"{root} holds {found['twice']} calls of tools twice: nothing is published of it.")
        sql = "SELECT policy, suite, hops, tasks - invalid AS valid, round(success * (tasks - invalid))::INT AS successes, invalid"
        rows = lake.query(f"{sql} FROM evaluations ORDER BY suite, policy, hops NULLS FIRST").to_pylist()
        sql = "SELECT id, date_diff('second', started, finished) AS seconds FROM runs WHERE state = 'completed' ORDER BY started"
        stages = {row["id"]: row["seconds"] for row in lake.query(sql).to_pylist()}
        habits = lake.query(_HABITS).to_pylist()
        steps, tries = lake.query(_STEPS).to_pylist(), lake.query(_TRIES).to_pylist()
        verdicts = read_verdicts(lake)
        codes = sorted({code for run in lake.runs() for code in str(run.figures.get(CODE, "unknown")).split()})
    if len(codes) > 1:
        raise RequestError(f"{root} was made by several versions of the code, {', '.join(codes)}: make it again with one.")
    pairs = []
    for (first, suite), (second, other) in combinations(sorted(verdicts), 2):
        test = paired(verdicts[first, suite], verdicts[second, other]) if suite == other else None
        if test is not None:
            pairs.append({"suite": suite, "a": first, "b": second, **counts_of(test)})
    seed = Home(root).load().seed
    return {
        "seed": seed,
        "code": codes,
        "verdicts": per_task(verdicts),
        "evaluations": rows,
        "pairs": pairs,
        "habits": habits,
        "tries": tries,
        "steps": steps,
        "seconds": stages,
    }


def per_task(verdicts: Mapping[tuple[str, str], Solved]) -> dict[str, dict[str, str]]:
    """By suite and policy, the verdict on each task in the order of their keys: 1 solved, 0 failed, - without a verdict."""
    keys: dict[str, set[str]] = {}
    for (_, suite), solved in verdicts.items():
        keys.setdefault(suite, set()).update(solved)
    if any(value not in (0.0, 1.0) for solved in verdicts.values() for value in solved.values()):
        raise RequestError(ONE_ATTEMPT)
    found: dict[str, dict[str, str]] = {suite: {} for suite in keys}
    for (policy, suite), solved in verdicts.items():
        found[suite][policy] = "".join(f"{solved[key]:.0f}" if key in solved else "-" for key in sorted(keys[suite]))
    return found


def recomputed(home: Record) -> list[str]:
    """What of a home's successes and pairs does not follow from its verdicts per task."""
    wrong = []
    verdicts: Mapping[str, Mapping[str, str]] = home.get("verdicts", {})
    for row in home["evaluations"]:
        signs = verdicts.get(row["suite"], {}).get(row["policy"])
        counts = None if signs is None else (signs.count("1"), len(signs) - signs.count("-"))
        if row["hops"] is None and counts not in (None, (row["successes"], row["valid"])):
            wrong.append(f"{row['policy']} on {row['suite']}")
    for pair in home["pairs"]:
        suite = verdicts.get(pair["suite"], {})
        if pair["a"] in suite and pair["b"] in suite:
            test = paired(_solved(suite[pair["a"]]), _solved(suite[pair["b"]]))
            if test is None or counts_of(test).items() - pair.items():
                wrong.append(f"{pair['a']} against {pair['b']} on {pair['suite']}")
    return wrong


def _solved(signs: str) -> Solved:
    """Verdicts of `per_task`, by place."""
    return {place: float(sign) for place, sign in enumerate(signs) if sign != "-"}


def counts_of(test: PairedTest | SignFlips) -> dict[str, int]:
    """How many tasks both of two policies solved, only the one or the other, or neither.

    Raises RequestError where there are several attempts at a task.
    """
    if isinstance(test, SignFlips):
        raise RequestError(ONE_ATTEMPT)
    return {"both": test.both, "only_a": test.only_a, "only_b": test.only_b, "neither": test.neither}


def load(name: str) -> Record:
    """A file of results. Raises RequestError where there is none."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise RequestError(f"there are no results {path.relative_to(ROOT)}; `python -m benchmarks.evidence collect {name} …` makes them.")
    record: Record = json.loads(path.read_text())
    return record


def kept(name: str) -> Record:
    """What there is of a file of results; nothing where there is none."""
    return load(name) if (RESULTS / f"{name}.json").is_file() else {}


def pages() -> list[Path]:
    """The pages that hold figures."""
    return sorted(page for pattern in PAGES for page in ROOT.glob(pattern))


def filled(text: str) -> str:
    """A page with every marked place filled by its table."""
    return _PLACE.sub(lambda found: f"{found[1]}{_content(found[2], found[3].split(), found[4])}{found[5]}", text)


def _content(name: str, arguments: Sequence[str], before: str) -> str:
    if name not in TABLES:
        raise RequestError(f"there is no table {name!r}; choose of {', '.join(sorted(TABLES))}.")
    made = TABLES[name](load(arguments[0]), *arguments[1:])
    return f"\n\n{made}\n\n" if "\n" in before or "\n" in made else made


if __name__ == "__main__":
    main()
