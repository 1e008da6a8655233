"""What commands print: rows as a table, JSON or CSV, the schema of a lake, and one trajectory turn by turn. Imported inside commands."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.cli.options import print_json
from warehouse import Call, Image, Lake, Trajectory, Turn
from warehouse.lake import CatalogEntry

LONGEST_CELL = 80
"""Characters of a value that a table shows; JSON and CSV hold all of it."""


def print_result(rows: pyarrow.Table, form: str) -> None:
    """Print `rows` in the form `table`, `json` or `csv`."""
    rows = _with_spans_as_text(rows)
    if form == "json":
        print_json(rows.to_pylist())
    elif form == "csv":
        _print_csv(rows)
    else:
        _print_table(rows)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print dictionaries as a table with a column for each key of any of them."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    print_result(pyarrow.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows]), "table")


def print_schema(described: Sequence[CatalogEntry], form: str) -> None:
    """Print what the lake holds: as text to read, or its rows as JSON or CSV."""
    if form != "table":
        print_result(pyarrow.Table.from_pylist([asdict(row) for row in described]), form)
        return
    for row in described:
        if row.column is None:
            print(f"\n{row.name} ({row.kind}): {row.comment}")
        else:
            print(f"    {row.column:20} {row.type:30} {row.comment}".rstrip())


def _with_spans_as_text(rows: pyarrow.Table) -> pyarrow.Table:
    """Spans of time, such as `finished - started`, as people write them: Arrow's own form is a tuple of months, days and nanoseconds."""
    for number, name in enumerate(rows.column_names):
        if pyarrow.types.is_interval(rows.schema.types[number]):
            spans = [None if span is None else _span(*span) for span in rows.column(number).to_pylist()]
            rows = rows.set_column(number, name, pyarrow.array(spans, pyarrow.string()))
    return rows


def _span(months: int, days: int, nanoseconds: int) -> str:
    """A span of time: `3 months`, `2 days 0:10:00.000`, `0:00:01.258`."""
    long = [f"{count} {unit}" for count, unit in ((months, "months"), (days, "days")) if count]
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    clock = f"{'-' if nanoseconds < 0 else ''}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 10**6:03}"
    return " ".join([*long, clock] if nanoseconds or not long else long)


def _print_csv(rows: pyarrow.Table) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(rows.column_names)
    writer.writerows(tuple(row.values()) for row in rows.to_pylist())


def _print_table(rows: pyarrow.Table) -> None:
    table = Table(*rows.column_names)
    for row in rows.to_pylist():
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)
    print(f"{rows.num_rows} row{'' if rows.num_rows == 1 else 's'}")


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return escape(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…")


def print_trajectory(trajectory: Trajectory, lake: Lake, tokens: bool) -> None:
    """Print the task, then each turn with its parts named; with `tokens`, the ids and log-probabilities of each action."""
    console = Console()
    task = next((task for task in lake.tasks() if task.key == trajectory.task_key), None)
    console.print(Text(trajectory.id, style="bold"))
    console.print(
        f"policy {trajectory.policy} · horizon {trajectory.horizon} · stopped by {trajectory.stop_reason} · "
        f"outcome {trajectory.outcome} · reward {trajectory.reward}"
    )
    if task is not None:
        console.print(Text(f"question  {task.question}"), Text(f"accepted  {' | '.join(task.answers)}"), sep="\n")
    for turn in trajectory.turns:
        _print_turn(console, turn, tokens)
    if trajectory.error:
        console.print(Text(f"error     {trajectory.error}", style="red"))


def plain_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as JSON can hold it: of an image all but its bytes, which stand in the lake under its digest."""
    record = asdict(trajectory)
    for turn in record["turns"]:
        turn["images"] = [image | {"data": f"{len(image['data'])} bytes"} for image in turn["images"]]
    return record


def _print_turn(console: Console, turn: Turn, tokens: bool) -> None:
    latency = "" if turn.latency is None else f" · {turn.latency * 1000:.0f} ms"
    console.print(Text(f"── turn {turn.index} · policy version {turn.policy_version}{latency}", style="dim"))
    console.print(Text(f"action       {turn.action}", style="green"))
    if tokens:
        pairs = " ".join(f"{i}({p:.2f})" for i, p in zip(turn.action_ids, turn.action_logprobs, strict=True))
        console.print(Text(f"token (logp) {pairs}", style="dim"))
    for call in turn.calls:
        _print_call(console, call)
    if turn.observation:
        console.print(Text(f"observation  {turn.observation}  [masked, {len(turn.observation_ids)} tokens]", style="cyan"))
    for image in turn.images:
        console.print(Text(f"image        {_named(image)}", style="cyan"))


def _named(image: Image) -> str:
    return f"{image.media_type}  {image.width} x {image.height} pixels, {len(image.data):,} bytes  [{image.digest}]"


def _print_call(console: Console, call: Call) -> None:
    """What was asked, what came of it, and what it took; the text of what came back stands in the turn's observation."""
    facts = [call.outcome or "no outcome"]
    facts += [] if call.latency_seconds is None else [f"{call.latency_seconds * 1000:.0f} ms"]
    facts += [f"{call.retries} retries"] if call.retries else []
    facts += [] if call.reward is None else [f"reward {call.reward:g}"]
    facts += [f"{name} {value}" for name, value in call.figures.items()]
    console.print(Text(f"call         {call.tool} {call.arguments or ''}  [{' · '.join(facts)}]", style="magenta"))
