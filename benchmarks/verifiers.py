"""What the verifiers get right, and what they survive: `python -m benchmarks.verifiers [--json]`.

Five tables: GSM8K's test references against themselves and against what is made from them; FireAct's own em and f1 on every released
row; the negatives in `tests/eval/negatives.jsonl`, none of which may pass; the cases of math-verify's and lighteval's own tests; and
`--fuzz` made-up inputs through each of `--kinds`, with the seconds that each took, the killed ones counted. `--data` holds `math_gsm8k`
and `trajectories/fireact`; without them those tables are left out, and with `--fuzz 0` the last.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from eval.graders.answers import f1, squad_match  # noqa: E402
from eval.graders.mathematics import WORKERS, Extraction  # noqa: E402
from eval.graders.rows import verify_rows  # noqa: E402
from eval.graders.verifiers import GRADERS  # noqa: E402
from eval.suites.validation import Subject, validate  # noqa: E402
from tests.eval.graders.fuzzing import GOLDS, fuzz  # noqa: E402
from tests.eval.graders.math_cases import CASES, SUITES, taken  # noqa: E402
from warehouse.public_data.catalogue import data_root  # noqa: E402
from warehouse.records import Outcome  # noqa: E402

Row = dict[str, Any]


def gsm8k(data: Path) -> list[Row]:
    """Each reference against itself, against the next row's, and against what is made from it, by two kinds."""
    rows = [json.loads(line) for line in (data / "math_gsm8k" / "test.jsonl").read_text().splitlines()]
    subjects = [Subject(str(number), (row["answer"],), question=row["question"]) for number, row in enumerate(rows)]
    table = []
    for kind in ("gsm8k", "math"):
        found = validate(GRADERS[kind], subjects)
        sorts = {"itself": found.gold, **found.negatives}
        for sort, tally in sorts.items():
            passed = tally.tried - tally.mistaken if sort == "itself" else tally.mistaken
            table.append({"kind": kind, "answer": sort, "tried": tally.tried, "passed": passed})
    return table


def fireact(data: Path) -> list[Row]:
    """Released rows, those with a prediction, and how many of their figures come out the same."""
    table = []
    for path in sorted((data / "trajectories" / "fireact").glob("*.json")):
        rows = list(json.loads(path.read_text()).values())
        same_em = sum(squad_match(row["pred"], [row["gt"]]) == row["em"] for row in rows)
        same_f1 = sum(abs(f1(row["pred"], [row["gt"]]) - float(row["f1"])) < 1e-9 for row in rows)
        answered = sum(bool(row["pred"].strip()) for row in rows)
        table.append({"file": path.stem, "rows": len(rows), "answered": answered, "em_same": same_em, "f1_same": same_f1})
    return table


def negatives() -> list[Row]:
    """The committed negatives by kind: none may pass, and none may go without a verdict."""
    rows = [json.loads(line) for line in (ROOT / "tests" / "eval" / "negatives.jsonl").read_text().splitlines()]
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        (judged,) = verify_rows(row["kind"], [row])
        counts[row["kind"], judged.verdict] += 1
    kinds = Counter(row["kind"] for row in rows)
    return [
        {"kind": kind, "negatives": total, "passed": counts[kind, Outcome.SUCCESS], "not judged": counts[kind, Outcome.INVALID]}
        for kind, total in sorted(kinds.items())
    ]


def math_cases() -> list[Row]:
    """How many right and wrong cases of either suite `math` takes for right, by extraction."""
    table = []
    for suite in SUITES:
        for extraction in Extraction:
            judged = [(case["right"], passed) for case, passed in zip(CASES, taken(extraction), strict=True) if case["suite"] == suite]
            right, wrong = ([passed for sort, passed in judged if sort is wanted] for wanted in (True, False))
            share = 100 * sum(right) / len(right)
            counts = {"right": len(right), "taken": sum(right), "percent": share, "wrong": len(wrong), "wrong taken": sum(wrong)}
            table.append({"suite": suite, "extraction": extraction.value, **counts})
    return table


def fuzzed(kind: str, count: int, seed: int) -> Row:
    """`count` inputs through a kind. An exception that is no verdict ends the benchmark; whatever takes long is in the seconds."""
    list(verify_rows(kind, [{"id": 0, "gold": "1/2", "pred": "0.5"}]))  # a worker's start is not an input's time
    with ThreadPoolExecutor(WORKERS if kind == "math" else 1) as threads:
        timed = list(threads.map(lambda row: _timed(kind, row), fuzz(kind, count, seed)))
    seconds = sorted(took for took, _, _ in timed)
    verdicts = Counter(verdict for _, verdict, _ in timed)
    killed = sum(error is not None and "too long" in error for _, _, error in timed)
    died = sum(error is not None and "ended its process" in error for _, _, error in timed)
    return {
        "kind": kind,
        "inputs": count,
        "success": verdicts[Outcome.SUCCESS],
        "failure": verdicts[Outcome.FAILURE],
        "invalid": verdicts[Outcome.INVALID],
        "killed": killed,
        "died": died,
        "p50_ms": 1e3 * seconds[count // 2],
        "p99_ms": 1e3 * seconds[min(count - 1, count * 99 // 100)],
        "longest_s": seconds[-1],
    }


def _timed(kind: str, row: Row) -> tuple[float, Outcome, str | None]:
    clock = time.perf_counter()
    (judged,) = verify_rows(kind, [row])
    return time.perf_counter() - clock, judged.verdict, judged.error


def print_table(title: str, rows: list[Row]) -> None:
    """The rows as a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(rows[0])} |\n|{' --- |' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(f'{value:.3g}' if isinstance(value, float) else str(value) for value in row.values())} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fuzz", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="what the made-up inputs follow from")
    parser.add_argument("--kinds", nargs="+", default=list(GOLDS), choices=list(GOLDS), help="the kinds that fuzzed inputs go through")
    parser.add_argument("--data", type=Path, default=data_root())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tables: dict[str, list[Row]] = {}
    if (arguments.data / "math_gsm8k").is_dir():
        tables["gsm8k"] = gsm8k(arguments.data)
    if (arguments.data / "trajectories" / "fireact").is_dir():
        tables["fireact"] = fireact(arguments.data)
    tables["negatives"] = negatives()
    tables["math-verify and lighteval"] = math_cases()
    if arguments.fuzz:
        tables["fuzz"] = [fuzzed(kind, arguments.fuzz, arguments.seed) for kind in arguments.kinds]
    if arguments.json:
        print(json.dumps(tables))
    else:
        for title, rows in tables.items():
            print_table(title, rows)


if __name__ == "__main__":
    main()
