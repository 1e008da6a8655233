"""The program in a reply, by one rule for verifiers and environments.

A reply without its reasoning is taken as it is where it is valid Python. Otherwise its fenced blocks are read:

  1. Blocks in Python count, and blocks without a language that are valid Python; output and shell commands do not.
  2. The program is the last block that defines a function the tests call; else the last that defines a function or a class; else the last.
  3. Earlier blocks that define what it uses and does not define are put before it.

Without a block, a stray closing fence is cut off and the rest is the program.
"""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from warehouse.replies import Fence, fences, split_reasoning

LONGEST = 200_000
"""Characters of a program that are analysed."""
_PYTHON = frozenset({"python", "py", "python3", "py3", "python2", "ipython", "ipython3", "pycon", "sage", "tool_code"})
_MOST_CLOSINGS = 4
"""Later closing fences that are tried where a block is cut by a fence inside of it, such as one in a docstring."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of Python: its source, the names that it defines at its top, and those that it uses."""

    source: str
    defined: frozenset[str]
    used: frozenset[str]
    has_definition: bool


def program_of(reply: str, names: Collection[str] = ()) -> str | None:
    """The program in a reply; None where there is nothing but reasoning.

    Args:
        names: the functions that tests call.
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
    """A reply without its reasoning; the indentation of its first line stays, for it may continue a function."""
    thought, rest = split_reasoning(reply)
    before = reply[: reply.rfind(rest)] if thought and rest else ""
    return before[len(before.rstrip(" \t")) :] + rest if thought else reply


def _block(text: str, fence: Fence) -> _Block | None:
    """A fenced block as Python; None where it is in another language, or in none and no Python."""
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
    """Sources of the earlier blocks that define what the chosen one uses, in their order."""
    missing = set(blocks[chosen].used - blocks[chosen].defined)
    needed: list[str] = []
    for block in reversed(blocks[:chosen]):
        if block.defined & missing and not block.defined & blocks[chosen].defined:
            needed.insert(0, block.source)
            missing = (missing - block.defined) | (block.used - block.defined)
    return needed


def top_names(tree: ast.Module) -> set[str]:
    """The names that a module binds at its top level."""
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
    """The text of a block without the marks of a quotation and without common indentation."""
    lines = body.splitlines()
    if lines and all(line.lstrip().startswith(">") for line in lines if line.strip()) and ">>>" not in body:
        lines = [line.lstrip().removeprefix(">").removeprefix(" ") for line in lines]
    return textwrap.dedent("\n".join(lines))


def parse_python(source: str) -> ast.Module | None:
    """The syntax tree of a program; None where it is no valid Python, or too long or too deep to tell."""
    return cast(ast.Module | None, _compiled(source, ast.PyCF_ONLY_AST))


def compiles(source: str) -> bool:
    """Whether a program compiles, which a `return` outside of a function does not although it parses."""
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
