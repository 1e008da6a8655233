"""The group of commands: what Typer would tell in a page of usage is told in one sentence, as every other wrong request is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from warehouse.errors import RequestError

_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""What is raised for arguments that cannot be read; newer versions of Typer have it in a module of their own."""


class Commands(TyperGroup):
    """Commands whose wrong arguments are a RequestError that says where their help is."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """The context of a command line."""
        with _in_one_sentence():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with _in_one_sentence():
            return super().invoke(ctx)


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    try:
        yield
    except _USAGE_ERROR as error:
        message = error.format_message()
        if error.ctx is None or "\n\n" in message:  # the page of help, for a group that was asked for nothing
            raise
        told = " ".join(message.removesuffix(".").replace("Value error, ", "").split())
        raise RequestError(f"{told}; `{error.ctx.command_path} --help` tells what there is.") from error
