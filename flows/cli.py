"""`flywheel`: the command line. Exit status 0: done; 1: the work failed; 2: the request was wrong.

A wrong request is told in one sentence on standard error. With `--json`, standard output is one JSON document and nothing else.
"""

from __future__ import annotations

import logging
import os
import sys

import typer

from flows.commands import data, drill, evaluating, imports, judging, lake, looking, schedules, stages, wheel
from flows.environment import quiet_libraries

app = typer.Typer(
    help="A data flywheel and curriculum pipeline for tool-using language-model agents.\n\n"
    "Example: flywheel run --profile quickstart --home runs/demo --turns 2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for family in (wheel, stages, evaluating, schedules, looking, imports, judging, data, lake, drill):
    family.register(app)


def main() -> None:
    """Run the command line and leave with its exit status."""
    quiet_libraries()
    # A flow that fails raises, and that is told once, below.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(message)s", "%H:%M:%S"))
    flywheel = logging.getLogger("flywheel")
    flywheel.addHandler(handler)
    flywheel.setLevel(logging.INFO)
    flywheel.propagate = False
    try:
        app()
    except Exception as error:
        sys.exit(_told(error))


def _told(error: Exception) -> int:
    """The exit status of an error that is told in one sentence; every other is raised again."""
    from warehouse.errors import RequestError, WorkFailed  # and with it DuckDB and Pydantic, which --help does not need

    if not isinstance(error, RequestError | WorkFailed):
        raise error
    print(f"flywheel: {error}", file=sys.stderr)
    return 2 if isinstance(error, RequestError) else 1


if __name__ == "__main__":
    main()
