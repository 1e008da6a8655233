"""Code as actions, in `<code>`: arithmetic expressions (`calculator`), or Python programs (`python`) as in ReTool (arXiv 2504.11536).

Each Python program runs in a new process in the sandbox of `eval.sandbox`; neither names nor files persist. Errors of the program,
including exceeded limits, are observations. A fault of the sandbox itself makes the trajectory invalid.
"""

from __future__ import annotations

import ast
import asyncio
import operator
from collections.abc import Callable
from weakref import WeakKeyDictionary

from pydantic import PositiveInt

from eval.graders.code import program_of
from eval.sandbox.sandbox import Ending, Sandbox, SandboxConfig, SandboxFault, SandboxResult, python_program, require_isolation
from rl.envs.base import EnvironmentFault, Resources
from rl.envs.tool_use import ToolEnvironment
from rl.tools import ToolError, tool
from warehouse.settings import Section

MAX_CHARACTERS = 200
MAX_EXPONENT = 64

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


@tool(name="code")
async def calculate(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: numbers with + - * / // % ** and brackets.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ToolError(f"an expression has at most {MAX_CHARACTERS} characters")
    try:
        return _spell(_evaluate(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ToolError(f"{expression!r} cannot be worked out: {error}") from error


def create_calculator(resources: Resources) -> ToolEnvironment:
    return ToolEnvironment({"code": calculate})


def _spell(value: float) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _evaluate(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_evaluate(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > MAX_EXPONENT or abs(left) > 10**6):
            raise ValueError("the power is too large")
        value = _BINARY[type(node.op)](left, right)
        if isinstance(value, complex):
            raise ValueError("the result is not a real number")
        return value
    raise ValueError("only numbers and arithmetic are understood")


_FILE = "program.py"
_RUNNER = f"""
import ast, sys, traceback
def main():
    source = open({_FILE!r}).read()
    tree = ast.parse(source, {_FILE!r})
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    names = {{"__name__": "__main__"}}
    exec(compile(tree, {_FILE!r}, "exec"), names)
    value = eval(compile(ast.Expression(last.value), {_FILE!r}, "eval"), names) if last else None
    if value is not None:
        print(value)
try:
    main()
except Exception as error:
    frames = traceback.TracebackException.from_exception(error)
    frames.stack = traceback.StackSummary.from_list(frame for frame in frames.stack if frame.filename == {_FILE!r})
    sys.stdout.flush()
    sys.stderr.write("".join(frames.format()))
    sys.exit(1)
"""
"""Runs the program, prints the value of a final expression, and hides its own frames from tracebacks."""

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] = WeakKeyDictionary()


class PythonOptions(Section):
    """Options of the environment `python`."""

    concurrency: PositiveInt = 8
    """Maximum concurrent programs per worker process, across all its trajectories."""
    max_error_lines: PositiveInt = 6
    """Lines shown from the end of a traceback."""
    sandbox: SandboxConfig = SandboxConfig(wall_seconds=10, memory_mib=1024)


class PythonEnvironment(ToolEnvironment):
    """One tool, `code`, which runs Python in a sandbox."""

    def __init__(self, options: PythonOptions) -> None:
        super().__init__({"code": tool(self.code)})
        self._options = options
        self._sandbox = Sandbox(options.sandbox)

    async def code(self, program: str) -> str:
        """Run a Python program in a fresh interpreter and see what it prints.

        Args:
            program: Python source; the value of a last line that is an expression is printed too.
        """
        source = python_program(_RUNNER, files={_FILE: (program_of(program) or program).encode(errors="replace")})
        async with program_slot(self._options.concurrency):
            try:
                result = await self._sandbox.run_async(source)
            except SandboxFault as fault:
                raise EnvironmentFault(str(fault)) from fault
        if result.succeeded:
            return result.stdout_text.strip() or "The program printed nothing."
        raise ToolError(self._error_text(result))

    async def probe(self) -> None:
        if await self.code("6 * 7") != "42":
            raise EnvironmentFault("the interpreter does not compute 6 * 7")

    def _error_text(self, result: SandboxResult) -> str:
        limits = self._options.sandbox
        reasons = {
            Ending.TIMED_OUT: f"the program took longer than {limits.wall_seconds:g} seconds",
            Ending.OUT_OF_MEMORY: f"the program took more than {limits.memory_mib} MiB of memory",
            Ending.OUTPUT_LIMIT: f"the program printed more than {limits.output_bytes} bytes",
            Ending.KILLED: f"the program was killed by signal {-(result.status or 0)}",
            Ending.FINISHED: f"the program ended with status {result.status}",
        }
        shown = "\n".join(result.stderr_text.strip().splitlines()[-self._options.max_error_lines :])
        reason = shown if shown and result.ending is Ending.FINISHED else reasons[result.ending]
        return "\n".join(filter(None, (reason, result.stdout_text.strip())))


def create_interpreter(resources: Resources) -> PythonEnvironment:
    options = resources.read(PythonOptions)
    require_isolation(options.sandbox, "the environment 'python'")
    return PythonEnvironment(options)


def program_slot(concurrency: int) -> asyncio.Semaphore:
    """Semaphore of this event loop that limits concurrent programs."""
    by_size = _slots.setdefault(asyncio.get_running_loop(), {})
    return by_size.setdefault(concurrency, asyncio.Semaphore(concurrency))
