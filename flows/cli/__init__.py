"""`flywheel`: the command line. Exit status 0: done; 1: the work failed; 2: the request was wrong; 130: interrupted.

Each family of commands is a module. Heavy imports stay inside the commands: `--help` must answer at once. A wrong request is one
sentence on standard error. With `--json`, standard output is one JSON document and nothing else.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from flows.cli import control, data, evaluation, graphs, inspection, lake, planning, public_data, schedules, stages, starter, verification
from flows.cli.faults import INTERRUPTED, exit_status, say_interrupted, show_defect
from flows.cli.sentences import Commands
from flows.runtime import import_safely, quiet_libraries
from flows.status_line import StatusLine
from rl.terminal import visible
from warehouse.account import ensure_home
from warehouse.errors import RequestError

COMMANDS: dict[str, Callable[..., None]] = {
    "run": stages.run,
    "init": stages.init,
    "new": starter.new,
    "plan": planning.plan,
    "synth": stages.synth,
    "train": stages.train,
    "rollout": stages.rollout,
    "eval": evaluation.evaluate,
    "pause": control.pause,
    "resume": control.resume,
    "limit": control.limit,
    "serve": schedules.serve,
    "deploy": schedules.deploy,
    "sql": inspection.sql,
    "show": inspection.show,
    "graph": graphs.graph,
    "traces": inspection.traces,
    "report": inspection.report,
    "top": inspection.top,
    "doctor": inspection.doctor,
    "model": data.model,
    "import": data.import_,
    "extract": data.extract,
    "verify": verification.verify,
    "validate": verification.validate,
    "reverify": verification.reverify,
    "export": data.export,
    "decontaminate": data.decontaminate,
}
"""Every command, in the order in which `--help` lists them."""

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
app.add_typer(public_data.data_app, name="data")
app.add_typer(lake.lake_app, name="lake")


def main() -> None:
    """Run the command line and leave with its exit status."""
    run_app(app)


def run_app(app: Callable[[], Any]) -> None:
    """Run a command line with our log on standard error; an error of ours ends it with one sentence and its exit status."""
    quiet_libraries()
    import_safely()
    # A flow that fails raises, and the error is printed once, below.
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
    except KeyboardInterrupt:  # outside of the command itself
        say_interrupted()
        sys.exit(INTERRUPTED)
    except Exception as error:
        sys.exit(exit_status(error))


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raises RequestError for an argument whose bytes are not UTF-8: neither the lake nor a terminal could hold it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode(errors="replace").decode()
            raise RequestError(f"the argument {shown!r:.200} holds bytes that are not UTF-8: rename the file, or retype it.") from error


def _check_folder() -> None:
    """Raises RequestError where the current folder is gone, in which neither Python nor DuckDB finds any file."""
    try:
        Path.cwd()
    except OSError as error:
        raise RequestError(f"the current folder is gone or closed to you ({error.strerror}): change to another.") from error


class PlainFormatter(logging.Formatter):
    """A log whose lines hold nothing that a terminal would obey, whatever foreign text they quote."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        return visible(super().format(record))
