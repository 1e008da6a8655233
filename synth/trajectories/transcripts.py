"""The pieces of a trajectory as text, in the dialect of tags that policies from scratch learn.

The text inside a tag begins with one space and ends without one. Text from documents and questions cannot become a tag: what
looks like one in it is taken apart by a space.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"<(?=/?(?:question|think|search|information|answer|code)>|\|(?:pad|end)\|>)")
_ANY_TAG = re.compile(r"</?(?:question|think|search|information|answer|code)>|<\|(?:pad|end)\|>")


def tagged(tag: str, text: str) -> str:
    """`text` between the tags `tag`."""
    return f"<{tag}> {disarm(text)}</{tag}>"


def disarm(text: str) -> str:
    """`text` without surrounding blanks and with no control token in it."""
    return _TAG.sub("< ", text.strip())


def untagged(text: str) -> str:
    """`text` without the tags of the dialect and without the blanks around it."""
    return _ANY_TAG.sub("", text).strip()


def prompt(question: str) -> str:
    """How a trajectory begins."""
    return tagged("question", question)


def action(tool: str, argument: str, think: str = "") -> str:
    """One action of the policy: what it thinks, if anything, then one call."""
    return (tagged("think", think) if think else "") + tagged(tool, argument)


def observation(text: str) -> str:
    """What a tool answered."""
    return tagged("information", text)
