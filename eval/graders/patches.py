"""Unified diffs between two states of a folder of text files: made, and applied strictly.

A diff applies where every line that it keeps or takes away stands exactly where it says. Nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file\n"
_ABSENT = "/dev/null"

Files = Mapping[str, bytes]
"""Contents by relative name."""


class PatchError(ValueError):
    """A diff that cannot be read, or does not apply."""


def make_patch(before: Files, after: Files) -> str:
    """The diff from `before` to `after`, by name; empty where they are equal. Raises PatchError for a changed file that is not UTF-8."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return "".join(piece for name in changed for piece in _file_diff(name, before.get(name), after.get(name)))


def apply_patch(files: Files, patch: str) -> dict[str, bytes]:
    """`files` after `patch`. Raises PatchError where it does not apply."""
    result = dict(files)
    for old_name, new_name, hunks in _sections(patch):
        old = _lines(result.get(old_name, b""), old_name) if old_name else []
        if old_name and old_name not in result:
            raise PatchError(f"the patch changes {old_name}, which is not there")
        if old_name:
            del result[old_name]
        if new_name:
            result[new_name] = "".join(_patched(old, hunks, new_name)).encode()
    return result


def _file_diff(name: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    origin = _ABSENT if before is None else f"a/{name}"
    target = _ABSENT if after is None else f"b/{name}"
    old, new = _lines(before or b"", name), _lines(after or b"", name)
    if not old and not new:  # an empty file that comes or goes has no hunk
        yield f"--- {origin}\n+++ {target}\n"
    for line in unified_diff(old, new, origin, target):
        yield line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}"


def _lines(content: bytes, name: str) -> list[str]:
    """Lines with their line feeds; no other character ends a line."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise PatchError(f"{name} is not text in UTF-8") from error
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _sections(patch: str) -> Iterator[tuple[str | None, str | None, list[list[str]]]]:
    """(old name, new name, hunks) of each file; a hunk is its lines, the header first. Lines of git's own between them are left out."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", patch)
    position = 0
    while position < len(lines):
        if not (lines[position].startswith("--- ") and lines[position + 1 : position + 2] and lines[position + 1].startswith("+++ ")):
            position += 1
            continue
        names = _name(lines[position]), _name(lines[position + 1])
        hunks, position = _read_hunks(lines, position + 2)
        yield *names, hunks


def _name(line: str) -> str | None:
    name = line[4:].split("\t")[0].strip()
    if name == _ABSENT:
        return None
    name = name[2:] if name[:2] in ("a/", "b/") else name
    if name.startswith("/") or ".." in name.split("/") or not name:
        raise PatchError(f"the patch names {name!r}, which is outside of the repository")
    return name


def _read_hunks(lines: Sequence[str], position: int) -> tuple[list[list[str]], int]:
    """The hunks that begin at `position`, read by the line counts of their headers, and the position after them."""
    hunks: list[list[str]] = []
    while position < len(lines) and (header := _HUNK.match(lines[position])):
        old_left, new_left = int(header[2] or 1), int(header[4] or 1)
        hunk = [lines[position]]
        position += 1
        while position < len(lines) and (old_left > 0 or new_left > 0 or lines[position] == _NO_NEWLINE):
            line = lines[position]
            old_left -= line[0] in " -"
            new_left -= line[0] in " +"
            hunk.append(line)
            position += 1
        if old_left or new_left:
            raise PatchError(f"a hunk is not as long as it says: {hunk[0].strip()}")
        hunks.append(hunk)
    return hunks, position


def _patched(old: Sequence[str], hunks: Sequence[Sequence[str]], name: str) -> Iterator[str]:
    at = 0
    for header, *body in hunks:
        match = _HUNK.match(header)
        assert match is not None
        start = max(int(match[1]) - 1, 0) if match[2] != "0" else int(match[1])
        if start < at:
            raise PatchError(f"hunks of {name} overlap")
        yield from old[at:start]
        at = start
        for sign, text in _without_markers(body):
            if sign in " -":
                if at >= len(old) or old[at] != text:
                    raise PatchError(f"line {at + 1} of {name} is not what the patch expects")
                at += 1
            if sign in " +":
                yield text
    yield from old[at:]


def _without_markers(body: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(sign, line) of a hunk's body; a line before a «No newline» marker loses its line feed."""
    for index, line in enumerate(body):
        if line == _NO_NEWLINE:
            continue
        if line[0] not in " +-":
            raise PatchError(f"a hunk holds {line[:20]!r}")
        cut = index + 1 < len(body) and body[index + 1] == _NO_NEWLINE
        yield line[0], line[1:].removesuffix("\n") if cut else line[1:]
