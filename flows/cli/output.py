"""What commands print beside rows: the schema of a lake, and one trajectory turn by turn. Imported inside commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow
from rich.text import Text

from flows.cli.rows import print_result
from flows.screen import Screen
from rl.terminal import say, visible
from warehouse import Call, Image, Lake, Task, Trajectory, Turn
from warehouse.lake import CatalogEntry


def print_schema(described: Sequence[CatalogEntry], form: str) -> None:
    """Print what the lake holds: as text to read, or its rows as JSON or CSV."""
    if form != "table":
        print_result(pyarrow.Table.from_pylist([asdict(row) for row in described]), form)
        return
    for row in described:
        if row.column is None:
            say(f"\n{row.name} ({row.kind}): {row.comment}")
        else:
            say(f"    {row.column:20} {row.type:30} {row.comment}".rstrip())


def print_trajectory(trajectory: Trajectory, lake: Lake, tokens: bool) -> None:
    """Print the task, then each turn with its parts named; with `tokens`, the ids and log-probabilities of each action."""
    console = Screen()
    task = next(iter(lake.read(Task, "key = ?", [trajectory.task_key])), None)
    _say(console, trajectory.id, "bold")
    _say(
        console,
        f"policy {trajectory.policy} · horizon {trajectory.horizon} · stopped by {trajectory.stop_reason} · "
        f"outcome {_outcome(trajectory, lake)} · reward {trajectory.reward}",
    )
    if task is not None:
        _say(console, f"question  {task.question}\naccepted  {' | '.join(task.answers)}")
    for turn in trajectory.turns:
        _print_turn(console, turn, tokens)
    if trajectory.error:
        _say(console, f"error     {trajectory.error}", "red")


def _outcome(trajectory: Trajectory, lake: Lake) -> str:
    """What the trajectory came to by the latest verdict on it, as all views have it; beside it the first one where that was another."""
    rows = lake.query("SELECT outcome FROM outcomes WHERE trajectory_id = ?", [trajectory.id]).to_pylist()
    latest = rows[0]["outcome"] if rows else trajectory.outcome
    return str(latest) if latest == trajectory.outcome else f"{latest} (at first {trajectory.outcome})"


def _say(console: Screen, text: str, style: str = "") -> None:
    """A line or more, in which nothing that a policy or a tool wrote is obeyed by the terminal."""
    console.print(Text(visible(text), style=style))


def plain_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as JSON can hold it: of an image all but its bytes, which stand in the lake under its digest."""
    record = asdict(trajectory)
    for turn in record["turns"]:
        turn["images"] = [image | {"data": f"{len(image['data'])} bytes"} for image in turn["images"]]
    return record


def _print_turn(console: Screen, turn: Turn, tokens: bool) -> None:
    latency = "" if turn.latency is None else f" · {turn.latency * 1000:.0f} ms"
    _say(console, f"── turn {turn.index} · policy version {turn.policy_version}{latency}", "dim")
    _say(console, f"action       {turn.action}", "green")
    if tokens:
        pairs = " ".join(f"{i}({p:.2f})" for i, p in zip(turn.action_ids, turn.action_logprobs, strict=True))
        _say(console, f"token (logp) {pairs}", "dim")
    for call in turn.calls:
        _print_call(console, call)
    if turn.observation:
        _say(console, f"observation  {turn.observation}  [masked, {len(turn.observation_ids)} tokens]", "cyan")
    for image in turn.images:
        _say(console, f"image        {_named(image)}", "cyan")


def _named(image: Image) -> str:
    return f"{image.media_type}  {image.width} x {image.height} pixels, {len(image.data):,} bytes  [{image.digest}]"


def _print_call(console: Screen, call: Call) -> None:
    """What was asked, what came of it, and what it took; the text of what came back stands in the turn's observation."""
    facts = [call.outcome or "no outcome"]
    facts += [] if call.latency_seconds is None else [f"{call.latency_seconds * 1000:.0f} ms"]
    facts += [f"{call.retries} retries"] if call.retries else []
    facts += [] if call.reward is None else [f"reward {call.reward:g}"]
    facts += [f"{name} {value}" for name, value in call.figures.items()]
    _say(console, f"call         {call.tool} {call.arguments or ''}  [{' · '.join(facts)}]", "magenta")
