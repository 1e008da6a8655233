"""Arguments checked against a JSON schema that somebody else wrote: that of an MCP server's tool. Library: `jsonschema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.tools.errors import ToolError
from warehouse.errors import RequestError


class ArgumentsSchema:
    """The arguments of the tool called `name`."""

    def __init__(self, schema: Mapping[str, Any], name: str) -> None:
        """Raises `RequestError` where the schema is none. A reference out of it is not followed: it could lead anywhere."""
        from jsonschema import Draft202012Validator, SchemaError
        from referencing import Registry

        self._name = name
        try:
            Draft202012Validator.check_schema(dict(schema))
        except SchemaError as error:
            raise RequestError(f"the tool {name!r} has a schema of arguments that is none: {error.message}.") from error
        if schema.get("type") != "object":
            raise RequestError(f"the tool {name!r} takes arguments that are no object.")
        self._validator = Draft202012Validator(dict(schema), registry=Registry())

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise `ToolError` where the arguments do not fit."""
        from jsonschema.exceptions import best_match

        error = best_match(self._validator.iter_errors(dict(values)))
        if error is not None:
            place = ".".join(map(str, error.absolute_path))
            raise ToolError(f"wrong arguments for {self._name}: {f'{place}: ' if place else ''}{error.message}")
