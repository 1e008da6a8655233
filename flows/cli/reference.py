"""Generate docs/commands.md and docs/settings.md from the code: `python -m flows.cli.reference`."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from pydantic import BaseModel

from flows.cli import app
from flows.config import FlywheelConfig

DOCS = Path(__file__).parents[2] / "docs"


def commands_page() -> str:
    root: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "Written from the code by `python -m flows.cli.reference`. Exit status 0: done; 1: the work failed; 2: wrong request.",
        "",
    ]
    for name, command in _commands("flywheel", root):
        lines += [f"## {name}", "", *_paragraphs(command.help or ""), ""]
        rows = [row for parameter in command.params if (row := _parameter(parameter)) is not None]
        if rows:
            lines += ["| option | | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def settings_page() -> str:
    """Render all profile settings with type, default and description. Settings shared by several sections are described once."""
    lines = [
        "# Settings",
        "",
        "Written from the code by `python -m flows.cli.reference`. A key is set in a profile or by `--set KEY=VALUE`.",
        "",
    ]
    listed: dict[tuple[type[BaseModel], str], str] = {}
    for prefix, model in _sections(FlywheelConfig, ""):
        rows, repeated = [], dict[str, list[str]]()
        for name in model.model_fields:
            row = _setting(model, prefix, name)
            if row is None:
                continue
            first = listed.setdefault((_definer(model, name), name), prefix)
            if first == prefix:
                rows.append(row)
            else:
                repeated.setdefault(first.rstrip("."), []).append(f"`{model.model_fields[name].alias or name}`")
        if rows or repeated:
            lines += [f"## {prefix.rstrip('.') or 'the run'}", "", _first(model.__doc__), ""]
        if rows:
            lines += ["| key | type | default | |", "| --- | --- | --- | --- |", *rows, ""]
        for first, names in repeated.items():
            lines += [f"{'Also as' if rows else 'As'} under `{first}`: {', '.join(names)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner:
        yield name, command
    for each, below in inner.items():
        yield from _commands(f"{name} {each}", below)


def _paragraphs(text: str) -> list[str]:
    """Convert a help text to Markdown, with examples as code."""
    parts = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]
    return "\n\n".join(re.sub(r"^Example: (.*)$", r"Example: `\1`", part) for part in parts).splitlines()


def _parameter(parameter: Any) -> str | None:
    if parameter.name == "help":
        return None
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default if isinstance(parameter.default, str | int | float | bool | Path) else None
    shown = "required" if parameter.required else "" if default is None else f"`{getattr(default, 'value', default)}`"
    return f"| {names} | {_cell(getattr(parameter, 'help', '') or '')} | {shown} |"


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield prefix, model
    for name, field in model.model_fields.items():
        for inner, own in _models(field.annotation):
            yield from _sections(inner, f"{prefix}{field.alias or name}{own}.")


def _definer(model: type[BaseModel], name: str) -> type[BaseModel]:
    """Return the class that last defines a field or its default."""
    return next(kind for kind in model.__mro__ if issubclass(kind, BaseModel) and name in inspect.get_annotations(kind))


def _models(kind: Any) -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind, ""
        return
    origin = get_origin(kind)
    place = ".NAME" if origin is dict else "[]" if origin in (list, tuple) else ""
    for part in get_args(kind):
        for model, own in _models(part):
            yield model, place + own


def _setting(model: type[BaseModel], prefix: str, name: str) -> str | None:
    field = model.model_fields[name]
    if any(True for _ in _models(field.annotation)):
        return None
    default = "" if field.is_required() or field.default_factory is not None else f"`{field.default!r}`"
    description = _cell(_described(model).get(name, ""))
    return f"| `{prefix}{field.alias or name}` | {_cell(_type(field.annotation))} | {_cell(default)} | {description} |"


def _type(kind: Any) -> str:
    shown = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"typing\.|pathlib\.|collections\.abc\.|annotated_types\.\w+\([^)]*\)", "", shown)


def _described(model: type[BaseModel]) -> dict[str, str]:
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not (issubclass(kind, BaseModel) and kind.__module__.partition(".")[0] in ("warehouse", "eval", "rl", "synth", "flows")):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[ast.unparse(field.target)] = str(below.value.value)
    return found


def _first(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    (DOCS / "commands.md").write_text(commands_page())
    (DOCS / "settings.md").write_text(settings_page())


if __name__ == "__main__":
    main()
