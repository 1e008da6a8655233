"""What this package's learner does on one GPU, in under nine minutes: `python -m benchmarks.gpu --minutes 9 [--json]`.

Tokens a second and MFU of RL and CPT steps, full and with adapters, of Qwen2 architectures of 0.5 and 1.5 B with random weights at 2 k,
8 k, 32 k and 64 k tokens; the peak of memory against what `flywheel plan` says; the error of log-probabilities in bfloat16 against
float32, as NeMo RL defines it (`rl/learner/metrics.py`; random weights have flat distributions, so that of a trained policy is larger); and
whether two steps repeat bit by bit. Two rows are the architectures of prime-rl's published figures of one H100 (`benchmarks/baselines` of
its repository; the second comes without a length, and the longest is taken), printed with them. `benchmarks/learner.py` measures.

Rows come in the order of what they tell. They run in a process of their own: one that runs out of memory, fails or takes longer than
`--row-seconds` is a row that says so, and the next one goes on; what has not begun by `--minutes` is listed as not run. Without a GPU a
small policy is measured in the same way, on one thread.

It wants torch and transformers, and neither Ray, vLLM nor a network. What else the machine lacks of the following goes into a folder of
wheels, 40 MB without pandas and pyarrow, in the versions of requirements/gpu.lock, fetched elsewhere for its Python by `pip download
--no-deps --only-binary=:all: --python-version 3.12 -d wheels NAME==VERSION …`: accelerate annotated-types bm25s datasets dill duckdb
multiprocess pandas peft pyarrow pydantic pydantic-core transformers trl typing-inspection xxhash. There, from the root of this
repository (dill, which datasets uses, asks that a folder of packages be called site-packages):

    python -m pip install --no-index --no-deps --target /tmp/site-packages wheels/*.whl
    PYTHONPATH=/tmp/site-packages:. python -m benchmarks.gpu --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.learner import Case, Limits, Stage, free, limit_memory, measure, memory_of_device, on_gpu
from benchmarks.tables import table

ROOT = Path(__file__).parent.parent
PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "triton", "flash-attn")
HALF, LARGER = "qwen2_0.5b", "qwen2_1.5b"
REFERENCES = {
    Case("speed", "qwen3_0.6b", 65_536, "rl", None, checkpointing=True): {"tokens_per_second": 10_147, "mfu": 0.268},
    Case("speed", "qwen3_4b", 65_536, "rl", 16, checkpointing=True): {"tokens_per_second": 4_164, "mfu": 0.374},
}
"""What prime-rl publishes of one H100 (80 GB), with FlashAttention 3 and activations computed again."""
AIM = 0.9
"""Of those."""
SMALL_BLOCK = 1 << 16
"""On CPUs, blocks of this size are given back when they are freed, so that what lingers in the allocator is not counted."""
Row = dict[str, Any]
"""A case, its `state` (measured, out_of_memory, failed, out_of_time, not_run), and its figures or what went wrong."""


def cases(small: bool) -> list[Case]:
    """All rows, those that tell most first."""
    if small:
        return [
            Case("speed", "small", 512), Case("precision", "small", 128), Case("repeat", "small", 128), Case("speed", "small", 512, "cpt"),
            Case("speed", "small", 128, "rl", 16), Case("speed", "small", 128, "cpt", 16),
        ]  # fmt: skip
    first, second = REFERENCES
    found = [first, Case("precision", HALF, 2048), Case("repeat", HALF, 8192), *_lengths("rl", None), second]
    found += [Case("precision", LARGER, 2048), Case("repeat", HALF, 8192, "cpt")]
    return [*found, *_lengths("cpt", None), *_lengths("rl", 16), *_lengths("cpt", 16)]


def _lengths(stage: Stage, adapters: int | None) -> list[Case]:
    return [Case("speed", size, tokens, stage, adapters) for tokens in (8192, 65_536, 32_768, 2048) for size in (HALF, LARGER)]


# -- the process that measures ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """What a process is to measure."""

    cases: list[Case]
    seconds: float
    steps: int
    gib: float | None

    @classmethod
    def of(cls, text: str) -> Work:
        given = json.loads(text)
        return cls(**{**given, "cases": [Case(**each) for each in given["cases"]]})


def child(work: Work) -> None:
    """Measure case after case, and say so on standard output, a line each; what libraries print there goes to standard error."""
    import torch

    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if not on_gpu():
        torch.set_num_threads(1)  # on a busy machine threads wait for each other
    memory = memory_of_device() if work.gib is None else limit_memory(work.gib)
    limits = Limits(work.seconds, work.steps, memory if on_gpu() else None)
    for case in work.cases:
        tell.write("begins\n")
        try:
            row = {"state": "measured", **measure(case, limits)}
        except Exception as error:
            lacking = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
            row = {"state": "out_of_memory" if lacking else "failed", "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        free()  # here, where the error holds nothing any more
        tell.write(json.dumps(row) + "\n")
        if row["state"] == "failed":  # an error of CUDA's stays; the rest begins in a process of its own
            return


# -- the process that keeps the time -----------------------------------------------------------------------------------------------


def run(work: Work, row_seconds: float, deadline: float) -> Iterator[Row]:
    """The rows of all cases, in their order, by `deadline` of `time.monotonic`."""
    left = list(work.cases)
    while left and time.monotonic() < deadline:
        for row in _one_process(Work(left, work.seconds, work.steps, work.gib), row_seconds, deadline):
            yield {**asdict(left.pop(0)), **row}
    for case in left:
        yield {**asdict(case), "state": "not_run"}


def _one_process(work: Work, row_seconds: float, deadline: float) -> Iterator[Row]:
    blocks = {} if on_gpu() else {"MALLOC_MMAP_THRESHOLD_": str(SMALL_BLOCK), "MALLOC_TRIM_THRESHOLD_": str(SMALL_BLOCK)}
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", json.dumps(asdict(work))]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **blocks}, cwd=ROOT)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        begun, told, ends = False, 0, deadline
        try:
            while told < len(work.cases):
                line = lines.get(timeout=max(0.0, min(ends, deadline) - time.monotonic()))
                if line is None:
                    yield {"state": "failed", "error": _why(process.wait(), log)}
                    return
                begun = line == "begins\n"
                ends = time.monotonic() + row_seconds if begun else deadline
                if not begun:
                    told += 1
                    row = json.loads(line)
                    yield row
                    if row["state"] == "failed":
                        return
        except queue.Empty:
            if begun:
                yield {"state": "out_of_time"}
        finally:
            process.kill()
            process.wait()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _why(status: int, log: Any) -> str:
    log.seek(0)
    last = [line for line in log.read().splitlines() if line.strip()][-1:]
    return f"the process ended with status {status}: {last[0] if last else 'it said nothing'}"


# -- what is printed ---------------------------------------------------------------------------------------------------------------


def with_reference(row: Row) -> Row:
    """The row, with published results for the same architecture."""
    case = Case(**{name: row[name] for name in Case.__dataclass_fields__})
    known = REFERENCES.get(case)
    if known is None:
        return row
    share = {"reference": {**known, "aim": AIM}}
    if row["state"] == "measured":
        share["reference"]["share"] = row["tokens_per_second"] / known["tokens_per_second"]
    return {**row, **share}


def record(rows: Sequence[Row], minutes: float) -> dict[str, Any]:
    """All rows, and what they were measured on."""
    import torch

    memory = memory_of_device()
    return {
        "device": torch.cuda.get_device_name() if on_gpu() else "CPU",
        "memory_bytes": memory,
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "versions": {"python": platform.python_version(), **{name: found for name in PACKAGES if (found := _version(name))}},
        "commit": _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "minutes": minutes,
        "rows": list(rows),
    }


def _said(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def show(found: dict[str, Any]) -> str:
    """The record as people read it."""
    heads = ["policy", "tokens", "stage", "tokens/s", "MFU", "of prime-rl's", "peak, GiB", "planned / measured", "how"]
    speeds = [row for row in found["rows"] if row["kind"] == "speed" and row["state"] != "not_run"]
    parts = [
        f"{found['device']}, driver {found['driver']}, commit {found['commit']}, {found['versions']}",
        table(heads, map(_cells, speeds)),
    ]
    parts += [_line(row) for row in found["rows"] if row["kind"] != "speed" and row["state"] != "not_run"]
    missing = [f"{row['kind']} {row['size']} {row['stage']} {row['tokens']}" for row in found["rows"] if row["state"] == "not_run"]
    return "\n\n".join([*parts, *([f"Not run: {', '.join(missing)}"] if missing else [])])


def _line(row: Row) -> str:
    name = f"{row['kind']}, {row['size']} {row['stage']} at {row['tokens']:,} tokens: "
    if row["state"] != "measured":
        return f"{name}{row['state'].replace('_', ' ')} {row.get('error', '')}"
    if row["kind"] == "repeat":
        return name + ("the same bit by bit" if row["identical"] else f"weights differ by {row['largest_difference']:g}")
    return f"{name}token_mult_prob_error {row['token_mult_prob_error']:.5f}, the largest difference {row['logprob_difference']:.4f} nats"


def _cells(row: Row) -> list[str]:
    stage = row["stage"] if row["adapters"] is None else f"{row['stage']}, rank {row['adapters']}"
    start = [row["size"], f"{row['tokens']:,}", stage]
    if row["state"] != "measured":
        return [*start, row["state"].replace("_", " "), "", "", "", "", row.get("error", "")]
    mfu = "" if row["mfu"] is None else f"{100 * row['mfu']:.1f} %"
    share = f"{row['reference']['share']:.2f}" if "reference" in row else ""
    how = ", ".join([row["dtype"], row["attention"], *(name for name in ("checkpointing", "offloading") if row[name])])
    return [*start, f"{row['tokens_per_second']:,.0f}", mfu, share, f"{row['peak_bytes'] / 2**30:.2f}", f"{row['planned_share']:.2f}", how]


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="what all of it may take")
    parser.add_argument("--size", choices=("all", "small"), default="all" if on_gpu() else "small")
    parser.add_argument("--row-seconds", type=float, default=90.0, help="what a row may take")
    parser.add_argument("--seconds", type=float, default=5.0 if on_gpu() else 0.0, help="of measured steps in a row; one step at least")
    parser.add_argument("--steps", type=int, default=5, help="measured in a row at most")
    parser.add_argument("--memory-gib", type=float, help="memory that a process may take, as on a smaller card")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Work.of(options.child))
        return
    work = Work(cases(options.size == "small"), options.seconds, options.steps, options.memory_gib)
    rows = []
    for row in run(work, options.row_seconds, began + 60 * options.minutes - 5):
        rows.append(with_reference(row))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    found = record(rows, options.minutes)
    print(json.dumps(found) if options.json else show(found))


if __name__ == "__main__":
    main()
