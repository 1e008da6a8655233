r"""Text and replies as verifiers read them: Unicode normalization, and extraction of the answer from a reply.

`plain` applies NFKC to letters and digits and drops invisible format characters; superscripts, subscripts and fractions stay, because 10²
is not 102. `fold` also unifies punctuation and initials, for verifiers that compare words. `lower` applies Unicode case folding.

`final_answer` extracts the answer from a reply, in this order:

  1. Reasoning is removed (`warehouse.replies`); a reply that is only reasoning has no answer.
  2. `<answer>…</answer>` gives its content; different contents, or words after the tag, give no answer.
  3. A reply that is a single fenced block gives the block's text.
  4. `\boxed{…}` gives the content of the last box; different boxes on one line give no answer.
  5. A label gives the rest of its line, or the next line if nothing follows: `Answer: x`, `**Final answer:** x`, `### Answer`,
     `The answer is: x`, `The final answer is x`, `#### x`. The last label counts.
  6. Surrounding emphasis, quotes and code marks are removed.

Mathematics also looks for expressions in prose (`eval.graders.mathematics`); programs have their own rule (`eval.graders.code`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from warehouse.replies import only_fence, split_reasoning

_SPELLINGS = {
    "'": "‘’‚‛ʼ′´＇",
    '"': "“”„‟«»″＂「」『』《》〈〉﹁﹂﹃﹄",
    "-": "‐‑‒–—―−－",
    ".": "。．｡",
    ",": "，、،",
    "!": "！",
    "?": "？؟",
    ":": "：",
    ";": "；؛",
    "(": "（",
    ")": "）",
    "[": "【〔〖［",
    "]": "】〕〗］",
    "%": "％٪",
    "·": "・･•‧∙",
    "...": "…",
}
_WRAPPED = re.compile(r"\*\*(.+)\*\*|`(.+)`|\"(.+)\"", re.DOTALL)
_FOLDED = str.maketrans({sign: spelling for spelling, signs in _SPELLINGS.items() for sign in signs})
_KEPT = ("<super>", "<sub>", "<fraction>", "<circle>")
"""Decompositions that would change a number."""
_SIGNS = frozenset("ℝℕℤℚℂ…")
"""Characters with a mathematical meaning."""
_INITIAL = re.compile(r"(?<![^\W\d_])([^\W\d_])\.\s+(?=[^\W\d_]\.)")
_UNSPACED = re.compile(r"(?<!\d)(?<=[\u0590-\u1fff\u2e80-\uffdc])(?=[0-9])")
"""A digit right after a letter of a script without spaces before numbers, such as Chinese, Thai or Hebrew."""


def plain(text: str) -> str:
    """Apply NFKC to letters and digits and drop format characters. Idempotent."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", "".join(map(_spelt, text)))


def fold(text: str) -> str:
    """Apply `plain`, and use ASCII punctuation and no spaces between initials. Idempotent."""
    return _INITIAL.sub(r"\1.", plain(text).translate(_FOLDED))


def lower(text: str) -> str:
    """Apply Unicode's full case folding, with Turkish dotted and dotless i as i."""
    return text.casefold().replace("i\u0307", "i").replace("ı", "i")


def spaced(text: str) -> str:
    """Insert a space before digits that follow a letter of a script without spaces."""
    return _UNSPACED.sub(" ", text)


def unwrapped(text: str) -> str:
    """Strip surrounding blanks, emphasis or quotes."""
    found = _WRAPPED.fullmatch(text.strip())
    return next(filter(None, found.groups())).strip() if found else text.strip()


def _spelt(sign: str) -> str:
    if unicodedata.category(sign) == "Cf" or "\ufe00" <= sign <= "\ufe0f":
        return ""
    kept = sign in _SIGNS or unicodedata.decomposition(sign).startswith(_KEPT)
    return sign if kept else unicodedata.normalize("NFKC", sign)


LONGEST_BOX = 1_000
"""Maximum characters of a box's content."""

_TAG = re.compile(r"</?answer>", re.IGNORECASE)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_TAG_PLACE = re.compile(r"(?:^|\n|[.!?:。！？])\s*\Z")
"""What an answer tag may follow, so that "London <answer>Paris</answer>" gives no answer."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BOLD = re.compile(r"(?<![0-9A-Za-z)\]}*])\*\*(?=[^\s*])([^*\n]*[^\s*])\*\*(?![*0-9])|(?<!\w)__(?=[^\s_])([^\n]*?[^\s_])__(?!\w)")
_NOUN = r"(?:answers?|antwort|respuesta|réponse|risposta|resposta|ответ|答案|最终答案|答え|정답)"
LABEL = re.compile(
    rf"(?i:(?<!wrong )(?<!incorrect )(?<!false )(?<!\w)(?:the\s+|my\s+)?(?:(?:final|correct|short|exact)\s+)*{_NOUN}"
    r"(?:\s+to\s+(?:the|this|your)\s+(?:question|problem))?\s*(?:(?:\bis\b|\bare\b|为|是|は|는)\s*[:：]?|[:：=](?!=))(?:[*_]{1,3}(?=\s|$))?)|####"
)
"""Announces an answer: `Answer:`, `The final answer is`, and GSM8K's mark."""
_HEADING = re.compile(rf"(?im)^\s*#{{1,6}}\s*(?:the\s+)?(?:final\s+|short\s+)?{_NOUN}\s*$|^\s*(?:the\s+)?(?:final\s+)?{_NOUN}\s*$(?=\n)")
"""A label on a line of its own."""
_IN_A_SENTENCE = re.compile(r"(?i)\A(?!.*\b(?:final|correct)\b).*(?:\b(?:is|are)|[是为は는])\s*\Z", re.DOTALL)
"""A label without a colon, such as "The answer is"; it counts only in mathematics."""
_LEADING = re.compile(r"(?i:[\s#>*_\-–•]*(?:(?:so|thus|therefore|hence|and|finally|in\s+conclusion|in\s+short)\b[\s,:]*)*)")
"""What may precede a label in its sentence, so that "I doubt the answer is 5" gives none."""
_SENTENCE_END = re.compile(r"[.!?:。！？]\s+|\n")
_HOPE = re.compile(r"\.?\s*I hope (?:it|this) (?:is correct|helps)\.?\s*$", re.IGNORECASE)


def final_answer(reply: str) -> str | None:
    """Extract the answer from a reply by the rule above; None without one."""
    text = without_wrapping(reply)
    if text is None:
        return None
    held = boxes(text)
    if held:
        last = held[-1]
        line = {text[start:end].strip() for start, end in held if "\n" not in text[start : last[0]]}
        return (unwrapped(text[last[0] : last[1]]) or None) if len(line) == 1 else None
    labelled = after_label(text, strict=True)
    found = unwrapped(text if labelled is None else labelled)
    return (unwrapped(found.removesuffix(".")) if labelled is not None else found) or None


def without_wrapping(reply: str) -> str | None:
    """Remove reasoning, answer tags, emphasis and a surrounding fence; None if nothing is left or tags contradict."""
    thought, text = split_reasoning(reply)
    text = without_emphasis(text)
    if several_answers(text) or len(_TAG.findall(thought)) % 2:
        return None
    tagged = _TAGGED.search(text)
    if tagged and _TAG_PLACE.search(text[: tagged.start()]):
        text = tagged[1]
    fenced = only_fence(text)
    return (text if fenced is None else fenced.body).strip() or None


def without_emphasis(text: str) -> str:
    """Remove bold marks; powers such as `2**3` stay."""
    return _BOLD.sub(lambda found: found[1] or found[2], text)


def after_label(text: str, strict: bool = False) -> str | None:
    """Return what the last label announces, or None without a label.

    Args:
        strict: Accept only labels that begin a sentence, and no "The answer is" without a colon.
    """
    for label in reversed(list(_labels(text, strict))):
        rest = text[label.end() :]
        line, _, more = rest.partition("\n")
        if announced := (line.strip(" \t*_") and line.strip()) or _first_block(more):
            return _HOPE.sub("", announced)
    return None


def several_answers(text: str) -> bool:
    """Return whether answer tags hold different contents, are repeated out of pairs, or are followed by letters or digits."""
    tags, pieces = [tag.lower() for tag in _TAG.findall(text)], _TAG.split(text)
    if tags != ["<answer>", "</answer>"] * (len(tags) // 2):
        return len(tags) > 1 or (tags == ["</answer>"] and any(map(str.isalnum, pieces[1])))
    return len({held.strip() for held in pieces[1::2]}) > 1 or any(map(str.isalnum, "".join(pieces[2::2])))


def boxes(text: str) -> list[tuple[int, int]]:
    r"""Start and end of the content of each closed `\boxed`."""
    found = []
    for start in _BOX.finditer(text):
        depth, end = 1, start.end()
        while depth and end < len(text) and end - start.end() <= LONGEST_BOX:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if not depth:
            found.append((start.end(), end - 1))
    return found


def opens_box(text: str) -> bool:
    """Return whether a text begins a box, closed or not."""
    return bool(_BOX.search(text))


def _labels(text: str, strict: bool) -> Iterator[re.Match[str]]:
    found = [*LABEL.finditer(text), *_HEADING.finditer(text)]
    for label in sorted(found, key=lambda match: match.end()):
        before = text[: label.start()]
        start = max((end.end() for end in _SENTENCE_END.finditer(before[-200:])), default=0)
        if not strict or (_LEADING.fullmatch(before[-200:][start:]) and not _IN_A_SENTENCE.match(label[0])):
            yield label


def _first_block(text: str) -> str:
    text = text.strip()
    for opening, closing in (("$$", "$$"), (r"\[", r"\]")):
        if text.startswith(opening) and (end := text.find(closing, len(opening))) > 0:
            return text[: end + len(closing)]
    return text.partition("\n")[0].strip()
