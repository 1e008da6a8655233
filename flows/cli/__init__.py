"""The `flywheel` command line. Exit status 0: done; 1: the work failed; 2: invalid request; 130: interrupted.

Each command family is a module. Commands import heavy modules lazily to keep `--help` fast. An invalid request prints one sentence on
standard error. With `--json`, standard output is a single JSON document.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import typer
from typer.core import TyperGroup

from flows.cli import control, data, evaluation, inspection, lake, planning, serving, stages
from flows.runtime import import_safely, quiet_libraries
from flows.status_line import StatusLine
from rl.terminal import in_line, say, visible
from warehouse.account import ensure_home
from warehouse.errors import RequestError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""
LONGEST = 1600
"""Maximum length of an error message in characters."""
_CLOSED = ("read-only", "readonly", "permission denied", "not a directory", "unable to open database file", "cannot open file")
"""Fragments of DuckDB and SQLite errors about missing write access."""
_DAMAGED = ("parquet", "database disk image is malformed", "file is not a database", "catalog.sqlite", "don't know what type", "tprotocol")
"""Fragments of DuckDB and SQLite errors about damaged lake files."""
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""Typer's usage error; its module differs between versions."""


class Commands(TyperGroup):
    """Command group that raises usage errors as a one-sentence RequestError instead of printing a usage page."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        with _in_one_sentence():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        with _in_one_sentence():
            return super().invoke(ctx)


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    try:
        yield
    except _USAGE_ERROR as error:
        message = error.format_message()
        if error.ctx is None or "\n\n" in message:  # help page of a group called without a command
            raise
        sentence = " ".join(message.removesuffix(".").replace("Value error, ", "").split())
        raise RequestError(f"{sentence}; see `{error.ctx.command_path} --help`.") from error


COMMANDS: dict[str, Callable[..., None]] = {
    "run": stages.run,
    "init": stages.init,
    "new": planning.new,
    "plan": planning.plan,
    "synth": stages.synth,
    "train": stages.train,
    "rollout": stages.rollout,
    "eval": evaluation.evaluate,
    "chat": serving.chat,
    "pause": control.pause,
    "resume": control.resume,
    "limit": control.limit,
    "serve": control.serve,
    "deploy": control.deploy,
    "sql": inspection.sql,
    "show": inspection.show,
    "graph": inspection.graph,
    "traces": inspection.traces,
    "report": inspection.report,
    "top": inspection.top,
    "doctor": inspection.doctor,
    "model": data.model,
    "import": data.import_,
    "extract": data.extract,
    "verify": evaluation.verify,
    "validate": evaluation.validate,
    "reverify": evaluation.reverify,
    "export": data.export,
    "decontaminate": data.decontaminate,
}

app = typer.Typer(
    cls=Commands,
    help="A data flywheel and curriculum pipeline for tool-using language-model agents.\n\n"
    "Example: flywheel run --profile quickstart --home runs/demo --turns 2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(serving.policy_app, name="policy")
app.add_typer(data.data_app, name="data")
app.add_typer(lake.lake_app, name="lake")


def main() -> None:
    run_app(app)


def run_app(app: Callable[[], Any]) -> None:
    """Run a command line with logs on standard error; an expected error prints one sentence and sets the exit status."""
    quiet_libraries()
    import_safely()
    # A failed flow raises, and the error is printed once, below.
    for level in ("PREFECT_LOGGING_LEVEL", "PREFECT_LOGGING_INTERNAL_LEVEL"):
        os.environ.setdefault(level, "CRITICAL")
    handler = StatusLine(sys.stderr) if sys.stderr.isatty() else logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    flywheel = logging.getLogger("flywheel")
    flywheel.addHandler(handler)
    flywheel.setLevel(logging.INFO)
    flywheel.propagate = False
    sys.excepthook = show_defect
    try:
        ensure_home()
        _check_arguments(sys.argv[1:])
        _check_folder()
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            say_interrupted()
        raise
    except KeyboardInterrupt:  # outside a command
        say_interrupted()
        sys.exit(INTERRUPTED)
    except Exception as error:
        sys.exit(exit_status(error))


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raise RequestError for an argument that is not UTF-8, which neither the lake nor a terminal can hold."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode(errors="replace").decode()
            raise RequestError(f"the argument {shown!r:.200} contains bytes that are not UTF-8: rename the file, or retype it.") from error


def _check_folder() -> None:
    """Raise RequestError if the current folder no longer exists: Python and DuckDB then find no file."""
    try:
        Path.cwd()
    except OSError as error:
        raise RequestError(f"the current folder was deleted or is not accessible ({error.strerror}): change to another.") from error


class PlainFormatter(logging.Formatter):
    """Log formatter that escapes terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def exit_status(error: Exception) -> int:
    """Print an error that the user can act on as one sentence and return its exit status. Re-raise any other error."""
    found = _message_of(error)
    if found is None:
        raise error
    _say(found[0])
    return found[1]


def show_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a bug with control characters escaped; used as `sys.excepthook`."""
    say("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"), sys.stderr)


def say_interrupted() -> None:
    """Report Ctrl-C and silence library logs during shutdown."""
    logging.disable()
    _say("interrupted; run the same command to resume")


def _say(sentence: str) -> None:
    say(in_line(f"flywheel: {sentence}"), sys.stderr)


def _message_of(error: Exception) -> tuple[str, int] | None:
    import duckdb  # slow to import

    from warehouse.drafts import is_full
    from warehouse.errors import WorkFailed

    if isinstance(error, RequestError | WorkFailed):
        return _short(str(error)), 2 if isinstance(error, RequestError) else 1
    if is_full(error):
        return f"the disk is full ({_first_line(error)}); stored data is intact: free some space and run the same command again.", 1
    if isinstance(error, OSError) and error.filename is not None:
        place = str(error.filename).removesuffix(".part")
        return f"{place} cannot be read or written ({error.strerror}): correct this path, or choose another.", 2
    if isinstance(error, duckdb.Error) and any(sign in str(error).lower() for sign in _CLOSED):
        return f"the lake or the output file is not writable ({_first_line(error)}): choose another path.", 2
    if isinstance(error, duckdb.Error) and any(sign in str(error).lower() for sign in _DAMAGED):
        why = _first_line(error)
        return f"a file of the lake is damaged ({why}): `flywheel lake check` names it; restore it, or choose another --home.", 2
    return None


def _short(sentence: str) -> str:
    """Shorten a message in the middle: the subject stands at its start, the remedy at its end."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 400]} … {sentence[-400:]}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removesuffix(".")[:300]
