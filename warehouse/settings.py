"""Base class of settings (strict Pydantic models), and validation errors as one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from warehouse.errors import RequestError


class Section(BaseModel):
    """A configuration section: immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for each in get_args(kind):
        yield from models_in(each)


def read_toml(path: Path, what: str = "") -> dict[str, Any]:
    """Parse a UTF-8 TOML file, with or without a byte order mark; `what` names it in errors.

    Raises:
        RequestError: the file cannot be read or is not TOML.
    """
    named = f"{what} {path}".strip()
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise RequestError(f"{named} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{named} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError(f"{named} is not TOML: {error}.") from error


Read = TypeVar("Read", bound=Section)


def read_options(model: type[Read], values: Mapping[str, Any], what: str | None = None) -> Read:
    """Validate free-form options of an environment or tool; `what` names them in errors.

    Raises:
        RequestError: an option is unknown or invalid.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise RequestError(f"{what or model.__name__}: the option {name!r} is invalid: {_why(first)}.") from error


def first_error(error: ValidationError, whole: str = "") -> str:
    """First error as `key: reason`; `whole` is the key for errors of the whole value."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {_why(first)}".removeprefix(": ")


_MUST = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "a string",
    "path": "a path",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "model": "a table",
}
"""Required type of a value, by the prefix of Pydantic's error type."""


def fault_of(error: ValidationError, whole: str = "") -> str:
    """First error of a setting in TOML's terms; `whole` as in `first_error`."""
    first = error.errors(include_url=False)[0]
    key, kind, value = ".".join(map(str, first["loc"])) or whole, first["type"], first["input"]
    shown = f", not {value!r:.80}" if isinstance(value, str | int | float) else ""
    if kind == "extra_forbidden":
        return f"unknown key {key}"
    if kind == "missing":
        return f"{key} is missing"
    if kind == "value_error":
        return f"{'.'.join(map(str, first['loc']))}: {_why(first)}".removeprefix(": ")
    if kind == "too_short":
        return f"{key} must have at least {first['ctx']['min_length']} items, but has {first['ctx']['actual_length']}"
    wanted = _MUST.get(kind.partition("_")[0]) if kind.endswith(("_type", "_parsing", "_from_float")) else None
    return f"{key} {f'must be {wanted}' if wanted else _why(first).replace('Input should', 'must', 1)}{shown}"


def _why(first: Mapping[str, Any]) -> str:
    return str(first["msg"]).removeprefix("Value error, ")
