"""One trajectory in the terminal, turn by turn: what the policy wrote, and what came back and is masked in training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from warehouse import Call, Image, Lake, Trajectory, Turn


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
    told = asdict(trajectory)
    for turn in told["turns"]:
        turn["images"] = [image | {"data": f"{len(image['data'])} bytes"} for image in turn["images"]]
    return told


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
