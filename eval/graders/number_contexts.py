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
_COMPARED = "less|fewer|more|greater|larger|smaller|higher|lower|bigger|longer|shorter|older|younger"
_REFUSED = r"not\s+(?:(?:the|my|a|an)\s+)?(?:right|correct|answer|enough|possible|it|true|solution|final)\b|not\s*[.!]*\s*$"
_BEFORE = (
    # denials
    r"(?:\b(?:not|never|neither|nor|no|cannot|hardly|scarcely)\b|n't\b|≠|!=|\\neq?\b)\s*(?:(?!but\b)[\w$€£]+\s+){0,2}",
    r"(?:\b(?:not|never|nobody|cannot|doubt)\b|n't\b)(?:(?!\b(?:but|so|and|then|therefore|because|since|until|before)\b)[^.\n;:,!?0-9]){0,40}"
    r"\b(?:is|be|was|are|were|it's|that's|equals?|say|says|said)\s+",
    r"\b(?:wrong|incorrect|false|mistaken|(?<!no )(?<!without )(?<!without a )(?<!beyond )doubt|rule[sd]?\s+out)\b[^.\n0-9]{0,20}",
    r"\b(?:instead\s+of|apart\s+from|anything\s+but|except(?:\s+for)?|excluding|without|far\s+from|nowhere\s+near|short\s+of)\s+",
    r"\bif\s+(?:it|that|this)\s+(?:were|was|is)\s+",
    # bounds; `>>` closes a calculation of GSM8K, `x>` a tag
    r"(?:(?<!<)<|(?<![\w>/\"'])>|[≤≥]|\\(?:[lg]eq?|[lg]eqslant|lt|gt)\b)=?\s*",
    rf"\b(?:{_COMPARED}|other|rather)\s+than(?:\s+or\s+equal\s+to)?\s+",
    r"\bat\s+(?:least|most)\s+|\b(?:over|under|above|below|beyond|exceeds|exceeding|almost|nearly|barely|max|min)\s+",
    r"\b(?:(?:minimum|maximum|min|max|excess|upwards|north|south|factorial)\s+of|as\s+(?:many|few|much|little)\s+as|close\s+to)\s+",
    r"(?<!adds )(?<!add )(?<!added )(?<!adding )(?<!comes )(?<!come )(?<!sums )\bup\s+to\s+",
    # functions, signs and operators
    r"(?:[√∛∜±^]|\\(?:sqrt|[dt]?frac|log|ln|sin|cos|tan|binom|pm)|\b(?:sqrt|log|ln|sin|cos|tan|exp|squared))\s*[\[{(]*",
    r"(?<![A-Za-z])[A-Za-z]\(|[-−]\(",
    r"\b(?:multiplied|divided|divisible)\s+by\s+|\b(?:times|plus|modulo|mod|raised\s+to)\s+",
    # parts and multiples
    r"\b(?:half|twice|thrice|double|triple|treble|quadruple)\s+(?:of\s+)?",
    rf"(?:\b(?:{_PARTS})s?|%|[0-9])\s+(?:out\s+)?of\s+(?:the\s+)?",
    r"\b(?:reciprocal|inverse|opposite|negation|negative|multiples?|factors?|divisors?|digits?)\s+of\s+|\bout\s+of\s+",
    rf"\b(?:{_COUNTS})\s+(?:in|of)\s+",
    r"\b(?:hundred|thousand|million|billion)\s+(?:and\s+)?",
    # in Chinese, where a figure stands beside them without a blank
    r"(?:[不非没沒無无未否约約近超或至]|[大小多少高低][于於])[^\W0-9A-Za-z_]{0,8}\s*",
    # names of places in a text
    r"\b(?:step|question|problem|page|option|example|equation|exercise|lesson|chapter|section|appendix|no\.|fig(?:ure|\.))\s+|(?<!#)#",
)
_AFTER = (
    # signs, indices, ordinals; a letter that is no unit is a variable, and one before a figure a name
    r"\s*[¼-¾⅐-⅞‰]|\s*\(?\?|\^(?!\{?\\circ)|_(?=[\w{])|\+(?!\s*[0-9])|-\s*$",
    r"\s*(?:<(?![/A-Za-z])|>(?!>)|[≤≥≠≈±~]|\\(?:[lg]eq?|neq?|approx|pm)\b)",
    r"(?:st|nd|rd|th|ths)\b|(?-i:[abeijnopqruvwxyzBDEGHIOPQRSUXYZπ](?!\w))|(?![cdk]?m[23]\b)[A-Za-z]+[0-9]",
    r"\s?-?(?:ish|fold)\b",
    # functions and other units of count
    r"\s*\b(?:squared|cubed|factorial|doubled|halved|tripled|quadrupled|negated|reversed|rounded)\b",
    # multiples, ranges and denials in Chinese; before a unit 千 and 百 are parts of its name
    r"\s*[十百千万萬亿億兆半到至或](?![克米升瓦卡赫帕伏焦])|\s*[，,]?[^\W0-9A-Za-z_]{0,6}[不错錯非]",
    r"\s*\b(?:dozens?|scores?|gross|grand|lakhs?|crores?|tens|hundreds|thousands|halves|thirds|fifths|sixths|tenths|hundredths|thousandths|basis\s+points?|per\s+mille)\b",
    r"\s+(?:twice|thrice)\s*[.!]*\s*$",
    r"\s+(?-i:[kKMBnxyz]|bn|mn|tn|mio|bps)(?![\w&'-])",
    r"\s+too\s+(?:many|few|much|little)\b|\s+times\s+(?:as|more|less|larger|bigger|the|that)\b",
    r"\s+(?:degrees\s+)?below\b",
    # bounds
    r"\s+(?:or|and)\s+(?:more|less|fewer|so|above|below|over|under|up|older|younger|counting|higher|lower|greater|then)\b",
    r"\s+(?:at\s+(?:least|most)|minimum|maximum|tops|plus|to\s+the\s+power|to\s+the\s+\w+\s+power)\b",
    rf"\s+and\s+(?:an?|{_COUNTS})\s+(?:{_PARTS})s?\b|\s+to\s+(?:{_COUNTS})\b|\s+(?:minus|over|and|or)\s*\.?\s*$",
    # denials
    rf"\s+(?:[\w$€£]+\s+){{0,2}}?(?:is|are|was|were|be|seems?|looks?)\s+(?:\w+\s+){{0,2}}(?:(?:false|impossible|too)\b|{_REFUSED})",
    r"\s+is\s+(?:\w+\s+)?(?:less|more|short|off|far|close|near)\b|[^.;\n0-9]{0,60}\b(?:wrong|incorrect|mistaken)\b",
    r"\s+(?:[\w$€£]+\s+){0,2}?(?:isn't|aren't|wasn't|cannot|can't|can\s+not|won't|must\s+not)\b|\s+(?:would|could|should|will|might)(?:\s+not\b|n't\b)",
    r"\s+(?:fails?|does\s+not|doesn't|has\s+been\s+ruled\s+out)\b",
    r"\s*[,;:(–—-]*\s*(?:(?:which|that)\s+is\s+)?(?:false|no|not)\s*[.)!]*\s*$",
)
_CHANGED_BEFORE = re.compile(rf"(?:{'|'.join(_BEFORE)}){_SIGNS}$", re.IGNORECASE)
_CHANGED_AFTER = re.compile(rf"[)}}]*!|[*$)}}\]\"'_`]*(?:{'|'.join(_AFTER)})", re.IGNORECASE)
WINDOW = 80
"""Characters of the line on either side that are looked at."""


def changed(before: str, after: str) -> bool:
    """Whether the texts before and after a number make it another, or no answer at all."""
    line, rest = before.rsplit("\n", 1)[-1][-WINDOW:], after.split("\n", 1)[0][:WINDOW]
    return bool(_CHANGED_BEFORE.search(line) or _CHANGED_AFTER.match(rest))
