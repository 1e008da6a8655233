"""The code verifier: right programs pass, nothing else does, and tests that judge nothing are not a verdict."""

from __future__ import annotations

import gzip
import json
import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.graders.code import CodeTests, judge_code
from eval.graders.code_candidate import BadFrame, NotPlain, decode, encode
from eval.graders.code_examiner import GONE, free_names, why_not_examined
from eval.graders.rows import Judgement, verify_rows
from eval.graders.verifiers import GRADERS, AnswerVerifier
from eval.sandbox.sandbox import SandboxConfig, isolation
from tests.eval.graders.cheats import CHEATS, SOLUTION, TESTS
from tests.eval.graders.test_verifiers import attempt
from tests.real_data import DATA, needs
from warehouse.records import Outcome, Task

pytestmark = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")

HUMANEVAL, MBPP = DATA / "code_humaneval" / "HumanEval.jsonl.gz", DATA / "code_mbpp_sanitized" / "test.jsonl"
LIMITS = SandboxConfig(wall_seconds=3, memory_mib=256, libraries=False)
PROBLEM = CodeTests("\n".join(TESTS))
SAMPLED = pytest.mark.parametrize("every", [pytest.param(40, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
"""One problem in forty, and all of them."""
HUMANEVAL_FORM = {
    "prompt": 'def double(n):\n    """Twice n."""\n',
    "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(-1) == -2\n",
    "entry_point": "double",
}


def judge(gold: Any, pred: Any, **options: Any) -> Judgement:
    (judgement,) = verify_rows("code", [{"id": 1, "gold": gold, "pred": pred, **({"options": options} if options else {})}])
    return judgement


@pytest.mark.parametrize("every", [pytest.param(4, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_every_cheat_fails(every: int) -> None:
    """No false positive, and no cheat that makes itself invalid: that would take a failure out of the figures."""
    assert [name for name in list(CHEATS)[::every] if judge_code(PROBLEM, CHEATS[name], LIMITS).passed] == []


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ("assert f(1) == 1", "has no tests"),
        ({"test": "def check(f): pass"}, "no entry_point"),
        ({"test_list": ["assert f(1) =="]}, "not Python"),
        ({"test_list": []}, "check nothing"),
        ({"test_list": ["f(1)"]}, "check nothing"),
        ({"test": "def check(candidate):\n    for one in []:\n        assert candidate(one)", "entry_point": "f"}, "never call"),
        ({"test_list": ["assert f(lambda: 1) == 1"]}, "cannot cross"),
        ({"test_list": ["import os; f(1); os._exit(0)"]}, "without a verdict"),
    ],
)
def test_tests_that_judge_nothing_give_no_verdict(gold: Any, reason: str) -> None:
    judgement = judge(gold, "def f(x): return x")
    assert judgement.verdict is Outcome.INVALID
    assert reason in str(judgement.error)


def test_a_failure_says_what_failed() -> None:
    verdict = judge_code(PROBLEM, SOLUTION.replace("n + n", "1 / 0"), LIMITS.model_copy(update={"wall_seconds": 120}))
    assert not verdict.passed
    assert "ZeroDivisionError" in verdict.detail


def test_a_program_that_prints_without_end_has_failed_when_it_is_ended() -> None:
    verdict = judge_code(PROBLEM, "while True: print('x' * 100)")
    assert not verdict.passed and verdict.detail.startswith((GONE, "BrokenPipeError")), "it may see first that nobody reads it"


def test_a_sandbox_that_fails_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.sandbox.sandbox._LAUNCHER", ("/bin/false",))
    judgement = judge(HUMANEVAL_FORM, "    return n + n\n")
    assert judgement.verdict is Outcome.INVALID
    assert judgement.value is None


@pytest.mark.slow
def test_the_answer_of_a_trajectory_is_judged() -> None:
    task = Task("double", "python", "Write double(n).", (json.dumps({"test_list": list(TESTS)}),))
    answers = [attempt("answer", program) for program in (SOLUTION, CHEATS["stub"])]
    assert [AnswerVerifier(GRADERS["code"]).verify(task, each).verdict for each in answers] == [Outcome.SUCCESS, Outcome.FAILURE]


NUMBERS = st.integers() | st.floats() | st.complex_numbers() | st.decimals() | st.fractions()
TIMES = st.dates() | st.datetimes() | st.times() | st.timedeltas()


def holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What of plain data holds other plain data."""
    several = st.lists(inner, max_size=4)
    named = st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    return several | several.map(deque) | several.map(tuple) | st.sets(st.integers(), max_size=1) | named


PLAIN = st.recursive(st.none() | st.booleans() | st.text() | st.binary() | NUMBERS | TIMES, holding, max_leaves=12)


@settings(max_examples=50, deadline=None)
@given(PLAIN)
def test_plain_data_crosses_unchanged(value: Any) -> None:
    assert repr(decode(json.loads(json.dumps(encode(value))))) == repr(value)


def test_data_that_is_nothing_is_refused() -> None:
    unhashable: list[Any] = [["set", [["list", []]]], ["dict", [[["list", []], None]]]]
    impossible = [["int", "zz"], ["range", ["1", "2", "0"]], ["fraction", ["1", "0"]], ["date", "today"], ["timedelta", [10**12]]]
    for data in (*unhashable, *impossible):
        with pytest.raises(BadFrame):
            decode(data)


def test_objects_do_not_cross() -> None:
    for value in (object(), print, math, type, NotImplemented, ..., datetime.now(UTC)):
        with pytest.raises(NotPlain):
            encode(value)


def _many(rows: list[dict[str, Any]]) -> Iterator[Judgement]:
    """Judgements of rows, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda row: next(verify_rows("code", [row])), rows)


@SAMPLED
@needs("code_humaneval")
def test_humaneval_gold_passes_and_empty_fails(every: int) -> None:
    with gzip.open(HUMANEVAL, "rt") as file:
        whole = [json.loads(line) for line in file]
    assert len(whole) == 164
    problems = whole[::every]
    golds = [{key: problem[key] for key in ("prompt", "test", "entry_point")} for problem in problems]
    right = [{"id": p["task_id"], "gold": gold, "pred": p["canonical_solution"]} for p, gold in zip(problems, golds, strict=True)]
    assert [judgement.id for judgement in _many(right) if judgement.value != 1.0] == []
    empty = [{"id": index, "gold": gold, "pred": ""} for index, gold in enumerate(golds)]
    assert [judgement.id for judgement in _many(empty) if judgement.value != 0.0] == []


@SAMPLED
@needs("code_mbpp_sanitized")
def test_mbpp_gold_passes_and_empty_fails(every: int) -> None:
    whole = [json.loads(line) for line in MBPP.read_text().splitlines()]
    assert len(whole) == 257
    problems = whole[::every]
    golds = [{key: problem[key] for key in ("test_list", "test_imports")} for problem in problems]
    right = [{"id": index, "gold": gold, "pred": p["code"]} for index, (p, gold) in enumerate(zip(problems, golds, strict=True))]
    assert [judgement.id for judgement in _many(right) if judgement.value != 1.0] == []
    empty = [{"id": index, "gold": gold, "pred": ""} for index, gold in enumerate(golds)]
    assert [judgement.id for judgement in _many(empty) if judgement.value != 0.0] == []


STACK = """class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
"""
PRIMES = "def primes():\n    n = 2\n    while True:\n        if all(n % k for k in range(2, n)):\n            yield n\n        n += 1\n"
ASYNC = "import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    if n < 0:\n        raise ValueError(n)\n    return n + n\n"


@pytest.mark.parametrize("program", [STACK, "1 / 0"])
def test_tests_of_classes_give_no_verdict_for_any_program(program: str) -> None:
    judgement = judge({"test_list": ["s = Stack()\ns.push(1)\nassert s.pop() == 1"]}, program)
    assert judgement.verdict is Outcome.INVALID
    assert "cross" in str(judgement.error)


@pytest.mark.parametrize(
    "tests",
    [
        "assert Stack().pop() is None",
        "class Twice(Stack): pass\nassert Twice()",
        "try:\n    f()\nexcept Stack: pass",
        "g = f(3)\nassert g(4) == 7",
        "@f(3)\ndef g(): return 1\nassert g() == 1",
        "with f() as x: assert x",
        "x = [2, 1]\nf(x)\nassert x == [1, 2]",
        "assert f(1) == 1 and MAX == 3",
        "assert Stack(1) == Stack(1)",
        "import pytest\nwith pytest.raises(Stack): f(1)",
        "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): f()\nassert b.getvalue() == '1'",
        "from unittest.mock import patch\nwith patch('builtins.input', lambda: '1'): assert f() == 1",
    ],
)
def test_tests_that_plain_data_is_not_enough_for_are_not_examined(tests: str) -> None:
    assert why_not_examined(tests, free_names(tests), None)


@pytest.mark.parametrize(
    "tests",
    [
        "s = f(3)\nassert s[0] == 1",
        "assert list(map(f, [1, 2])) == [1, 2]",
        "assert callable(f) and f is not None and f(1)",
        "x = [1]\ny = f(x)\nassert y == [2] and x == [1]",
        "try:\n    f(x)\nexcept ValueError: pass\nelse: assert False",
        "x = 3\nf(4)\nassert x",
        "import datetime\nassert f(1).year == 2000",
    ],
)
def test_tests_that_plain_data_is_enough_for_are_examined(tests: str) -> None:
    assert why_not_examined(tests, free_names(tests), None) is None


@pytest.mark.parametrize(
    ("program", "tests", "success"),
    [
        (PRIMES, "p = primes()\nassert (next(p), next(p)) == (2, 3)", True),
        pytest.param(PRIMES, "assert list(primes()) == [2]", False, marks=pytest.mark.slow),
        (
            "def primes():\n    yield 2\n    raise KeyError(3)",
            "p = primes()\nassert next(p) == 2\ntry: next(p)\nexcept KeyError: pass\nelse: assert 0",
            True,
        ),
        (ASYNC, "import asyncio\nassert asyncio.run(f(3)) == 6", True),
        (ASYNC, "assert await f(3) == 6", True),
        (ASYNC, "assert await f(3) == 7", False),
        (ASYNC, "try:\n    await f(-1)\nexcept ValueError: pass\nelse: assert False", True),
        ("import numpy\ndef f(n): return [numpy.bool_(True), numpy.float32(0.5)]", "assert f(3) == [True, 0.5]", True),
        ("import numpy\ndef f(n): return numpy.array([n])", "assert f(3) == [3]", False),
        (STACK + "def f(n): return Stack()", "assert f(3) == 6", False),
    ],
)
def test_iterators_coroutines_and_numbers_of_numpy_are_examined(program: str, tests: str, success: bool) -> None:
    limits = SandboxConfig(wall_seconds=120, cpu_seconds=1, memory_mib=512)  # a busy machine's clock says nothing of a program
    assert judge_code(CodeTests(tests), program, limits).passed is success


def test_a_check_that_is_asynchronous_is_awaited() -> None:
    gold = {"test": "async def check(candidate):\n    assert await candidate(3) == 6\n", "entry_point": "f"}
    assert judge(gold, ASYNC, form="program").verdict is Outcome.SUCCESS
    assert judge(gold, ASYNC.replace("n + n", "n"), form="program").verdict is Outcome.FAILURE
