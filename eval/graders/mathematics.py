"""Mathematical answers: extraction of the final answer, and equality with the accepted one.

A reply is first reduced like every reply (`eval.graders.text`): reasoning, answer tags, emphasis and a fence are removed. The final answer
is the first of:
  1. the content of the last `\\boxed{…}`, with a percent sign after it; all boxes of its line if only commas and "and" separate them;
     different boxes joined otherwise give none;
  2. what the last label announces: `####`, "answer is", `Answer:` or `A:`;
  3. the whole text, if it is one line or one display formula.
Dollar signs, `\\( \\)`, `\\[ \\]` and a closing full stop are removed. An answer over 1,000 characters counts as none, and so does one that
denies ("not 18") or offers a choice ("17 or 18") unless the accepted one does too. By default (`Extraction.LAST`), a final answer that is
prose, or missing, is replaced by the last expression in it unless that is denied or in doubt; contradicting boxes are replaced by a label
after them; and an exact value takes precedence over its rounding. `Extraction.FINAL` uses only the final answer.

Equal texts are equal; two plain numbers are compared exactly; words are compared as short answers; everything else goes to math-verify in
worker processes (`eval.graders.math_worker`), which start on demand, are reused, and are shared by all threads. A comparison has a deadline
in the worker; a worker that does not answer is killed and replaced.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import IO

from eval.graders.answers import normalize
from eval.graders.math_text import NAMES, OR, Assigned, as_latex, exact_part, last_in_prose, one_of_name, read_names, split_list
from eval.graders.numbers import changed, known_unit, measure, same_unit, unit_key
from eval.graders.text import LABEL, after_label, boxes, opens_box, plain, without_wrapping

LONGEST = 1_000
"""Maximum characters of an expression."""

_BETWEEN_BOXES = re.compile(r"(?:[\s,;.$&]|\\[()\[\],;: ]|\\q?quad(?![A-Za-z])|\\text\s*\{\s*and\s*\}|\band\b)*")
_BOX_NAME = re.compile(rf"(?:(?<![^$,;:.&(\[\s])|(?<=\\[(\[])){NAMES}\s*=\s*$")
_BEFORE_NAME = re.compile(r"(?:^|[$,;:.&(\[}]|(?<![\\A-Za-z])(?!(?:sin|cos|tan|log|ln|exp|sqrt|or|not)\b)[A-Za-z]{2,})\s*$")
"""Text that may precede a name: no operator, function or denial."""
_WINDOW = 200
"""Characters before a box that are searched for its name."""
_BOX_PERCENT = re.compile(r"[\s$]*(?:\\?%|(?:percent|pct)\b)")
_SHORT_LABEL = re.compile(r"\bA:")
_SENTENCE = re.compile(r"(?<!\d)\.\s+(?=[A-Z<])|\n\s*\n|\bI hope it is\b")
_WRAPPED = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_HEDGE = re.compile(
    r"\b(?:not|never|neither|nor|or|maybe|either|isn't|more|less|fewer)\b|[±≈~…']|(?<=[0-9])(?:st|nd|rd|ths?)\b"
    r"|\\(?:neg|lnot|neq?|lor|vee|land|wedge|pm|mp|prime|[lc]?dots|approx|sim)(?![A-Za-z])"
)
"""Text that an answer may only contain if the accepted one does: denials, choices, ordinals, and primes, which math-verify ignores."""
_PLUS_MINUS = re.compile(r"\\pm\s*[\w\\({]")
_INEQUALITY = re.compile(r"[<>]|\\(?:l|g)(?:t|eq?|eqslant)(?![A-Za-z])")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")
_DISPLAY = re.compile(r"\s*(?:\$\$.*\$\$|\\\[.*\\\])\s*", re.DOTALL)
_DOLLAR = re.compile(r"(?<!\\)\$")
_INLINE = re.compile(r"(?<!\\)\$(\S|\S[^$]*[^\s\\])\$")
_TEXT = re.compile(r"\\text(?:bf|it|rm|sf|tt)?\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt)?|begin|end|operatorname|mathbb)\s*\{[^{}]*\}|\\[A-Za-z]+")
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:sqrt|sin|cos|tan|log|ln|exp|and|or)\b)[A-Za-z]{2,}|[^\W\d_A-Za-z]{2,}|(?<!\\)\$")
_MEASURED = re.compile(r"[^A-Za-z]*[0-9})$%](?:\s*[A-Za-z]+){1,2}")
_INDEX = re.compile(r"(?<=[0-9])\s*_\s*(?:\{([^{}]*)\}|(\w))")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])([0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})(?![\w.])")
_LAST_WORDS = re.compile(r"[0-9})]( ?[A-Za-z]{2,}(?: [A-Za-z]{2,})*)$")
_FRACTION = re.compile(r"^(-?)\\[cdt]?frac\s*\{?([0-9]+?)\}?\s*\{?([0-9]+)\}?$")
_SCALE = re.compile(r"\b(?:hundred|thousand|million|billion|trillion|percent|per cent|pct)\b")
_EQUATION = re.compile(r"(?<![<>!])=")
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z]{1,2}(?![A-Za-z])")
_VARIABLE = re.compile(r"[0-9][A-Za-z](?![A-Za-z])")
_ABBREVIATED = re.compile(r"[0-9](?:[kKMB]|bn|tn)\b")


class Extraction(StrEnum):
    """What counts as the answer: only the final answer, or else the last expression of the prose."""

    FINAL = "final"
    LAST = "last"


def final_expression(text: str) -> str | None:
    """Return the final answer of `text` by the rule above, or None."""
    reply = without_wrapping(plain(text))
    return None if reply is None else _final(reply)


def last_expression(text: str) -> str | None:
    """Return the final answer of `text` if it is an expression, else the last expression in that sentence, or in the text."""
    reply = without_wrapping(plain(text))
    if reply is None:
        return None
    reply = _after_boxes(reply)
    final = _final(reply)
    bare = _COMMAND.sub(" ", final or reply)
    if opens_box(reply) or not _PROSE.search(bare) or _MEASURED.fullmatch(bare) or (final and read_names(final).names):
        return None if final is None else exact_part(final)
    labelled = _labelled(reply)
    found = last_in_prose(_SENTENCE.split(labelled)[0] if labelled else reply)
    return final if found is None else _strip_wrapping(found)


def _final(reply: str) -> str | None:
    if opens_box(reply):
        return _boxed(reply)
    labelled = _labelled(reply)
    if labelled is not None:
        return _strip_wrapping(labelled)
    return _strip_wrapping(reply) if "\n" not in reply or _DISPLAY.fullmatch(reply) else None


def _labelled(reply: str) -> str | None:
    return after_label(_SHORT_LABEL.sub("Answer:", reply))


def expression_of(text: str, extraction: Extraction) -> str | None:
    return final_expression(text) if extraction is Extraction.FINAL else last_expression(text)


def same_mathematics(prediction: str, gold: str, extraction: Extraction = Extraction.LAST) -> bool:
    """Return whether the final answers of both texts are equal.

    Raises:
        ValueError: `gold` has no readable final answer.
        Undecided: The comparison was killed.
    """
    right, given = expression_of(gold, extraction), expression_of(prediction, extraction)
    if right is None or normalize(right) in ("nan", "none", "null"):
        raise ValueError("the gold has no final answer")
    right, given = one_of_name(right), None if given is None else one_of_name(given)
    if given is None or not _hedges(given) <= _hedges(right):
        return False
    return given == right or _same(*_compared(right, given))


def expression_key(text: str, extraction: Extraction = Extraction.LAST) -> Hashable | None:
    """Return a key shared by spellings of a final answer that need no algebra, or None if `text` has no final answer.

    The key is a value with its unit, words, or the expression without blanks.
    """
    found = expression_of(text, extraction)
    if found is None:
        return None
    values = read_names(one_of_name(found)).values
    plain = _FRACTION.sub(r"\1\2/\3", values)
    if (number := _plain_number(plain)) is not None:
        return number
    if measured := _measured(plain):
        return measured[0], unit_key(measured[1])
    words = _TEXT.sub(r"\1", values).strip()
    return normalize(words) if _WORDS.fullmatch(words) else "".join(values.split())


def _same(right: str, given: str) -> bool:
    words = [_TEXT.sub(r"\1", side).strip() for side in (right, given)]
    if any(_WORDS.fullmatch(side) for side in words):
        return all(_WORDS.fullmatch(side) for side in words) and normalize(words[0]) == normalize(words[1])
    if (numbers := (_plain_number(right), _plain_number(given))) and None not in numbers:
        return numbers[0] == numbers[1]
    first, second = _measured(right), _measured(given)
    if first and second:
        return first[0] == second[0] and same_unit(first[1], second[1])
    if _indices(right) != _indices(given) or _cases_differ(right, given) or _multiplier(right) != _multiplier(given):
        return False
    return given == right or (right.isascii() and given.isascii() and compare(_for_algebra(right), _for_algebra(given)))


def _compared(right: str, given: str) -> tuple[str, str]:
    """Return the sides to compare: only their values if one side names them and the other does not, or both use the same names."""
    first, second = read_names(right), read_names(given)
    if first.names and second.names:
        return (first.values, second.values) if first.names == second.names else (right, given)
    if _EQUATION.search(second.values if first.names else first.values):
        return right, given
    return _as_tuple(first.values, second), _as_tuple(second.values, first)


def _as_tuple(values: str, other: Assigned) -> str:
    """Convert a plain list to a tuple if the other side names as many values."""
    single = len(other.names) > 1 and len(split_list(other.values)) == 1
    return f"({values})" if single and len(split_list(values)) == len(other.names) else values


def _hedges(text: str) -> Counter[str]:
    """Count the hedges of an expression, except an "or" between inequalities, and a single ±, which is a set of two."""
    found = Counter(_HEDGE.findall(_TEXT.sub(r"\1", text)))
    parts = OR.split(text)
    if len(parts) > 1 and all(_INEQUALITY.search(part) for part in parts):
        found -= Counter({"or": len(parts) - 1, r"\lor": len(parts) - 1, r"\vee": len(parts) - 1})
    if found[r"\pm"] == 1 and _PLUS_MINUS.search(text):
        del found[r"\pm"]
    return found


def _indices(text: str) -> list[str]:
    """Subscripts of digits: they name the base of a number, and math-verify ignores them."""
    return [(found[1] or found[2]).strip() for found in _INDEX.finditer(text)]


def _for_algebra(text: str) -> str:
    """Remove subscripts of digits, and write 3e8 as a power of ten, which in LaTeX would be a product."""
    return _SCIENTIFIC.sub(r"\1\\times 10^{\2}", _INDEX.sub("", text))


def _multiplier(text: str) -> str:
    """Words after a number that change it, but that math-verify takes for a unit: "million", "dozen", "percent", "squared"."""
    found = _LAST_WORDS.search(" ".join(_TEXT.sub(r" \1 ", text).split()))
    words = found[1].strip() if found else ""
    return words if words and (_SCALE.search(words) or changed("", words) or changed("", f" {words}")) else ""


def _cases_differ(right: str, given: str) -> bool:
    """Return whether a letter is upper case on one side only; math-verify takes `X` for `x`."""
    sides = [{sign for run in _LETTER.findall(_COMMAND.sub(" ", side)) for sign in run} for side in (right, given)]
    shared = {sign.lower() for sign in sides[0]} & {sign.lower() for sign in sides[1]}
    return any(
        {sign for sign in sides[0] if sign.lower() == letter} != {sign for sign in sides[1] if sign.lower() == letter} for letter in shared
    )


def _plain_number(text: str) -> Fraction | None:
    plain = " ".join(_TEXT.sub(r" \1 ", text).split()).replace(r"\%", "%").replace("{,}", ",").replace(r",\!", ",")
    found = None if _ABBREVIATED.search(text) else measure(plain)
    if found is None or found[1] not in ("", "%"):
        return None
    return found[0] / 100 if found[1] else found[0]


def _measured(text: str) -> tuple[Fraction, str] | None:
    plain = " ".join(_TEXT.sub(r" \1 ", text).split())
    found = None if _VARIABLE.search(plain) else measure(plain)
    return found if found and known_unit(found[1]) else None


def _boxed(text: str) -> str | None:
    held = boxes(text)
    line = [box for box in held if "\n" not in text[box[0] : held[-1][0]]]
    contents = list(dict.fromkeys(text[start:end].strip() for start, end in line))
    if len(contents) < 2:
        sign = r"\%" if line and _BOX_PERCENT.match(text, line[-1][1] + 1) else ""
        return _strip_wrapping(contents[0] + sign) if contents else None
    between = [text[one[1] + 1 : text.rindex("\\", 0, other[0])] for one, other in pairwise(line)]
    if all(map(_BETWEEN_BOXES.fullmatch, between)):
        return _strip_wrapping(", ".join(contents))
    return _strip_wrapping(_with_names(text, line, between) or "")


def _with_names(text: str, boxes: list[tuple[int, int]], between: list[str]) -> str | None:
    r"""Read "x = \boxed{1} and y = \boxed{2}" as a list of equations; None if a box has no name, or they are joined otherwise."""
    first = text[: text.rindex("\\", 0, boxes[0][0])].rpartition("\n")[2][-_WINDOW:]
    names = [_BOX_NAME.search(before) for before in (first, *between) if len(before) <= _WINDOW]
    named = [(name, name.string[: name.start()]) for name in names if name]
    if len(named) < len(boxes) or not _BEFORE_NAME.search(named[0][1]):
        return None
    values = [f"{name[0]} {text[start:end]}" for (name, _), (start, end) in zip(named, boxes, strict=True)]
    return ", ".join(values) if all(_BETWEEN_BOXES.fullmatch(joint) for _, joint in named[1:]) else None


def _after_boxes(text: str) -> str:
    """Return the text after the last box if contradicting boxes are followed by a label; else all of `text`."""
    held = boxes(text)
    rest = text[held[-1][1] + 1 :] if held else ""
    settled = LABEL.search(rest) or _SHORT_LABEL.search(rest)
    return rest if settled and _final(text) is None else text


def _strip_wrapping(text: str) -> str | None:
    """Strip delimiters and emphasis, and convert Unicode to LaTeX; None if the result is empty, too long or unbalanced."""
    bare = " ".join(text.split()) if len(text) <= LONGEST else ""
    while True:
        shorter = next((inner for a, b in _WRAPPED if (inner := _between(bare, a, b))), bare).strip().removesuffix(".").strip()
        if shorter == bare:
            break
        bare = shorter
    bare = " ".join(as_latex(_INLINE.sub(r"\1", bare)).split())
    return bare if bare and _balanced(bare) else None


def _between(text: str, opening: str, closing: str) -> str:
    """Return the text between delimiters around all of `text`; empty if there are none, as in `$1$ and $2$`."""
    inner = text[len(opening) : -len(closing)] if text.startswith(opening) and text.endswith(closing) else ""
    return "" if "$" in opening and _DOLLAR.search(inner) else inner


def _balanced(text: str) -> bool:
    """Return whether braces balance, and parentheses together with brackets, because "(0, 1]" is an interval."""
    for opening, closing in (("{", "}"), ("([", ")]")):
        depth = 0
        for sign in text:
            depth += (sign in opening) - (sign in closing)
            if depth < 0:
                return False
        if depth:
            return False
    return True


DEADLINE_SECONDS = 4.0
"""Computing time of one comparison."""
MOST_WAITING = 10
"""Wall time of a comparison as a multiple of `DEADLINE_SECONDS`, for busy machines."""
WORKERS = 2
START_SECONDS = 120.0
"""Time for a worker to load math-verify on a busy machine."""


class Undecided(ValueError):
    """The comparison was killed or its process died, so there is no result."""


class _Worker:
    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "eval.graders.math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._patience = START_SECONDS

    def ask(self, gold: str, prediction: str) -> bool:
        """Return the worker's answer. Raises Undecided without one."""
        request = {"gold": gold, "prediction": prediction, "seconds": DEADLINE_SECONDS}
        try:
            reply = self._exchange(json.dumps(request).encode() + b"\n", self._patience + MOST_WAITING * DEADLINE_SECONDS)
        except OSError as error:
            raise Undecided("the comparison process died") from error
        self._patience = 5.0
        if "error" in reply:
            raise Undecided(str(reply["error"]))
        return bool(reply["same"])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kill the process group: the child may hang in a comparison and also holds the pipes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _exchange(self, line: bytes, seconds: float) -> dict[str, object]:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None and answers is not None
        try:
            questions.write(line)
            questions.flush()
            reply, _ = read_line(answers, seconds)
        except BaseException:  # also interrupts: a late answer would be read as that to the next question
            self.end()
            raise
        if not reply:
            self.end()
            raise Undecided("the comparison process did not answer")
        return dict(json.loads(reply))


class _Pool:
    """At most `WORKERS` processes; callers wait for a free one."""

    def __init__(self) -> None:
        self._forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)  # two processes that read one pipe would get each other's answers

    def compare(self, gold: str, prediction: str) -> bool:
        with self._places:
            worker = self._take()
            try:
                return worker.ask(gold, prediction)
            finally:
                if worker.alive:
                    self._idle.put(worker)

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().end()

    def _forget(self) -> None:
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._places = threading.Semaphore(WORKERS)

    def _take(self) -> _Worker:
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            return _Worker()
        return worker if worker.alive else _Worker()


_pool = _Pool()


def compare(gold: str, prediction: str) -> bool:
    """Compare two expressions in both directions. Raises ValueError if the gold cannot be parsed, Undecided if killed."""
    return _pool.compare(gold, prediction)


def read_line(pipe: IO[bytes], seconds: float) -> tuple[bytes, bool]:
    """Read the next line of `pipe`, empty if there is none. The flag is False only if `seconds` ran out first."""
    end, text = time.monotonic() + seconds, b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
        piece = os.read(pipe.fileno(), 65_536) if ready else b""
        if not piece:
            return b"", bool(ready)
        text += piece
    return text, True
