"""Arguments of tools: JSON schemas from a function's annotations and Google docstring, and validation of calls.

A function that cannot be called with named JSON arguments is rejected when it becomes a tool, not when a policy first calls it. Schemas
from other sources, such as MCP tools, are validated with `jsonschema`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from inspect import Parameter
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from rl.tools.tool import Rewarded, ToolError, as_rewarded
from warehouse.errors import RequestError
from warehouse.settings import first_error

_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?):\s*$")
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_TAKES = "takes an argument that JSON cannot represent"
_UNNAMED = {
    Parameter.VAR_POSITIONAL: "takes any number of arguments (*)",
    Parameter.VAR_KEYWORD: "takes arguments of any name (**)",
    Parameter.POSITIONAL_ONLY: "takes a positional-only argument",
}


def read_signature(function: Callable[..., Any], name: str) -> Signature:
    """Cached signature of a function as the tool `name`; of a method, without `self`.

    Raises:
        RequestError: a policy could not call it.
    """
    plain = getattr(function, "__func__", function)
    return _read(plain, name, int(plain is not function))


@lru_cache(maxsize=1024)
def _read(function: Callable[..., Any], name: str, skip: int) -> Signature:
    return Signature(function, name, skip)


class Signature:
    """Arguments of the tool `name`: `parameters` is their JSON schema, `description` the docstring up to its first section."""

    def __init__(self, function: Callable[..., Any], name: str, skip: int = 0) -> None:
        """Read a function, ignoring the first `skip` parameters, such as `self`."""
        self._name = name
        hints = _hints(function, name)
        self.description, described = _read_docstring(function)
        with _supported(f"the tool {name!r} {_TAKES}"):
            self._arguments = _arguments_model(function, name, hints, described, skip)
        with _supported(f"the tool {name!r} returns neither text nor JSON nor content parts"):
            self._returns: TypeAdapter[Any] = TypeAdapter(hints.get("return", Any))
        self._rewarded = hints.get("return") == Rewarded
        with _supported(f"the tool {name!r} {_TAKES}"):
            self.parameters = self._arguments.model_json_schema()

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert arguments for the function. Raises ToolError if they do not fit."""
        try:
            checked = self._arguments.model_validate(dict(values))
        except ValidationError as error:
            raise ToolError(f"wrong arguments for {self._name}: {first_error(error)}") from error
        return {str(one.alias): getattr(checked, field) for field, one in type(checked).model_fields.items()}

    def check_result(self, value: Any) -> Any:
        """Return the result, a tuple of `Rewarded` as a ToolResult. Raises TypeError if it does not have the annotated type."""
        try:
            self._returns.validate_python(value)
        except ValidationError as error:
            raise TypeError(f"it returned a {type(value).__name__}, which does not match its annotation: {first_error(error)}") from error
        return as_rewarded(value) if self._rewarded else value


def _arguments_model(
    function: Callable[..., Any], name: str, hints: Mapping[str, Any], described: Mapping[str, str], skip: int
) -> type[BaseModel]:
    """A model with a field per parameter, aliased to its name, because not every parameter name is a valid field name."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RequestError(f"the tool {name!r} is a generator: return the whole result at once.")
    fields: dict[str, Any] = {}
    for place, parameter in enumerate(list(inspect.signature(function).parameters.values())[skip:]):
        if parameter.kind in _UNNAMED:
            raise RequestError(f"the tool {name!r} {_UNNAMED[parameter.kind]}: a policy passes every argument by name, so name them all.")
        if parameter.name not in hints:
            raise RequestError(f"the tool {name!r} has no type annotation for {parameter.name!r}: add one.")
        default = ... if parameter.default is Parameter.empty else parameter.default
        described_as = Field(default, alias=parameter.name, description=described.get(parameter.name))
        fields[f"argument_{place}"] = (hints[parameter.name], described_as)
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


@contextmanager
def _supported(otherwise: str) -> Iterator[None]:
    try:
        yield
    except PydanticUserError as error:
        raise RequestError(f"{otherwise}: {str(error).splitlines()[0].partition('. ')[0].rstrip('.')}.") from error


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise RequestError(f"the annotations of the tool {name!r} cannot be read: {error}.") from error


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    description: list[str] = []
    arguments: dict[str, str] = {}
    section = name = None
    for line in (inspect.getdoc(function) or "").splitlines():
        text = line.strip()
        header, argument = _SECTION.match(text), _ARGUMENT.match(text)
        if header:
            section = header[1]
        elif section is None:
            description.append(text)
        elif section in ("Args", "Arguments") and argument:
            name = argument[1]
            arguments[name] = argument[2]
        elif section in ("Args", "Arguments") and name and text:
            arguments[name] += f" {text}"
    return " ".join(filter(None, description)), arguments


class ArgumentsSchema:
    """JSON schema of the arguments of the tool `name`."""

    def __init__(self, schema: Mapping[str, Any], name: str) -> None:
        """Raises RequestError for an invalid schema. External references are not followed."""
        from jsonschema import Draft202012Validator, SchemaError
        from referencing import Registry

        self._name = name
        try:
            Draft202012Validator.check_schema(dict(schema))
        except SchemaError as error:
            raise RequestError(f"the tool {name!r} has an invalid argument schema: {error.message}.") from error
        if schema.get("type") != "object":
            raise RequestError(f"the tool {name!r} must take an object as its arguments.")
        self._validator = Draft202012Validator(dict(schema), registry=Registry())

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise ToolError if the arguments do not fit."""
        from jsonschema.exceptions import best_match

        error = best_match(self._validator.iter_errors(dict(values)))
        if error is not None:
            place = ".".join(map(str, error.absolute_path))
            raise ToolError(f"wrong arguments for {self._name}: {f'{place}: ' if place else ''}{error.message}")
