"""Decision records as training text.

`thought` keeps the text in the dialect of tags: the list stands inside the policy's thought. `listing` is the paper's form, a line
an option and the choice in words, for policies whose actions stand in no tags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from synth.has.decisions import Decision, DecisionRecord
from synth.trajectories.transcripts import disarm, observation, prompt, tagged

Rendering = Literal["thought", "listing"]

CUT = " ..."
"""What stands at the end of a response that was cut off."""


def render_thought(record: DecisionRecord, max_response_characters: int | None = None) -> str:
    """The record in our dialect."""
    parts = [prompt(record.question)]
    for step in record.steps:
        listed = " ".join(f"{number}. {option.text}" for number, option in enumerate(step.options, start=1))
        parts.append(tagged("think", f"options: {listed} I will choose option {step.chosen + 1}") + call_of(step))
        response = shortened(step.response, max_response_characters)
        parts.append(observation(response) if response else "")
    return "".join(parts) + f" {_verdict(record)}" * (record.correct is not None)


def render_listing(record: DecisionRecord, max_response_characters: int | None = None) -> str:
    """The record in lines: `Option 1: …`, `I will choose option 1`, the response, `My decision is Correct`."""
    lines = [f"Question: {disarm(record.question)}"]
    for step in record.steps:
        lines += [f"Option {number}: {disarm(option.text)}" for number, option in enumerate(step.options, start=1)]
        lines.append(f"I will choose option {step.chosen + 1}")
        response = shortened(step.response, max_response_characters)
        lines += [f"Response: {disarm(response)}"] if response else []
    return "\n".join([*lines, *([] if record.correct is None else [_verdict(record)])])


def call_of(decision: Decision) -> str:
    """The calls that were made, in tags; none where it was no call."""
    return "".join(tagged(tool, argument) for tool, argument in decision.taken.calls)


def shortened(response: str, max_characters: int | None) -> str:
    """`response` cut off to `max_characters`, with a mark."""
    if max_characters is None or len(response) <= max_characters:
        return response
    return response[: max(0, max_characters - len(CUT))] + CUT


def _verdict(record: DecisionRecord) -> str:
    return f"My decision is {'Correct' if record.correct else 'Incorrect'}"


RENDERINGS: dict[Rendering, Callable[[DecisionRecord, int | None], str]] = {"thought": render_thought, "listing": render_listing}
"""Every rendering by its name."""
