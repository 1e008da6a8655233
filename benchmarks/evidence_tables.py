"""The tables that docs make of a file of results, by the names that their marks have (`benchmarks/evidence.py`).

Intervals and p-values are computed here, of the raw counts that a file holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from statistics import median
from typing import Any

from benchmarks.claims import MARGIN, verdict
from benchmarks.tables import points, rate, table
from eval.statistics import PairedTest, sign_test, wilson
from flows.report.yields import counted_words
from flows.results import signed

Record = dict[str, Any]
"""The content of a file of results."""


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


def above_controls(record: Record, policy: str = "t1-rl", suite: str = "held_out") -> str:
    """The points by which a policy is above the best of all others on the same tasks, with the p-value, seed by seed."""
    found = []
    for home in record["homes"]:
        others = {row["policy"] for row in home["evaluations"] if row["suite"] == suite} - {policy}
        tests = [test for other in others if (test := _pair(home, suite, other, policy)) is not None]
        least = min(tests, key=lambda test: test.difference)
        found.append(points(least.difference, least.p_value))
    return ", ".join(found)


def seed_names(record: Record) -> str:
    """The seeds that there are."""
    return ", ".join(str(home["seed"]) for home in record["homes"])


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


def seconds(record: Record, run: str) -> str:
    """Seconds of one stage, seed by seed."""
    return ", ".join(f"{home['seconds'][run]:.0f}" for home in record["homes"])


def commands(record: Record) -> str:
    """What was run, where and when."""
    machine = record["machine"]
    where = f"{machine['processor']}, {machine['cpus']} CPUs; commit {record['commit']}, {record['measured']}"
    return "\n".join(["```", *record["commands"], "```", "", f"({where})"])


def packing(record: Record) -> str:
    """Tokens a second of RL's learners, repeat by repeat, and of each by that with padding: by the clock and of the processor."""
    repeats = record["speeds"]["repeats"]
    joined = [name for name in repeats if name != "padded"]
    rows = []
    for name, key in (("the clock", "seconds"), ("the processor", "processor_seconds")):
        shown = {each: [row["tokens"] / row[key] for row in repeats[each]] for each in repeats}
        shares = [f"{median(shown[each]) / median(shown['padded']):.2f}" for each in joined]
        rows.append([name, *(", ".join(f"{rate:.0f}" for rate in shown[each]) for each in shown), *shares])
    return table(["tokens a second of", *repeats, *(f"{each} / padded, medians" for each in joined)], rows)


def learners(record: Record) -> str:
    """Our RL and TRL's, seed by seed: the time to the goal or to the last step, and theirs by ours (to the goal: at least, if given up)."""
    rows = []
    for seed, ours, theirs in _by_seed(record):
        times = [f"{run['ends'][-1]:.0f} ({run['steps']}{'' if run['seconds'] else ', given up'})" if run else "" for run in (ours, theirs)]
        starts = [f"{run['started']:.0f}" if run else "" for run in (ours, theirs)]
        rows.append([str(seed), *times, _their_time(ours, theirs, record.get("steps")), *starts])
    return table(["seed", "ours, s (steps)", "TRL, s (steps)", "TRL's time by ours", "start-up, ours, s", "TRL's, s"], rows)


def trl_time(record: Record) -> str:
    """How many times as long as our RL TRL's takes, seed by seed."""
    return ", ".join(_their_time(ours, theirs, record.get("steps")) for _, ours, theirs in _by_seed(record))


def _by_seed(record: Record) -> list[tuple[int, Record | None, Record | None]]:
    runs = {(run["seed"], run["learner"]): run for run in record["runs"]}
    return [(seed, runs.get((seed, "ours")), runs.get((seed, "TRL"))) for seed in sorted({seed for seed, _ in runs})]


def _their_time(ours: Record | None, theirs: Record | None, steps: int | None) -> str:
    if ours is None or theirs is None or not ours["seconds"]:
        return ""
    last = theirs["steps"] if steps and not theirs["seconds"] else ours["steps"]
    return f"{theirs['ends'][-1] / ours['ends'][last - 1]:.1f}"


def asked(record: Record) -> str:
    """What each part of synthesis asked a teacher, how many replies came back whole, and what was counted of them."""
    rows = []
    for row in (each for each in record["rows"] if "part" in each):
        shown = [f"{row['figures'].get(name, 0):,.0f}" for name in ("asked", "completed", "tokens", "seconds")]
        right = record["judged"].get(f"{row['corpus']}/{row['part'].partition(' ')[0]}")
        rows.append([row["corpus"], row["part"], *shown, counted_words(row["figures"]), f"{right[0]} of {right[1]}" if right else ""])
    return table(["corpus", "part", "asked", "whole", "tokens", "seconds", "of these", "right, by hand"], rows)


def dropped(record: Record) -> str:
    """Why what a teacher wrote was dropped, and how what it played ended."""
    rows = []
    for row in (each for each in record["rows"] if "dropped" in each):
        kinds = groupby((each for each in row["dropped"] if each["stage"] != "corpus"), key=lambda each: each["stage"])
        for stage, found in kinds:
            rows.append([row["corpus"], f"`{stage}`", ", ".join(f"{each['n']} `{each['kind']}`" for each in found)])
    return table(["corpus", "stage", "dropped"], rows)


def first_minutes(record: Record) -> str:
    """Seconds of each part of a stranger's first minutes, day by day, with the fixed loop's; then the least and the most of each."""
    parts = list(dict.fromkeys(part for day in record["days"] for part in day["seconds"]))
    rows = []
    for day in record["days"]:
        shown = [f"{day['seconds'][part]:.0f}" if part in day["seconds"] else "" for part in parts]
        loop = f"{min(day['loop']):.1f}–{max(day['loop']):.1f}" if day["loop"] else ""
        rows.append([day["day"], day["commit"], loop, *shown])
    found = [[day["seconds"][part] for day in record["days"] if part in day["seconds"]] for part in parts]
    for name, chosen in (("least", min), ("most", max)):
        rows.append([name, "", "", *(f"{chosen(seconds):.0f}" for seconds in found)])
    return table(["day", "commit", "fixed loop, s", *(f"`{part}`, s" for part in parts)], rows)


def took(record: Record, *parts: str) -> str:
    """Minutes and seconds of parts together, on the day on which they took least and, where it is another, on which they took most."""
    days = [day["seconds"] for day in record["days"] if all(part in day["seconds"] for part in parts)]
    sums = [round(sum(seconds[part] for part in parts)) for seconds in days]
    shown = [f"{total // 60} min {total % 60} s" if total >= 60 else f"{total} s" for total in sorted({min(sums), max(sums)})]
    return " to ".join(shown)


def own_data(record: Record, suite: str = "deep") -> str:
    """Wheels on their own data and on others', seed by seed: success turn by turn, the last against the first, and `own` against each."""
    rows = [row for row in record["rows"] if row["suite"] == suite]
    most = max((len(row["turns"]) for row in rows), default=0)
    lines = []
    for row in rows:
        rates = [f"{100 * turn['successes'] / turn['tasks']:.1f}" for turn in row["turns"]]
        changes = [points((test := _test(row[key])).difference, test.p_value) if row[key] else "" for key in ("from_first", "own_above")]
        steps = [" ".join(f"{turn[f'{stage}_steps']:,}" for turn in row["turns"][1:]) for stage in ("cpt", "sft")]
        lines.append([str(row["seed"]), f"`{row['arm']}`, {row['words']}", *rates, *[""] * (most - len(rates)), *changes, *steps])
    turns = [f"turn {number}, %" for number in range(1, most + 1)]
    return table(["seed", "from turn 2 on", *turns, "first to last, points", "`own` above it", "CPT's steps", "SFT's"], lines)


def own_seeds(record: Record, key: str, arm: str = "own", suite: str = "deep") -> str:
    """On how many of the seeds the last turn is above the first (`from_first`), or `own` above an arm (`own_above`), and p < 0.01 there."""
    tests = [_test(row[key]) for row in record["rows"] if (row["suite"], row["arm"]) == (suite, arm)]
    above = [test for test in tests if test.difference > 0]
    return f"{len(above)} of {len(tests)} ({sum(test.p_value < 0.01 for test in above)} at p < 0.01)"


def own_verdict(record: Record, arm: str, turn: str = "last", suite: str = "deep") -> str:
    """By how many points `own` is above an arm after a turn, seed by seed, the mean with its interval, and the verdict on it."""
    own, other = (_turns(record, name, suite) for name in ("own", arm))
    after = {seed: max(turns) if turn == "last" else int(turn) for seed, turns in other.items()}
    return _verdict_words(own[seed][number] - other[seed][number] for seed, number in after.items())


def own_rise(record: Record, since: str, arm: str = "own", suite: str = "deep") -> str:
    """By how many points an arm's last turn is above its turn `since`, seed by seed, the mean with its interval, and the verdict on it."""
    return _verdict_words(turns[max(turns)] - turns[int(since)] for turns in _turns(record, arm, suite).values())


def _turns(record: Record, arm: str, suite: str) -> dict[int, dict[int, float]]:
    of_arm = [row for row in record["rows"] if (row["suite"], row["arm"]) == (suite, arm)]
    return {row["seed"]: {turn["turn"]: turn["successes"] / turn["tasks"] for turn in row["turns"]} for row in of_arm}


def _verdict_words(shares: Iterable[float]) -> str:
    differences = [100 * share for share in shares]
    found, mean = verdict(differences, 100 * MARGIN)
    if mean is None:
        return str(found)
    return f"{', '.join(map(signed, differences))}; in the mean {signed(mean.value)} ({signed(mean.low)} to {signed(mean.high)}): {found}"


def lake_views(record: Record, limit: str = "1.0") -> str:
    """Every view and macro of the lake that was read whole, the slowest last; those below a fifth of `limit` seconds in one line."""
    read = sorted(record["views"]["views"].items(), key=lambda each: each[1]["p95"])
    quick = [(name, row) for name, row in read if row["p95"] < float(limit) / 5]
    rows = []
    if quick:
        names, found = ", ".join(f"`{name}`" for name, _ in quick), [row for _, row in quick]
        most = (max(row[key] for row in found) for key in ("rows", "median", "p95"))
        rows.append(
            [names, *(f"to {figure:{form}}" for figure, form in zip(most, (",", ".2f", ".2f"), strict=True)), str(found[0]["reads"])]
        )
    for name, row in read[len(quick) :]:
        rows.append([f"`{name}`", f"{row['rows']:,}", f"{row['median']:.2f}", f"{row['p95']:.2f}", str(row["reads"])])
    return table(["view or macro", "rows", "median, s", "p95, s", "reads"], rows)


def lake_ingest(record: Record) -> str:
    """Write throughput of the lake against DuckDB's COPY of the same rows."""
    told = record["ingest"]
    size, seconds = told["trajectories"], told["lake_seconds"]
    rate = f"{seconds:.0f} s: {size / seconds:,.0f} trajectories, {told['turns'] / seconds:,.0f} turns a second"
    rows = [
        ["records into the lake, 10,000 trajectories a commit", rate],
        ["DuckDB's COPY of the same rows from Arrow to Parquet", f"{told['copy_seconds']:.0f} s"],
        ["ratio (the aim was 0.5)", f"{told['ratio']:.2f}, of processor time {told['ratio_of_processor']:.2f}"],
        ["peak memory of the process that ingests", f"{told['peak_mib'] / 1024:.1f} GiB"],
        ["how they searched, counted once at the ends of stages", f"{record['counts']['seconds']:.0f} s"],
    ]
    return table(["", f"{size:,} trajectories"], rows)


def updates(record: Record) -> str:
    """Duration of weight updates, full and adapters only, and sampled tokens per second with each."""
    rows = []
    for row in record["rows"]:
        whole = [f"{row[key]:.2f}" for key in ("write", "files", "transfer")]
        alone = [f"{row[key]:.2f}" for key in ("write_adapters", "adapters")]
        rows.append([row["policy"], "all weights", f"{row['mib']:.0f}", *whole, f"{row['rate']:,.0f}"])
        rows.append(
            [row["policy"], f"adapters of rank {record['rank']}", f"{row['mib_adapters']:.1f}", *alone, "", f"{row['rate_adapters']:,.0f}"]
        )
    heads = ["policy", "what comes", "MiB", "learner writes it, s", "engine loads it, s", f"engine is sent it by {record['transfer']}, s"]
    return table([*heads, "tokens sampled a second"], rows)


def peaks(record: Record, layers: str | None = None) -> str:
    """The peak of memory by context, planned, measured, and under a mask: of the `whole` policy, of its first so many layers, or both."""
    chosen = {None if layers == "whole" else int(layers)} if layers else {row["layers"] for row in record["rows"]}
    wanted = [row for row in record["rows"] if row["layers"] in chosen]
    rows = []
    for setting, found in groupby(wanted, key=lambda row: (row["tokens"], *_how(row))):
        by_attention = {row["attention"]: row for row in found}
        planned = next(iter(by_attention.values()))["planned"]
        measured = {name: row["measured"] for name, row in by_attention.items()}
        shown = [f"{size / 2**20:,.0f}" if size else "" for size in (planned, measured.get("varlen"), measured.get("sdpa"))]
        share = f"{planned / measured['varlen']:.2f}" if "varlen" in measured else ""
        rows.append([f"{setting[0]:,}", ", ".join(setting[1:]), *shown[:2], share, shown[2]])
    return table(["tokens", "setting", "planned, MiB", "measured, MiB", "planned / measured", "under a mask, MiB"], rows)


def _how(row: Record) -> list[str]:
    said = [f"{row['layers']} layers" if row["layers"] else "all layers", "bfloat16" if row["bfloat16"] else "float32"]
    return said + [word for word in ("checkpointing", "critic") if row[word]]


TABLES: dict[str, Callable[..., str]] = {
    each.__name__: each for each in (
        stages, seeds, habits, calls, tries, success, sampled, gain, above_controls, seed_names, answer, minutes, seconds, commands,
        packing, peaks, updates, learners, trl_time, asked, dropped, first_minutes, took, own_data, own_seeds, own_verdict,
        own_rise, lake_views, lake_ingest,
    )
}  # fmt: skip
"""The tables by name; the first argument of each is the content of a file of results."""


def _pair(home: Record, suite: str, a: str, b: str) -> PairedTest | None:
    for pair in home["pairs"]:
        if pair["suite"] == suite and {pair["a"], pair["b"]} == {a, b} and a != b:
            only_a, only_b = (pair["only_a"], pair["only_b"]) if pair["a"] == a else (pair["only_b"], pair["only_a"])
            return _test({**pair, "only_a": only_a, "only_b": only_b})
    return None


def _test(counts: Record) -> PairedTest:
    only_a, only_b = counts["only_a"], counts["only_b"]
    return PairedTest(counts["both"], only_a, only_b, counts["neither"], sign_test(only_a, only_b))


def _in_order(policies: Iterable[str]) -> list[str]:
    stages_ = ("init", "cpt", "sft", "rl")

    def place(policy: str) -> tuple[int, int, str]:
        turn, stage, *variant = policy.split("-", 2)
        return int(turn[1:]), stages_.index(stage), "".join(variant)

    return sorted(set(policies), key=place)


def _words(record: Record, policy: str) -> str:
    words = record.get("words", {}).get(policy)
    return f", {words}" if words else ""


def _rate(row: Record, interval: bool = False) -> str:
    if not row["valid"]:
        return "–"
    return rate(row["successes"], row["valid"]) if interval else f"{100 * row['successes'] / row['valid']:.1f}"
