"""Mathematical answers: what counts as the final answer of a text, and whether it equals the right one.

The final answer is, first that there is:
  1. what stands in the last `\\boxed{…}`; where its line boxes several things that differ, there is none;
  2. the rest of the line after the last `####`;
  3. the rest of the line after the last «answer is», `Answer:` or `A:`;
  4. the whole text, if it is one line.
Dollar signs, `\\( \\)`, `\\[ \\]`, emphasis and a closing full stop are taken off. An answer of more than 1,000 characters is none; neither
is one that denies («not 18») or offers a choice («17 or 18») where the right one does not.

Equal texts are equal; two plain numbers are compared exactly; words are compared as short answers; the rest goes to math-verify, see
`eval.graders.math_worker`, in a process that is killed at the deadline.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from eval.graders.answers import normalize
from eval.graders.math_processes import compare
from eval.graders.numbers import measure, several_answers

LONGEST = 1_000
"""Characters of an expression at most."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MARKERS = (re.compile(r"####"), re.compile(r"(?i:\banswer is\b:?|\banswer:)|\bA:"))
_WRAPPED = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_UNICODE = {"−": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "°": r"^\circ "}
_UNICODE |= {"²": "^2", "³": "^3", "\u00a0": " "}
_PLAIN = (
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![\\A-Za-z])infinity(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\*\*"), "^"),
)
_HEDGE = re.compile(
    r"\b(?:not|never|neither|nor|or|and|maybe|either|isn't)\b|[≠±≈~…;']"
    r"|\\(?:neg|lnot|neq?|lor|vee|land|wedge|pm|mp|prime|[lc]?dots|approx|sim)\b"
)
"""What an answer may hold only where the right one does: denials, choices, lists, and primes, which math-verify reads over."""
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")


def final_expression(text: str) -> str | None:
    """The final answer of `text` by the rule above, or None where it has none."""
    if several_answers(text):
        return None
    if _BOX.search(text):
        boxes = _boxes(text)
        return _strip_wrapping(boxes[-1][1]) if boxes and len({content for line, content in boxes if line == boxes[-1][0]}) == 1 else None
    for marker in _MARKERS:
        if found := list(marker.finditer(text)):
            return _strip_wrapping(text[found[-1].end() :].strip().partition("\n")[0])
    return _strip_wrapping(text) if "\n" not in text.strip() else None


def same_mathematics(prediction: str, gold: str) -> bool:
    """Whether the final answers of both texts are equal, whichever is taken as the right one.

    Raises:
        ValueError: where `gold` has no final answer that can be read.
        Undecided: where the comparison had to be killed.
    """
    right, given = final_expression(gold), final_expression(prediction)
    if right is None or normalize(right) in ("nan", "none", "null"):
        raise ValueError("the gold has no final answer")
    if given is None or not Counter(_HEDGE.findall(given)) <= Counter(_HEDGE.findall(right)):
        return False
    if given == right:
        return True
    words = [_TEXT.sub(r"\1", side).strip() for side in (right, given)]
    if any(_WORDS.fullmatch(side) for side in words):
        return all(_WORDS.fullmatch(side) for side in words) and normalize(words[0]) == normalize(words[1])
    if (numbers := (_plain_number(right), _plain_number(given))) and None not in numbers:
        return numbers[0] == numbers[1]
    return right.isascii() and given.isascii() and compare(right, given)


def _plain_number(text: str) -> Fraction | None:
    """The value of a number without a unit, or with a percent sign; None for anything else."""
    found = measure(text.replace(r"\%", "%").replace("{,}", ","))
    if found is None or found[1] not in ("", "%"):
        return None
    return found[0] / 100 if found[1] else found[0]


def _boxes(text: str) -> list[tuple[int, str]]:
    """(line number, content) of every `\\boxed` whose brace closes."""
    boxes = []
    for start in _BOX.finditer(text):
        depth, end = 1, start.end()
        while depth and end < len(text) and end - start.end() <= LONGEST:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if not depth:
            boxes.append((text.count("\n", 0, start.start()), text[start.end() : end - 1]))
    return boxes


def _strip_wrapping(text: str) -> str | None:
    """An expression without delimiters and emphasis, Unicode signs as LaTeX; None where it is empty, too long or unbalanced."""
    bare = " ".join(text.split()) if len(text) <= LONGEST else ""
    while True:
        shorter = next(
            (bare[len(a) : -len(b)] for a, b in _WRAPPED if bare.startswith(a) and bare.endswith(b) and len(bare) > len(a + b)), bare
        )
        shorter = shorter.strip().removesuffix(".").strip()
        if shorter == bare:
            break
        bare = shorter
    for sign, latex in _UNICODE.items():
        bare = bare.replace(sign, latex)
    for pattern, latex in _PLAIN:
        bare = pattern.sub(latex, bare)
    return bare if bare.strip() and _balanced(bare) else None


def _balanced(text: str) -> bool:
    """Whether braces balance, and parentheses and brackets together, for «(0, 1]» is an interval."""
    for opening, closing in (("{", "}"), ("([", ")]")):
        depth = 0
        for sign in text:
            depth += (sign in opening) - (sign in closing)
            if depth < 0:
                return False
        if depth:
            return False
    return True
