"""Arithmetic: the question is worked out with a calculator that takes one expression in `<code>`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

from rl.environment import Resources
from rl.environments.tool_use import ToolEnvironment
from rl.tools import ToolError, tool

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


def create(resources: Resources) -> ToolEnvironment:
    """The environment of one trajectory."""
    return ToolEnvironment({"code": calculate})


def _spell(value: float) -> str:
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _evaluate(node: ast.expr) -> float:
    """The value of an expression of numbers and arithmetic operators; ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_evaluate(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > MAX_EXPONENT or abs(left) > 10**6):
            raise ValueError("the power is too large")
        return _BINARY[type(node.op)](left, right)
    raise ValueError("only numbers and arithmetic are understood")
