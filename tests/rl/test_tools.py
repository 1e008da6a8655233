from __future__ import annotations

import asyncio

import pytest

from rl.tools import ToolError, tool


@tool
def repeat(text: str, times: int = 2) -> str:
    """Say a text again
    and again.

    Args:
        text: what to say.
        times: how often,
            at least once.

    Returns:
        The text.
    """
    return text * times


@tool
async def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


def test_the_schema_comes_from_annotations_and_docstring() -> None:
    function = repeat.schema["function"]
    assert function["name"] == "repeat"
    assert function["description"] == "Say a text again and again."
    properties = function["parameters"]["properties"]
    assert properties["text"]["type"] == "string"
    assert properties["text"]["description"] == "what to say."
    assert properties["times"]["type"] == "integer"
    assert properties["times"]["description"] == "how often, at least once."
    assert function["parameters"]["required"] == ["text"]


def test_arguments_are_an_object_its_json_or_the_only_text() -> None:
    assert asyncio.run(repeat({"text": "a"})) == "aa"
    assert asyncio.run(repeat('{"text": "a", "times": 3}')) == "aaa"
    assert asyncio.run(shout("quiet")) == "QUIET"


@pytest.mark.parametrize("arguments", ["no json", '{"times": 2}', '{"text": "a", "times": "many"}', "[1]"])
def test_wrong_arguments_are_the_callers_error(arguments: str) -> None:
    with pytest.raises(ToolError, match="repeat"):
        asyncio.run(repeat(arguments))
