"""The benchmark of GPUs, with its small policy on a CPU: what its rows say, and that no row ends the others."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu import REFERENCES, Work, cases, record, run, show, with_reference
from benchmarks.learner import MANY_TOKENS, Case, Limits
from rl.hardware import Device, device_of

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(3600)]

SPEEDS = [Case("speed", "small", 512), Case("speed", "small", 512, "cpt"), Case("speed", "small", 128, "rl", 16)]
OVERSIZED = Case("speed", "small", 262_144)
"""Its first layer has no room: no attention over so many tokens is ever computed."""
OTHERS = [Case("precision", "small", 128), Case("repeat", "small", 128)]
MINUTES = 30
"""None of this waits for a busy machine's clock."""


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Rows of each kind, one of which has no room."""
    work = Work([*SPEEDS, OVERSIZED, *OTHERS], seconds=0.0, steps=1, gib=1.0)
    return list(run(work, 60 * MINUTES, time.monotonic() + 60 * MINUTES))


def test_a_row_has_speed_operations_and_memory_as_planned(rows: list[dict[str, Any]]) -> None:
    for case, row in zip(SPEEDS, rows, strict=False):
        assert row["state"] == "measured", row
        assert row["tokens_per_second"] == pytest.approx(row["tokens_per_step"] / row["step_seconds"]) and row["tokens_per_second"] > 0
        assert row["tokens_per_step"] == (1024 if case.stage == "rl" else 512)
        assert row["mfu"] is None, "a CPU has no peak in the table"
        # Six layers of 590,336 numbers in queries, keys, values, output and three matrices of the feed-forward part, two norms in each,
        # and a head of 12,000 times 256; attention over half of the context.
        matrices = 6 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 768 + 2 * 256) + 12_000 * 256
        # Adapters of rank 16 are all that has gradients of its own: as many rows as each matrix has, and as many columns.
        trained = matrices if case.adapters is None else 6 * 16 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 768))
        assert row["flops_per_token"] == 4 * matrices + 2 * trained + 12 * 6 * 256 * case.tokens / 2
        assert row["teraflops"] == pytest.approx(row["tokens_per_second"] * row["flops_per_token"] / 1e12)
        assert row["planned_bytes"] == pytest.approx(row["peak_bytes"], rel=0.2)
        assert (row["attention"], row["dtype"]) == ("varlen", "float32")


def test_a_row_without_room_says_so_and_those_after_it_are_measured(rows: list[dict[str, Any]]) -> None:
    assert [row["state"] for row in rows] == ["measured"] * 3 + ["out_of_memory"] + ["measured"] * 2
    assert "can't allocate memory" in rows[3]["error"]


def test_bfloat16_has_an_error_and_a_step_repeats_bit_by_bit(rows: list[dict[str, Any]]) -> None:
    error, again = rows[4:]
    assert 1 < error["token_mult_prob_error"] < 1.01 and error["scored"] == 8 * (4 * 5 + 3 * 30)
    assert again["identical"] and again["largest_difference"] == 0 and again["moved"]


def test_the_table_has_every_row(rows: list[dict[str, Any]]) -> None:
    found = record(rows, MINUTES)
    assert found["device"] == "CPU" and found["versions"]["torch"] and found["versions"]["trl"]
    assert json.loads(json.dumps(found)) == found
    shown = show(found)
    assert "| small | 512 | rl | " in shown and "| small | 128 | rl, rank 16 | " in shown
    assert "| small | 262,144 | rl | out of memory |" in shown
    assert "repeat, small rl at 128 tokens: the same bit by bit" in shown


def test_the_share_of_published_figures_stands_beside_a_row() -> None:
    (case, known), *_ = REFERENCES.items()
    row = {**gpu.asdict(case), "state": "measured", "tokens_per_second": 0.95 * known["tokens_per_second"]}
    assert with_reference(row)["reference"]["share"] == pytest.approx(0.95)
    assert "reference" not in with_reference({**row, "tokens": 8192})
    # Their own MFU follows from their tokens a second by the formula that is used here.
    policy = case.architecture
    peak = device_of("NVIDIA H100 80GB HBM3")
    assert isinstance(peak, Device)
    flops = 6 * policy.matrices + 12 * 28 * 2048 * 65_536 / 2
    assert known["tokens_per_second"] * flops / (peak.teraflops * 1e12) == pytest.approx(known["mfu"], abs=0.001)


def test_a_row_that_takes_too_long_is_ended_and_what_has_no_time_is_not_run() -> None:
    slow = Work([Case("speed", "small", 512)], seconds=1e9, steps=10**9, gib=None)
    assert [row["state"] for row in run(slow, 0.5, time.monotonic() + 60 * MINUTES)] == ["out_of_time"]
    command = [sys.executable, "-m", "benchmarks.gpu", "--minutes", "0", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(gpu.__file__).parent.parent)
    found = json.loads(ended.stdout)
    assert [row["state"] for row in found["rows"]] == ["not_run"] * len(cases(small=True))
    assert "Not run: speed small rl 512, precision small rl 128" in show(found)


def test_a_process_that_dies_is_a_row_and_the_next_one_goes_on() -> None:
    unknown, known = Case("speed", "no such size", 128), Case("speed", "small", 128)
    found = list(run(Work([unknown, known], 0.0, 1, None), 60 * MINUTES, time.monotonic() + 60 * MINUTES))
    assert [row["state"] for row in found] == ["failed", "measured"]
    assert "no such size" in found[0]["error"]


def test_activations_are_computed_again_where_the_planner_finds_no_room_otherwise() -> None:
    from benchmarks.learner import room

    case = Case("speed", "qwen2_0.5b", 65_536)
    assert room(case, True, 79 * 2**30) == (True, False)
    assert room(case, True, 300 * 2**30) == (False, False)
    assert room(Case("speed", "qwen2_0.5b", 2048), True, 79 * 2**30) == (False, False)
    assert room(case, True, 20 * 2**30) == (True, True)
    assert room(case, True, 2**30) == (True, True), "what saves most, where nothing fits"
    assert room(Case("speed", "small", 128, checkpointing=True), True, None) == (True, False)


def test_a_learner_needs_no_ray_and_no_engine() -> None:
    code = "import sys, rl.loop, rl.learner.local, rl.supervised.cpt; print([name for name in ('ray', 'vllm') if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_the_rows_of_a_gpu_are_those_that_are_asked_for() -> None:
    found = cases(small=False)
    assert found[0] in REFERENCES and len(set(found)) == len(found) == 2 + 4 + 32
    sizes, lengths = ("qwen2_0.5b", "qwen2_1.5b"), (2048, 8192, 32_768, 65_536)
    assert {Case("speed", *each) for each in product(sizes, lengths, ("rl", "cpt"), (None, 16))} <= set(found)
    assert found[3].per_pass * found[3].tokens == MANY_TOKENS and Limits(1, 1, None).memory is None
