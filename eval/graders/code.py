"""Code judged by tests, so that a program cannot talk its way past them.

Two sandboxes, joined by one socket pair: the examiner holds the tests, the candidate's process holds the program. The tests call the
program's functions across; arguments and results cross as plain data. The program never shares a process, a file or a name with the
tests, so that there is nothing to patch, no marker to print and no early end that means success: it can only answer, and the examiner
compares the answers. What this cannot exclude stands in docs/sandbox.md. Iterators are read as far as the tests read them, coroutines
are awaited by the tests; tests that use objects of the program's own classes are not examined (`eval.graders.code_tests`), and invalid.

A row of the kind `code` is `{id, gold, pred, options?}`. `gold` has one of two forms, those of HumanEval and of MBPP:

    {"prompt": "def f(x):\\n    ...", "test": "def check(candidate): ...", "entry_point": "f"}
    {"test_list": ["assert f(1) == 2"], "test_imports": ["import math"], "entry_point": "f"}     the last two may be missing

`pred` is a reply with a program in it (`eval.graders.program`). In the first form it continues the prompt or defines the function anew; in
second it is a whole program. `options` may say otherwise by `{"form": "completion" | "program"}`.
"""

from __future__ import annotations

import json
import secrets
import socket
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eval.graders.code_examiner import GONE
from eval.graders.code_tests import free_names
from eval.graders.program import compiles, parse_python, program_of, top_names
from eval.sandbox.program import Ending, Program, SandboxConfig, SandboxFault, SandboxResult
from eval.sandbox.sandbox import INTERPRETER, Sandbox
from warehouse.replies import fences

LIMITS = SandboxConfig(wall_seconds=40, cpu_seconds=10, memory_mib=1024)
"""Of each of the two processes; a program that computes for longer has failed. By the clock it may take four times as long, for a machine
may be busy."""
_FORMS = ("completion", "program")


@dataclass(frozen=True, slots=True)
class CodeTests:
    """What a program must pass. Where `check` is set, `tests` define a function `check` that takes the function of that name."""

    tests: str
    prompt: str = ""
    """What a completion continues; the tests may use its names."""
    entry_points: tuple[str, ...] = ()
    """The program's functions that tests call; without any, the names that the tests use and do not define."""
    check: str | None = None


@dataclass(frozen=True, slots=True)
class CodeVerdict:
    """Whether all tests passed, and what the first failure was."""

    passed: bool
    detail: str = ""


def read_tests(gold: Any) -> CodeTests:
    """The tests of a row's `gold`. Raises ValueError for what has neither form."""
    if not isinstance(gold, dict):
        raise ValueError("gold holds no tests: give an object with test and entry_point, or with test_list")
    entry_point = gold.get("entry_point")
    if "test_list" in gold:
        lines = [*_texts(gold.get("test_imports", []), "test_imports"), *_texts(gold["test_list"], "test_list")]
        return CodeTests("\n".join(lines), entry_points=() if entry_point is None else (_text(entry_point, "entry_point"),))
    for key in ("test", "entry_point"):
        if key not in gold:
            raise ValueError(f"gold has no {key}")
    name = _text(entry_point, "entry_point")
    return CodeTests(_text(gold["test"], "test"), _text(gold.get("prompt", ""), "prompt"), (name,), name)


def judge_row(row: dict[str, Any]) -> tuple[float, bool, str | None]:
    """Value and success of a row of the kind `code`, and the program that was judged. Raises ValueError where it cannot be judged."""
    golds = row["gold"] if isinstance(row["gold"], list) else [row["gold"]]
    if not golds:
        raise ValueError("gold holds no tests")
    accepted = [(tests, _form(tests, row.get("options"))) for tests in map(read_tests, golds)]
    passed = row["pred"] is not None and any(_passes(tests, _text(row["pred"], "pred"), form) for tests, form in accepted)
    return float(passed), passed, None if row["pred"] is None else judged_program(row["pred"], [tests for tests, _ in accepted])


def judge_code(tests: CodeTests, program: str, config: SandboxConfig = LIMITS) -> CodeVerdict:
    """Whether `program` passes `tests`.

    Raises:
        ValueError: where the tests judge nothing, or a sandbox failed.
        RequestError: where this machine grants no sandbox.
    """
    sandbox, nonce = Sandbox(config), secrets.token_hex(16)
    job = {"tests": tests.tests, "prompt": tests.prompt, "entry_points": tests.entry_points, "check": tests.check, "nonce": nonce}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            with sandbox.start(_side("candidate", program, theirs.fileno())) as candidate:
                theirs.close()
                result = sandbox.run(_side("examiner", json.dumps(job), ours.fileno()))
                ours.close()
                verdict = _read_verdict(result, nonce)
                if verdict.detail.startswith(GONE):
                    candidate.result()  # raises where it was the sandbox that broke and not the program
        except SandboxFault as fault:
            raise ValueError(str(fault)) from fault
    return verdict


def passes(reply: str, golds: Sequence[str]) -> bool:
    """Whether the program in `reply` passes one of `golds`, each the tests as JSON, in a row's forms.

    Raises ValueError where the tests judge nothing.
    """
    return any(_passes(tests, reply, "program") for tests in read_golds(golds))


def read_golds(golds: Sequence[str]) -> list[CodeTests]:
    """The tests of each gold, which is JSON in a row's forms. Raises ValueError for what has neither."""
    return [read_tests(json.loads(gold)) for gold in golds]


def judged_program(reply: str, accepted: Iterable[CodeTests]) -> str | None:
    """The program in `reply` that the tests call; None where there is none."""
    return program_of(reply, {name for tests in accepted for name in _names(tests)})


def _passes(tests: CodeTests, reply: str, form: str) -> bool:
    program = judged_program(reply, [tests]) or ""
    return judge_code(tests, _completed(tests, program, bool(fences(reply))) if form == "completion" else program).passed


def _names(tests: CodeTests) -> Sequence[str]:
    """The functions that tests call; none where the tests cannot be parsed, which `judge_code` reports."""
    if tests.entry_points or parse_python(tests.tests) is None:
        return tests.entry_points
    return free_names(tests.tests)


def _completed(tests: CodeTests, program: str, fenced: bool) -> str:
    """The prompt continued by the body of its function, in a fence with or without its indentation, or by a definition of its own."""
    tree, prompt = parse_python(program), parse_python(tests.prompt + "\n    pass\n")
    if tree is not None and prompt is not None and top_names(tree) & set(tests.entry_points):
        return f"{tests.prompt}\n    pass\n\n\n{program}"
    joined, indented = tests.prompt + program, tests.prompt + textwrap.indent(program, "    ")
    return indented if fenced and not compiles(joined) and compiles(indented) else joined


def _read_verdict(result: SandboxResult, nonce: str) -> CodeVerdict:
    """The verdict that the examiner printed. Raises ValueError where there is none and the candidate cannot be why."""
    if result.ending is not Ending.FINISHED:
        return CodeVerdict(False, f"{result.ending.value.replace('_', ' ')} after {result.seconds:.1f} seconds")
    last = result.stdout_text.strip().splitlines()[-1:]
    verdict = json.loads(last[0]) if last and nonce in last[0] else {"verdict": "broken", "detail": "the tests ended without a verdict"}
    if verdict["verdict"] == "broken":
        raise ValueError(verdict["detail"])
    return CodeVerdict(verdict["verdict"] == "passed", verdict["detail"])


def _side(name: str, stdin: str, channel: int) -> Program:
    """The program of one of the two processes, the candidate or the examiner."""
    argv = (INTERPRETER, "-m", f"eval.graders.code_{name}")
    return Program(argv, files=_sources(name), stdin=stdin.encode(errors="surrogatepass"), channel=channel)


@cache
def _sources(name: str) -> dict[str, bytes]:
    """The modules that a process needs, by path; they import the standard library and each other alone."""
    modules = ("plain_data", "code_tests", f"code_{name}")
    own = {f"eval/graders/{module}.py": Path(__file__).with_name(f"{module}.py").read_bytes() for module in modules}
    return {"eval/__init__.py": b"", "eval/graders/__init__.py": b"", **own}


def _form(tests: CodeTests, options: Any) -> str:
    """Whether a row's `pred` completes the prompt or is a program of its own."""
    form = (options or {}).get("form", "completion" if tests.check else "program") if isinstance(options, dict | None) else options
    if form not in _FORMS:
        raise ValueError(f"options.form is {form!r:.40}: give one of {', '.join(_FORMS)}")
    return str(form)


def _texts(value: Any, key: str) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"gold.{key} is not a list of texts")
    return [_text(item, key) for item in value]


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} holds {value!r:.40}, which is not text")
    return value
