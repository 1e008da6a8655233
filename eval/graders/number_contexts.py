"""What stands beside a number and makes it another: bounds, functions, denials, factors, other units of count.

`changed` looks at the line before a number and at what follows it. Words that only hedge («about 18», «perhaps 18») change nothing.
"""

from __future__ import annotations

import re

_SIGNS = r"[*$€£({\[\"'_`]*"
_COUNTS = "one|two|three|four|five|six|seven|eight|nine|ten"
_PARTS = (
    "half|third|quarter|fourth|fifth|sixth|eighth|tenth|hundredth|percent|per\\s+cent|fraction|root|square|cube|power|factorial|logarithm"
)
_BEFORE = (
    r"(?:\b(?:not|never|neither|nor|no)\b|n't\b|≠|!=|\\neq?\b)\s*(?:[\w$€£]+\s+){0,2}",  # a denial
    r"(?:(?<!<)<|(?<![\w>/\"'])>|[≤≥]|\\(?:[lg]eq?|[lg]eqslant|lt|gt)\b)=?\s*",  # a bound; `>>` closes a calculation of GSM8K, `x>` a tag
    r"(?:[√∛∜]|\\(?:sqrt|[dt]?frac|log|ln|sin|cos|tan|binom)|\b(?:sqrt|log|ln|sin|cos|tan|exp))\s*[\[{(]*",  # a function
    r"\b(?:less|fewer|more|greater|larger|smaller|higher|lower|bigger|longer|shorter|older|younger|other|rather)\s+than"
    r"(?:\s+or\s+equal\s+to)?\s+",
    r"\bat\s+(?:least|most)\s+|\b(?:over|under|above|below|beyond|exceeds|exceeding|almost|nearly|barely)\s+",
    r"\b(?:(?:minimum|maximum|min|max|excess|factorial)\s+of|no\s+more\s+than)\s+|\bclose\s+to\s+",
    r"(?<!adds )(?<!add )(?<!added )(?<!adding )(?<!comes )(?<!come )(?<!sums )\bup\s+to\s+",
    r"\b(?:half|twice|thrice|double|triple|treble|quadruple)\s+(?:of\s+)?",
    rf"(?:\b(?:{_PARTS})s?|%|[0-9])\s+(?:out\s+)?of\s+(?:the\s+)?",
    r"\b(?:reciprocal|inverse|opposite|negation|negative|multiples?|factors?|divisors?|digits?)\s+of\s+|\bout\s+of\s+",
    rf"\b(?:{_COUNTS})\s+(?:in|of)\s+",
    r"\b(?:multiplied|divided|divisible)\s+by\s+|\b(?:times|plus|modulo|mod|raised\s+to)\s+",
    r"\b(?:instead\s+of|apart\s+from|anything\s+but|except(?:\s+for)?|excluding|without)\s+",
    r"\b(?:step|question|problem|page|option|example|equation)\s+",
)
_AFTER = (
    r"\?|\^(?!\{?\\circ)|_(?=[\w{])|\+(?!\s*[0-9])",
    r"(?:st|nd|rd|th)\b|(?-i:[abeijnopqruvwxyzBDEGHIOPQRSUXYZπ](?!\w))",  # ordinals; letters that are no unit are variables
    r"\s?-?(?:ish|fold)\b",
    r"\s*\b(?:squared|cubed|factorial|dozen|score|gross|grand|lakh|crore|halves|thirds|fifths|sixths|tenths|hundredths|thousandths)\b",
    r"\s+(?:or|and)\s+(?:more|less|fewer|so|above|below|over|under|up|older|younger|counting|higher|lower|greater)\b",
    rf"\s+and\s+(?:an?|{_COUNTS})\s+(?:{_PARTS})s?\b",
    r"\s+(?:at\s+(?:least|most)|minimum|maximum|max|min|plus|to\s+the\s+power|to\s+the\s+\w+\s+power)\b",
    r"\s+(?:[\w$€£]+\s+){0,2}?(?:is|are|was|were|be|seems?|looks?)\s+(?:\w+\s+){0,2}(?:wrong|incorrect|not|false|mistaken|impossible|too)\b",
    r"\s+(?:[\w$€£]+\s+){0,2}?(?:isn't|aren't|wasn't|cannot|can't|can\s+not|won't|must\s+not)\b",
    r"\s*[,;:(–—-]*\s*(?:(?:which|that)\s+is\s+)?(?:wrong|incorrect|false|no|not)\s*[.)!]*\s*$",
)
_CHANGED_BEFORE = re.compile(rf"(?:{'|'.join(_BEFORE)}){_SIGNS}$", re.IGNORECASE)
_CHANGED_AFTER = re.compile(rf"[)}}]*!|[*$)}}\]\"'_`]*(?:{'|'.join(_AFTER)})", re.IGNORECASE)
WINDOW = 80
"""Characters of the line on either side that are looked at."""


def changed(before: str, after: str) -> bool:
    """Whether the texts before and after a number make it another, or no answer at all."""
    line, rest = before.rsplit("\n", 1)[-1][-WINDOW:], after.split("\n", 1)[0][:WINDOW]
    return bool(_CHANGED_BEFORE.search(line) or _CHANGED_AFTER.match(rest))
