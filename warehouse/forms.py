"""The form that a request asks for: a JSON schema that a model can be held to, by a grammar over its tokens."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter


@cache
def form_of(shape: TypeAdapter[Any], **choices: tuple[str, ...]) -> str:
    """What a request says of the form that whoever reads its reply wants: the JSON schema of `shape`, without what is only said of it.

    A request is another one where its form is another, and not where a docstring is. An object has the properties that are named, and no
    others unless it is one of any names: a model that wanders would make up more of them. They stand in the order in which they are
    declared, for that is the order in which a grammar has them written: a question before its answer. `choices` are the texts that a
    property may be.
    """
    form = _narrowed(shape.json_schema())
    for name, texts in choices.items():
        form["properties"][name] = {"enum": list(texts), "type": "string"}
    return json.dumps(form)


def _narrowed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_narrowed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key for key in ("title", "description") if isinstance(schema.get(key), str)}
    closed = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return {**closed, **{key: _narrowed(value) for key, value in schema.items() if key not in said}}
