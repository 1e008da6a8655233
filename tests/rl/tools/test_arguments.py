from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from rl.tools import ToolError, tool
from rl.tools.arguments import read_signature
from tests.rl.tools.examples import repeat
from warehouse.errors import RequestError


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
    assert function["parameters"]["additionalProperties"] is False


def odd_names(json: str, schema: int, model_config: Annotated[int, Field(ge=1)], _of: Literal["a", "b"] = "a") -> list[str]:
    return [json, str(schema), str(model_config), _of]


def test_arguments_may_be_called_as_pydantic_calls_its_own() -> None:
    signature = read_signature(odd_names, "odd_names")
    assert set(signature.parameters["properties"]) == {"json", "schema", "model_config", "_of"}
    assert odd_names(**signature.check({"json": "x", "schema": "3", "model_config": 1})) == ["x", "3", "1", "a"]
    with pytest.raises(ToolError, match="model_config: Input should be greater than or equal to 1"):
        signature.check({"json": "x", "schema": 3, "model_config": 0})


def no_annotation(text) -> str:  # type: ignore[no-untyped-def]
    return text


def any_number(*texts: str) -> str:
    return "".join(texts)


class Opaque:
    """Nothing that JSON knows."""


def of_a_class(opaque: Opaque) -> str:
    return str(opaque)


def gives_a_class(text: str) -> Opaque:
    return Opaque()


def yields(text: str) -> Iterator[str]:
    yield text


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_annotation, "has no type annotation for 'text': add one"),
        (any_number, "takes any number of arguments"),
        (of_a_class, "takes an argument that JSON cannot hold: .*Opaque"),
        (gives_a_class, "returns what is neither text nor JSON nor content parts"),
        (yields, "yields: a tool returns its result whole"),
        (lambda text: text, "is called '<lambda>': a name is a letter"),
    ],
)
def test_a_signature_that_a_policy_could_not_call_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        tool(function)
    assert "\n" not in str(refused.value)
