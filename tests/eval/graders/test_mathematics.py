"""Mathematical answers: what the final answer is, what equals what, and that nothing hangs."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eval.graders import mathematics
from eval.graders.mathematics import Extraction, Undecided, compare, final_expression, same_mathematics
from tests.clock import processor_seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18", "18"), ("so $x = 3$.\n#### 1,234", "1,234"), ("The answer is $\\frac{1}{2}$.", "\\frac{1}{2}"), ("A: 4\nThat is all.", "4"),
        ("Thus \\boxed{\\frac{1}{2}} as #### 9", "\\frac{1}{2}"), ("first \\boxed{1}\nthen \\boxed{2}", "2"),
        ("\\boxed{2} and again \\boxed{2}", "2"), ("\\boxed{1} or \\boxed{2}", None), ("\\boxed{1", None), ("**x^2**", "x^2"),
        ("two\nlines", None), ("1" * 1001, None), ("", None), ("4</answer><answer>5", None),
    ],
)  # fmt: skip
def test_the_final_answer(text: str, expected: str | None) -> None:
    assert final_expression(text) == expected


def test_a_gold_that_says_nothing_cannot_be_judged() -> None:
    for gold in ("NaN", "", "two\nlines"):
        with pytest.raises(ValueError, match="gold"):
            same_mathematics("5", gold)


@pytest.mark.parametrize("extraction", Extraction)
@pytest.mark.parametrize(
    "text",
    [
        "He drives for 3 " + "hours and hours " * 50 + "ü",
        "3" + "a" * 900 + "ü",
        "x = " * 200 + "ü",
        "**a ** " * 120 + "ü",
        "= \\boxed{1} " * 60 + "and ü",
    ],
)
def test_what_looks_like_words_or_names_takes_no_time(text: str, extraction: Extraction) -> None:
    """A letter beyond ASCII, so that nothing goes to math-verify: what is timed reads the text."""
    began = processor_seconds()
    assert not same_mathematics(text, "é", extraction)
    assert processor_seconds() - began < 1


@pytest.mark.slow
def test_what_hangs_is_killed_and_the_next_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare("\\frac{1}{2}", "\\frac{2}{4}")
    monkeypatch.setattr(mathematics, "DEADLINE_SECONDS", 1.0)
    for tower in ("9^{9^{9^{9}}}", "\\sum_{n=1}^{10000000} \\sin(n^2)"):
        with pytest.raises(Undecided, match="too long"):  # none of them would end by itself
            compare("5", tower)
    monkeypatch.undo()
    assert compare("\\frac{1}{2}", "\\frac{2}{4}")


@pytest.mark.slow
def test_threads_share_the_processes() -> None:
    """math-verify's own timeouts are signals, which raise in every thread but the main one."""

    def ask(number: int) -> bool:
        return compare(f"\\frac{{{number}}}{{7}}", f"\\frac{{{2 * number}}}{{14}}")

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(ask, range(1, 13)))


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = mathematics._Pool()
    assert pool.compare("x+1", "1+x")
    worker: Any = pool._idle.get()
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait()
    pool._idle.put(worker)
    assert pool.compare("x+1", "1+x")
    pool.close()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_comparison_that_is_interrupted_leaves_no_answer_to_the_next() -> None:
    pool = mathematics._Pool()
    assert pool.compare("x+1", "1+x")
    earlier = signal.signal(signal.SIGUSR1, _interrupt)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    with pytest.raises(KeyboardInterrupt):
        pool.compare("5", "9^{9^{9^{9}}}")
    signal.signal(signal.SIGUSR1, earlier)
    assert [pool.compare("x+1", other) for other in ("1+x", "x+2", "1+x")] == [True, False, True]
    pool.close()
