"""Mutations of Python source: small edits that a programmer might have made by mistake.

Each mutation replaces one piece of a function's text and leaves the rest of the file as it was, so a diff shows nothing else. The text
between two operands is searched for their operator; where it holds something else too, such as a comment, `mutate` finds no change and the
mutation is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

Edit = tuple[bytes, bytes]
"""An operator, and what replaces it."""
Piece = tuple[str, int, int, bytes]
"""Kind, first and last byte, and the text for it."""
_BOUNDARIES: dict[type[ast.cmpop], Edit] = {
    ast.Lt: (b"<", b"<="),
    ast.LtE: (b"<=", b"<"),
    ast.Gt: (b">", b">="),
    ast.GtE: (b">=", b">"),
}
_COMPARISONS: dict[type[ast.cmpop], Edit] = {
    ast.Eq: (b"==", b"!="),
    ast.NotEq: (b"!=", b"=="),
    ast.Is: (b"is", b"is not"),
    ast.IsNot: (b"is not", b"is"),
    ast.In: (b"in", b"not in"),
    ast.NotIn: (b"not in", b"in"),
}
_ARITHMETIC: dict[type[ast.operator], Edit] = {
    ast.Add: (b"+", b"-"),
    ast.Sub: (b"-", b"+"),
    ast.Mult: (b"*", b"+"),
    ast.FloorDiv: (b"//", b"/"),
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """Replace the bytes from `start` to `end` with `text`; `function` is the qualified name of the function around it."""

    kind: str
    function: str
    line: int
    start: int
    end: int
    text: bytes


def mutate(source: bytes, mutation: Mutation) -> bytes | None:
    """Apply a mutation. Return None if the result is not another valid program."""
    changed = source[: mutation.start] + mutation.text + source[mutation.end :]
    try:
        return changed if ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)) else None
    except (SyntaxError, ValueError):
        return None


def mutations(source: bytes) -> list[Mutation]:
    """Return the mutations of all functions of a module, in order of their place; none if it is not Python in UTF-8."""
    try:
        tree = ast.parse(source.decode())
    except (SyntaxError, ValueError, RecursionError):
        return []
    finder = _Finder(source)
    finder.visit(tree)
    return sorted(finder.found, key=lambda mutation: (mutation.start, mutation.end, mutation.text))


class _Finder(ast.NodeVisitor):
    """Collects mutations of statements in functions, not of their signatures."""

    def __init__(self, source: bytes) -> None:
        self.found: list[Mutation] = []
        self._source = source
        self._lines = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
        self._names: list[str] = []
        self._depth = 0

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = not isinstance(node, ast.ClassDef)
            self._names.append(node.name)
            self._depth += inside
            for statement in node.body:
                self.visit(statement)
            self._depth -= inside
            self._names.pop()
            return
        if self._depth and isinstance(node, ast.expr | ast.Return):
            for kind, start, end, text in self._edits(node):
                self.found.append(Mutation(kind, ".".join(self._names), node.lineno, start, end, text))
        self.generic_visit(node)

    def _edits(self, node: ast.expr | ast.Return) -> Iterator[Piece]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                for kind, table in (("boundary", _BOUNDARIES), ("comparison", _COMPARISONS)):
                    yield from self._between(kind, left, right, table.get(type(operator)))
            case ast.BinOp(left=left, op=operation, right=right):
                yield from self._between("arithmetic", left, right, _ARITHMETIC.get(type(operation)))
            case ast.BoolOp(op=junction, values=[left, right, *_]):
                yield from self._between("boolean", left, right, (b"and", b"or") if isinstance(junction, ast.And) else (b"or", b"and"))
            case ast.UnaryOp(op=ast.Not()):
                start = self._span(node)[0]
                yield "negation", start, start + len(b"not "), b""
            case ast.Constant(value=bool(value)):
                yield "boolean", *self._span(node), str(not value).encode()
            case ast.Constant(value=int(value)):
                for other in (value + 1, value - 1)[: 2 if value else 1]:
                    yield "constant", *self._span(node), str(other).encode()
            case ast.Call(args=[first, second, *_]) if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                (start, middle), (rest, end) = self._span(first), self._span(second)
                yield "arguments", start, end, self._source[rest:end] + self._source[middle:rest] + self._source[start:middle]
            case ast.Return(value=ast.expr()):
                start = self._span(node)[0]
                yield "return", start, start + len(b"return "), b""
            case _:
                return

    def _between(self, kind: str, left: ast.expr, right: ast.expr, edit: Edit | None) -> Iterator[Piece]:
        start, end = self._span(left)[1], self._span(right)[0]
        place = -1 if edit is None else self._source.find(edit[0], start, end)
        if edit is not None and place >= 0:
            yield kind, place, place + len(edit[0]), edit[1]

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """First and last byte of a node; `ast` counts columns in bytes of UTF-8."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[node.end_lineno - 1] + node.end_col_offset
