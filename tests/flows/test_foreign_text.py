"""What others wrote is shown and never obeyed: control characters, titles, cursor moves and turned lines, wherever a command prints."""

from __future__ import annotations

import ast
import logging
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from eval.suites.validation import Tally, Trait, TraitState, Validation
from flows.cli import PlainFormatter, exit_status, show_defect
from flows.cli.evaluation import _print_validation
from flows.cli.output import print_schema
from flows.operations.events import figure_rows
from flows.screen import Screen
from flows.suites.contamination import ContaminationReport, Overlap, OverlapKind, print_contamination
from flows.suites.results import print_traits
from rl.terminal import in_line, say, visible
from warehouse.errors import RequestError
from warehouse.lake import CatalogEntry

ROOT = Path(__file__).parents[2]
HOSTILE = "a\x1b]0;title\x07\x1b[2J\r\x08\x9b31m\u202eb\u2066\u200b\u00ad\U000e0041c"
UNSEEN = set(HOSTILE) - set("a]0;title[2J31mbc")
PRINTS = {
    "rl/terminal.py": 1,  # `say` itself
    "rl/envs/code.py": 1,  # in the program that a policy wrote
    "eval/sandbox/sandbox.py": 1,
    "flows/cli/options.py": 1,  # JSON, exact
    "flows/cli/output.py": 1,
    "flows/serving.py": 1,  # a chat's text as it is sampled, through `visible`
}
"""Modules that print, and how often; what `say` and `Screen` print is seen to by them."""


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, which holds nothing that a terminal would obey, and something of what was foreign."""
    both = capsys.readouterr()
    text = both.out + both.err
    assert not UNSEEN & set(text), sorted(map(hex, map(ord, UNSEEN & set(text))))
    assert "\\x1b]0;title" in text
    return text


def test_foreign_text_is_written_with_escapes_and_what_is_written_so_stays() -> None:
    assert visible(HOSTILE) == visible(visible(HOSTILE)) and not UNSEEN & set(visible(HOSTILE))
    assert (visible("a\tb\n"), in_line("a\tb\n")) == ("a\tb\n", "a\\tb\\n")


def test_every_line_is_printed_by_what_looks_at_it() -> None:
    """`print` and a bare console of Rich's would show a terminal what it obeys."""
    printing: dict[str, int] = {}
    for room in ("warehouse", "eval", "rl", "synth", "flows"):
        for path in (ROOT / room).rglob("*.py"):
            name, text = str(path.relative_to(ROOT)), path.read_text()
            if "print(" not in text and "rich.console" not in text:
                continue
            count = sum(isinstance(node, ast.Call) and ast.unparse(node.func) == "print" for node in ast.walk(ast.parse(text)))
            embedded = sum(line.startswith("print(") or line.startswith("        print(value)") for line in text.splitlines())
            if count + embedded:
                printing[name] = max(count, embedded)
            if "rich.console import" in text and "Console" in text.split("rich.console import", 1)[1].splitlines()[0]:
                assert name == "flows/screen.py", name
    assert printing == PRINTS


def test_lines_tables_titles_and_texts_are_drawn_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    for one in (HOSTILE, Text(HOSTILE), table):
        Screen(width=200).print(one)
        shown(capsys)


def test_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    shown(capsys)
    print_schema([CatalogEntry(HOSTILE, "view", None, None, HOSTILE), CatalogEntry("t", "table", HOSTILE, HOSTILE, HOSTILE)], "table")
    shown(capsys)
    _print_validation(Validation(Tally(1, 1, [HOSTILE]), {HOSTILE: Tally(1, 1, [HOSTILE])}, Tally()))
    shown(capsys)
    print_traits(HOSTILE, [Trait("size", TraitState.KEPT, HOSTILE)])
    shown(capsys)
    sort = OverlapKind.SAME_TASK
    print_contamination(HOSTILE, ContaminationReport((HOSTILE,), {HOSTILE: HOSTILE}, (Overlap(sort, HOSTILE, HOSTILE, HOSTILE),)))
    shown(capsys)


def test_errors_logs_and_artifacts(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(RequestError(HOSTILE)) == 2
    shown(capsys)
    try:
        raise KeyError(HOSTILE + "x")
    except KeyError as error:
        show_defect(KeyError, error, error.__traceback__)
    assert "test_foreign_text" in capsys.readouterr().err
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        show_defect(ValueError, error, error.__traceback__)
    assert "Traceback" in shown(capsys)
    record = logging.LogRecord("flywheel", logging.INFO, __file__, 1, "%s", (HOSTILE,), None)
    print(PlainFormatter("%(message)s").format(record), file=sys.stderr)
    shown(capsys)
    assert figure_rows({HOSTILE: HOSTILE, "b": {"n": 1, HOSTILE: HOSTILE}}) == [
        {"figure": in_line(HOSTILE), "value": in_line(HOSTILE)},
        {"figure": "b", "n": 1, in_line(HOSTILE): in_line(HOSTILE)},
    ]
