"""Code judged by tests that the program cannot tamper with, and extraction of the program from a reply.

Two sandboxes are joined by a socket pair: the examiner runs the tests, and the candidate's process runs the program. The tests call the
program's functions across the socket; arguments and results cross as plain data. The program never shares a process, file or name with the
tests, so there is nothing to patch, no marker to print and no early exit that means success: it can only return answers, which the examiner
compares. docs/sandbox.md lists what this cannot exclude. Iterators are read as far as the tests read them, and coroutines are awaited by
the tests. Tests that use objects of the program's own classes cannot be examined (`eval.graders.code_examiner`) and are invalid.

A row of the kind `code` is `{id, gold, pred, options?}`. `gold` has the form of HumanEval or of MBPP:

    {"prompt": "def f(x):\\n    ...", "test": "def check(candidate): ...", "entry_point": "f"}
    {"test_list": ["assert f(1) == 2"], "test_imports": ["import math"], "entry_point": "f"}     the last two may be missing

`pred` is a reply with a program in it. In the first form it continues the prompt or redefines the function; in the second it is a whole
program. `options` may override this with `{"form": "completion" | "program"}`.

`program_of` extracts the program from a reply, for verifiers and environments. A reply that is valid Python after removing its reasoning is
used unchanged. Otherwise its fenced blocks are read: Python blocks, and blocks without a language that are valid Python. The program is the
last block that defines a function the tests call, else the last that defines a function or class, else the last; earlier blocks that define
names it uses are prepended. Without a block, a stray closing fence is removed and the rest is the program.
"""

from __future__ import annotations

import ast
import json
import secrets
import socket
import textwrap
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from eval.graders.code_examiner import GONE, free_names
from eval.sandbox.sandbox import INTERPRETER, Ending, Program, Sandbox, SandboxConfig, SandboxFault, SandboxResult
from warehouse.replies import Fence, fences, split_reasoning

LIMITS = SandboxConfig(wall_seconds=40, cpu_seconds=10, memory_mib=1024)
"""Limits of each process. A program that exceeds the processor time fails; wall time is four times as long, for busy machines."""
_FORMS = ("completion", "program")


@dataclass(frozen=True, slots=True)
class CodeTests:
    """The tests of a program. If `check` is set, `tests` define a function `check` that takes the function named by `check`."""

    tests: str
    prompt: str = ""
    """The prompt that a completion continues; the tests may use its names."""
    entry_points: tuple[str, ...] = ()
    """The program's functions that tests call; if empty, the names that the tests use and do not define."""
    check: str | None = None


@dataclass(frozen=True, slots=True)
class CodeVerdict:
    """Whether all tests passed, and the first failure."""

    passed: bool
    detail: str = ""


def read_tests(gold: Any) -> CodeTests:
    """Parse the tests of a row's `gold`. Raises ValueError if it has neither form."""
    if not isinstance(gold, dict):
        raise ValueError("gold has no tests: give an object with test and entry_point, or with test_list")
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
    """Return value, success and judged program of a row of the kind `code`. Raises ValueError if it cannot be judged."""
    golds = row["gold"] if isinstance(row["gold"], list) else [row["gold"]]
    if not golds:
        raise ValueError("gold has no tests")
    accepted = [(tests, _form(tests, row.get("options"))) for tests in map(read_tests, golds)]
    passed = row["pred"] is not None and any(_passes(tests, _text(row["pred"], "pred"), form) for tests, form in accepted)
    return float(passed), passed, None if row["pred"] is None else judged_program(row["pred"], [tests for tests, _ in accepted])


def judge_code(tests: CodeTests, program: str, config: SandboxConfig = LIMITS) -> CodeVerdict:
    """Run `tests` on `program`.

    Raises:
        ValueError: The tests judge nothing, or a sandbox failed.
        RequestError: This machine grants no sandbox.
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
                    candidate.result()  # raises if the sandbox failed rather than the program
        except SandboxFault as fault:
            raise ValueError(str(fault)) from fault
    return verdict


def passes(reply: str, golds: Sequence[str]) -> bool:
    """Return whether the program in `reply` passes one of `golds`, each the JSON of tests. Raises ValueError if the tests judge nothing."""
    return any(_passes(tests, reply, "program") for tests in read_golds(golds))


def read_golds(golds: Sequence[str]) -> list[CodeTests]:
    """Parse the tests of each gold, given as JSON. Raises ValueError if one has neither form."""
    return [read_tests(json.loads(gold)) for gold in golds]


def judged_program(reply: str, accepted: Iterable[CodeTests]) -> str | None:
    """Return the program in `reply` that the tests call, or None."""
    return program_of(reply, {name for tests in accepted for name in _names(tests)})


def _passes(tests: CodeTests, reply: str, form: str) -> bool:
    program = judged_program(reply, [tests]) or ""
    return judge_code(tests, _completed(tests, program, bool(fences(reply))) if form == "completion" else program).passed


def _names(tests: CodeTests) -> Sequence[str]:
    if tests.entry_points or parse_python(tests.tests) is None:
        return tests.entry_points
    return free_names(tests.tests)


def _completed(tests: CodeTests, program: str, fenced: bool) -> str:
    """Return the prompt continued by its function's body, or followed by the program's own definition."""
    tree, prompt = parse_python(program), parse_python(tests.prompt + "\n    pass\n")
    if tree is not None and prompt is not None and top_names(tree) & set(tests.entry_points):
        return f"{tests.prompt}\n    pass\n\n\n{program}"
    joined, indented = tests.prompt + program, tests.prompt + textwrap.indent(program, "    ")
    return indented if fenced and not compiles(joined) and compiles(indented) else joined


def _read_verdict(result: SandboxResult, nonce: str) -> CodeVerdict:
    """Parse the examiner's verdict. Raises ValueError if there is none and the candidate cannot be the cause."""
    if result.ending is not Ending.FINISHED:
        return CodeVerdict(False, f"{result.ending.value.replace('_', ' ')} after {result.seconds:.1f} seconds")
    last = result.stdout_text.strip().splitlines()[-1:]
    verdict = json.loads(last[0]) if last and nonce in last[0] else {"verdict": "broken", "detail": "the tests ended without a verdict"}
    if verdict["verdict"] == "broken":
        raise ValueError(verdict["detail"])
    return CodeVerdict(verdict["verdict"] == "passed", verdict["detail"])


def _side(name: str, stdin: str, channel: int) -> Program:
    argv = (INTERPRETER, "-m", f"eval.graders.code_{name}")
    return Program(argv, files=_sources(name), stdin=stdin.encode(errors="surrogatepass"), channel=channel)


@cache
def _sources(name: str) -> dict[str, bytes]:
    """Files of a process by path; they import only the standard library and each other."""
    modules = {"code_candidate", f"code_{name}"}
    own = {f"eval/graders/{module}.py": Path(__file__).with_name(f"{module}.py").read_bytes() for module in modules}
    return {"eval/__init__.py": b"", "eval/graders/__init__.py": b"", **own}


def _form(tests: CodeTests, options: Any) -> str:
    form = (options or {}).get("form", "completion" if tests.check else "program") if isinstance(options, dict | None) else options
    if form not in _FORMS:
        raise ValueError(f"options.form is {form!r:.40}: choose one of {', '.join(_FORMS)}")
    return str(form)


def _texts(value: Any, key: str) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"gold.{key} is not a list of strings")
    return [_text(item, key) for item in value]


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} has {value!r:.40}, which is not a string")
    return value


LONGEST = 200_000
"""Maximum characters of an analysed program."""
_PYTHON = frozenset({"python", "py", "python3", "py3", "python2", "ipython", "ipython3", "pycon", "sage", "tool_code"})
_MOST_CLOSINGS = 4
"""Maximum later closing fences to try for a block cut by an inner fence, such as one in a docstring."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of Python with the names that it defines at top level and those that it uses."""

    source: str
    defined: frozenset[str]
    used: frozenset[str]
    has_definition: bool


def program_of(reply: str, names: Collection[str] = ()) -> str | None:
    """Extract the program from a reply; None if there is only reasoning.

    Args:
        names: Functions that tests call.
    """
    reply = reply.replace("\r\n", "\n").removeprefix("\ufeff")
    whole = parse_python(reply) is not None
    text = reply if whole else _without_reasoning(reply)
    if not text.strip():
        return None
    found = [] if whole or (text is not reply and parse_python(text) is not None) else fences(text)
    blocks = [block for fence in found if (block := _block(text, fence)) is not None]
    if not blocks:
        stray = len(found) == 1 and not found[0].closed and not found[0].body.strip()
        return text[: found[0].start] if stray else text
    wanted = [place for place, block in enumerate(blocks) if block.defined & set(names)]
    defining = [place for place, block in enumerate(blocks) if block.has_definition]
    chosen = (wanted or defining or [len(blocks) - 1])[-1]
    return "\n\n".join([*_needed(blocks, chosen), blocks[chosen].source])


def _without_reasoning(reply: str) -> str:
    """Remove the reasoning from a reply. Its first line stays indented, because it may continue a function."""
    thought, rest = split_reasoning(reply)
    before = reply[: reply.rfind(rest)] if thought and rest else ""
    return before[len(before.rstrip(" \t")) :] + rest if thought else reply


def _block(text: str, fence: Fence) -> _Block | None:
    """Parse a fenced block as Python; None if it is in another language, or in none and not valid Python."""
    if not fence.body.strip() or (fence.language and fence.language not in _PYTHON):
        return None
    source = _plain(fence.body)
    tree, end = parse_python(source), fence.end
    for _ in range(_MOST_CLOSINGS):
        if tree is not None or not fence.closed:
            break
        later = next((other for other in fences(text[: fence.start] + "\n" + text[end:]) if other.start >= fence.start), None)
        if later is None:
            break
        closing = end + later.start - fence.start - 1
        body = text[fence.start : closing].partition("\n")[2]
        tree, end = parse_python(_plain(body)), closing + len(text[closing:].partition("\n")[0])
        source = _plain(body) if tree is not None else source
    if tree is None:
        return _Block(source, frozenset(), frozenset(), False) if fence.language else None
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return _Block(source, frozenset(top_names(tree)), frozenset(used), any(isinstance(node, kinds) for node in tree.body))


def _needed(blocks: list[_Block], chosen: int) -> list[str]:
    """Sources of the earlier blocks that define names used by the chosen one, in order."""
    missing = set(blocks[chosen].used - blocks[chosen].defined)
    needed: list[str] = []
    for block in reversed(blocks[:chosen]):
        if block.defined & missing and not block.defined & blocks[chosen].defined:
            needed.insert(0, block.source)
            missing = (missing - block.defined) | (block.used - block.defined)
    return needed


def top_names(tree: ast.Module) -> set[str]:
    """Names that a module binds at top level."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return names


def _plain(body: str) -> str:
    """Text of a block without quotation marks (`> `) and common indentation."""
    lines = body.splitlines()
    if lines and all(line.lstrip().startswith(">") for line in lines if line.strip()) and ">>>" not in body:
        lines = [line.lstrip().removeprefix(">").removeprefix(" ") for line in lines]
    return textwrap.dedent("\n".join(lines))


def parse_python(source: str) -> ast.Module | None:
    """Parse a program; None if it is invalid, too long or too deep."""
    return cast(ast.Module | None, _compiled(source, ast.PyCF_ONLY_AST))


def compiles(source: str) -> bool:
    """Return whether a program compiles; a `return` outside a function parses but does not."""
    return _compiled(source, 0) is not None


def _compiled(source: str, flags: int) -> object | None:
    if len(source) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cast(object, compile(source, "<program>", "exec", flags, dont_inherit=True))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
