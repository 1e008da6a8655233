"""Commands that judge: `verify` rows, `validate` a task set, `reverify` what a home holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import HomeOption, JsonOption, print_json
from rl.terminal import say

if TYPE_CHECKING:
    from eval.suites.validation import Validation


def verify(
    kind: Annotated[str, typer.Argument(help="qa_em, qa_f1, set, gsm8k, number, date, math, …; a wrong one prints them all.")],
    input_: Annotated[Path, typer.Option("--input", help="JSON lines {id, gold, pred, options?}, or a table (.csv, .parquet).")],
    output: Annotated[Path, typer.Option("--output", help="JSON lines {id, value, verdict, error}.")],
) -> None:
    """Judge rows by a verifier. A row that cannot be judged has an error and no value.

    Example: flywheel verify qa_em --input rows.jsonl --output scored.jsonl
    """
    from eval.graders.rows import read_rows, verify_rows
    from warehouse.drafts import drafted

    judged = invalid = 0
    rows = verify_rows(kind, read_rows(input_))
    with drafted(output) as draft, draft.open("w") as file:
        for row in rows:
            judged, invalid = judged + 1, invalid + (row.value is None)
            file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
    say(f"{judged} rows judged by {kind}, {invalid} of them invalid, written to {output}")


def validate(
    kind: Annotated[str | None, typer.Argument(help="The verifier to prove; for a home, its own without one.")] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="JSON lines {id, gold, options?, question?}, or a table.")] = None,
    home: Annotated[Path | None, typer.Option("--home", help="A run's folder, instead of rows.")] = None,
    suite: Annotated[str | None, typer.Option(help="One split of the home's tasks; all without it.")] = None,
    json_: JsonOption = False,
) -> None:
    """Prove a task set: every right answer passes, and no answer that is known to be wrong. Exit status 1 where one does not.

    Example: flywheel validate gsm8k --input test.jsonl
    """
    from flows.verifiers import validate_home, validate_rows
    from warehouse.errors import RequestError

    if input_ is not None and home is None and kind is not None:
        found = validate_rows(kind, input_)
    elif home is not None and input_ is None:
        found = validate_home(home, suite, kind)
    else:
        raise RequestError("flywheel validate needs KIND and --input FILE, or --home DIR with or without KIND.")
    if json_:
        print_json({**asdict(found), "proven": found.proven})
    else:
        _print_validation(found)
    if not found.proven:
        raise typer.Exit(1)


def _print_validation(found: Validation) -> None:
    say(f"{'answers':24} {'tried':>7} {'mistaken':>9}")
    for name, tally in {"right": found.gold, **{f"wrong: {sort}": tally for sort, tally in found.negatives.items()}}.items():
        say(f"{name:24} {tally.tried:7} {tally.mistaken:9}")
    say(f"{'rows that no one can judge':24} {found.unjudged.mistaken:14}")
    for tally in (found.gold, *found.negatives.values(), found.unjudged):
        for example in tally.examples:
            say(f"  {example}")
    say("proven" if found.proven else "not proven")


def reverify(
    home: HomeOption,
    where: Annotated[str, typer.Option(help="SQL condition on `trajectories`.")] = "TRUE",
    verifier: Annotated[
        str | None, typer.Option(help="A kind of `verify`, state, environment, judge, …; the home's own by default.")
    ] = None,
    failed_only: Annotated[bool, typer.Option("--failed-only", help="Only what this verifier could not judge before.")] = False,
    json_: JsonOption = False,
) -> None:
    """Score stored trajectories again. Generates nothing; scores of other versions stay in the lake beside the new ones.

    Example: flywheel reverify --home runs/demo --where "stage = 'eval'" --verifier qa_f1
    """
    from flows.reverification import reverify_home

    found = asdict(reverify_home(home, where, verifier, failed_only))
    if json_:
        print_json(found)
    else:
        say(", ".join(f"{count} {name}" for name, count in found.items()))
