"""What may go wrong with a call: two ways that the policy is told of, and one that ends the trajectory."""

from __future__ import annotations

from rl.images import ImageFault

MAX_REASON = 500
"""Characters of a reason that are kept: a tool may raise an error as long as its result."""


class ToolError(Exception):
    """The call was wrong; the text says how, to the policy."""


class ToolMiss(Exception):
    """The call was right and there is nothing to give; the text says so, to the policy."""


class ToolFault(Exception):
    """The tool failed, took too long or broke its word; the text names it. It says nothing about the policy."""


class ToolTimeout(ToolFault, TimeoutError):
    """The tool took too long."""


class ToolImageFault(ToolFault, ImageFault):
    """The tool gave an image that cannot be decoded, or one of too many pixels."""


def one_line(error: BaseException) -> str:
    """The first line of what an error says, with its kind; of a group, as tasks that fail together raise one, of its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}"[:MAX_REASON] if text else type(error).__name__
