"""Unlikely inputs from a seed: broken LaTeX, digits of every script, tags, huge texts, damaged right answers.

Each is a gold and a prediction. The gold is one that a kind can judge, so that every prediction reaches the comparison.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

GOLDS: dict[str, tuple[Any, ...]] = {
    "qa_em": ("Green Lake", "3.5", "C++", "The The", "9/11", "Ångström"),
    "squad_em": ("Green Lake", "The The", "Ångström"),
    "qa_f1": ("Green Lake", "Ann beat Bob", "-40"),
    "set": (["red", "blue"], [["New York", "NYC"], ["Oslo"]], ["3.5", "4"]),
    "gsm8k": ("so\n#### 18", "#### -1,234.50", "#### 12345678901234567890"),
    "number": ("5", "1/2", "5 km", "1e300"),
    "date": ("20 July 1969", "1999", "44 BC", "1999-07"),
    "math": (r"\frac{1}{2}", "x^2+1", r"\sqrt{2}", r"\{1,2\}", "(0,1]", r"\begin{pmatrix}1\\2\end{pmatrix}", "x>2", r"\text{Evelyn}", "18"),
}
_PIECES = (
    *"0123456789+-*/^_=<>()[]{}|;:,.!?%$&#@~`'\" \n\t\\",
    *("\\frac", "\\sqrt", "\\boxed", "\\sum", "\\int", "\\infty", "\\pi", "\\text", "\\left(", "\\right)"),
    *("\\begin{pmatrix}", "\\end{pmatrix}"),
    *("\\cdot", "\\pm", "\\neg", "\\in", "\\cup", "\\log", "\\sin", "\\lim_{x\\to 0}", "\\binom", "^{", "_{", "}", "{", "}{", "!", "e^x"),
    *("####", "A:", "answer is", "not", "or", "and", "<answer>", "</answer>", "<think>", "NaN", "inf", "null", "1e999", "1e-999", "0x1F"),
    *("٣", "৪", "１８", "²", "½", "Ⅷ", "é", "е", "\u200b", "\u202e", "\u0338", "\ud7ff", "\U0001d7cf", "\x00", "\x1b[31m", "ﷺ", "İ", "ß"),
    *("Green", "Lake", "July", "1969", "BC", "red", "blue", "million", "km", "x", "y", "a", "the", "Paris", "yes"),
)
_FORMS = (
    *(
        "A+B",
        "A-B",
        "A B",
        "\\frac{A}{B}",
        "(A)^{B}",
        "\\sqrt{A}",
        "\\sin(A)",
        "\\log_{A}{B}",
        "(A,B)",
        "[A,B)",
        "\\{A,B\\}",
        "A=B",
        "A<B",
        "|A|",
    ),
    *("\\int_{0}^{A} B dx", "\\sum_{n=1}^{A} B", "\\lim_{x\\to A} B", "\\begin{pmatrix}A&B\\\\B&A\\end{pmatrix}", "\\binom{A}{B}"),
    *("A!", "A\\text{ cm}"),
)
_TOWERS = (
    *("9^{9^{9^{9}}}", "1000000000!", "x^{10000000}", "\\sum_{n=1}^{10000000} \\sin(n^2)"),
    *("(" * 300, "\\sqrt{" * 200, "9" * 5_000, "-" * 3_000),
)
TOWER_SHARE = 0.002
"""Share of the inputs that are built to hang or to overflow."""


def fuzz(kind: str, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """`count` rows for a kind, that follow from the seed."""
    rng = random.Random(f"{kind}-{seed}")
    for number in range(count):
        gold = rng.choice(GOLDS[kind])
        yield {"id": number, "gold": gold, "pred": _prediction(rng, kind, gold)}


def _prediction(rng: random.Random, kind: str, gold: Any) -> Any:
    text = gold if isinstance(gold, str) else "; ".join(item if isinstance(item, str) else item[0] for item in gold)
    draw = rng.random()
    if draw < TOWER_SHARE:
        return rng.choice(_TOWERS)
    if draw < 0.3:
        return _spoilt(rng, text)
    if draw < 0.4:
        return "".join(
            chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x2FF), rng.randrange(0xD7FF)))) for _ in range(rng.randrange(40))
        )
    if draw < 0.48 and kind == "math":
        return _expression(rng, rng.randrange(1, 4))
    if draw < 0.5:
        return rng.choice((None, 5, -1.5, [], {}, True, text * 200, ["red", text], float("nan"), float("inf")))
    return rng.choice(("", " ")).join(rng.choice(_PIECES) for _ in range(rng.randrange(1, 25)))


def _expression(rng: random.Random, depth: int) -> str:
    """LaTeX that can be read: what gets as far as the comparison itself."""
    if not depth:
        return rng.choice(("x", "y", "1", "2", "7", "0", "0.5", "100", "-3", "\\pi", "\\infty", "e", "10^{20}", "\\frac{1}{2}", "50\\%"))
    form = rng.choice(_FORMS)
    return form.replace("A", _expression(rng, depth - 1)).replace("B", _expression(rng, depth - 1))


def _spoilt(rng: random.Random, text: str) -> str:
    """The right answer with a few pieces put in, taken out or doubled."""
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(text) + 1)
        change = rng.randrange(3)
        if change == 0:
            text = text[:place] + rng.choice(_PIECES) + text[place:]
        elif change == 1:
            text = text[:place] + text[place + 1 :]
        else:
            text = text[:place] + text[max(0, place - 3) :]
    return text
