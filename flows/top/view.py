"""How `flywheel top` looks: one frame of a wheel's state, made of Rich's tables. Pure: the same state gives the same frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eval.suites.figures import LARGEST_INVALID_SHARE
from flows.operations.control import ControlState, position
from flows.status_line import bar
from flows.top.state import BesideEvaluation, Figure, Remaining, StageState, State
from rl.engines.base import PoolFigures
from rl.env_pool.circuit_breaker import EnvironmentPoolFigures, FaultFigures
from rl.terminal import in_line

SHOWN = (
    "loss", "reward", "success", "horizon", "turns", "hops", "tool_calls", "tool_success", "truncated", "zero_variance", "valid",
    "sampled_entropy", "logprob_difference", "token_mult_prob_error", "grad_norm", "learning_rate", "tokens_per_second",
    "learner_tokens_per_second", "mfu", "share/rollouts", "share/waiting", "share/learning", "share/sync", "learner_memory_gib",
    "concurrency/window", "engine_kv_usage", "step_seconds",
)  # fmt: skip
"""Figures in the order in which they stand; the lake has all of them."""
_MARKS = {
    "done": ("✓", "green"),
    "running": ("▶", "bold cyan"),
    "failed": ("✗", "red"),
    "stopped": ("‖", "yellow"),
    "paused": ("‖", "yellow"),
    "to do": ("·", "dim"),
    "left out": ("–", "dim"),
}


def frame(state: State) -> RenderableType:
    """The whole view."""
    parts: list[RenderableType] = [_headline(state), Text(), _stages(state.stages)]
    if state.at_work is not None:
        parts += [Text(), _stage(state)]
    if state.figures:
        parts += [Text(), _figures(state.figures)]
    if state.beside:
        parts += [Text(), *map(_beside, state.beside)]
    working = state.progress if state.at_work is not None else None
    if working is not None and working.engines is not None:
        parts += [Text(), _engines(working.engines, working.tokens_per_second)]
    if working is not None and working.environment_figures is not None:
        parts += [Text(), _hosting(working.environment_figures)]
    parts += [Text(), _invalid(state), *(Text(f"! {in_line(warning)}", style="yellow") for warning in state.warnings)]
    return Panel(Group(*parts), title=Text(in_line(f"flywheel  {state.home}")), title_align="left", border_style="dim")


def words(seconds: float) -> str:
    """A time that is left, as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def _headline(state: State) -> Text:
    if state.at_work is not None:
        turn = max(1, state.at_work.wheel_turn)
        return Text.assemble((f"turn {turn} of {state.turns}", "bold"), f"   left: {_left(state.wheel)}", *_asked(state))
    if state.progress is not None:
        silence = words(state.now - state.progress.written)
        who = f"no word from process {state.progress.process} for {silence}"
        return Text(f"{who}: it was killed, or it hangs; the same command goes on", "yellow")
    done = all(stage.state in ("done", "left out") for stage in state.stages)
    return Text("finished: nothing is running" if done else "nothing is running; `flywheel run` goes on", "green" if done else "yellow")


def _asked(state: State) -> Iterable[tuple[str, str]]:
    """What people have asked of the wheel, as pieces of a line."""
    control = state.progress.control if state.progress is not None else ControlState()
    if control.paused_since is not None:
        yield f"   paused for {words(max(0.0, state.now - control.paused_since))}: `flywheel resume` goes on", "bold yellow"
    if control.limit is not None:
        yield f"   {control.limit:,} trajectories at most side by side", "yellow"


def _left(remaining: Remaining) -> str:
    """The rest in words; what is not known comes on top."""
    known = words(remaining.seconds) if remaining.seconds else ""
    named = [*remaining.unknown[:4], *(["…"] if len(remaining.unknown) > 4 else [])]
    unknown = f"{', '.join(named)} (not known yet)" if named else ""
    return " + ".join(filter(None, (known, unknown))) or "nothing"


def _stages(stages: Sequence[StageState]) -> Table:
    """A line for each turn, with its stages in their order."""
    table = Table.grid(padding=(0, 2))
    for turn in sorted({stage.wheel_turn for stage in stages}):
        line = Text()
        for stage in (stage for stage in stages if stage.wheel_turn == turn):
            mark, style = _MARKS.get(stage.state, ("?", "red"))
            took = "" if stage.seconds is None else f" {words(stage.seconds)}"
            line.append(f"{mark} {stage.stage}", style).append(took, "dim").append("   ")
        table.add_row(Text(f"turn {turn}", "bold"), line)
    return table


def _stage(state: State) -> Table:
    """The stage at work: how far it is."""
    stage = state.at_work
    assert stage is not None
    table = Table.grid(padding=(0, 2))
    left = "" if stage.step is None else f"left: {_left(state.left)}"
    table.add_row(Text(stage.run, "bold cyan"), Text(position(stage)), Text(bar(stage, state.now)), Text(left))
    return table


def _beside(evaluation: BesideEvaluation) -> Text:
    """The latest evaluation of a suite beside the training, and whose tokens it is made of."""
    success = "no verdict" if evaluation.success is None else f"success {evaluation.success:.3f}"
    begun, first, last = evaluation.version, evaluation.first_version, evaluation.last_version
    span = "" if first == last == begun else f", sampled by versions {first} to {last}"
    invalid = f", {evaluation.invalid:,} invalid" if evaluation.invalid else ""
    return Text(in_line(f"{evaluation.suite} at version {begun}: {success} of {evaluation.tasks:,} tasks{invalid}{span}"))


def _figures(figures: Sequence[Figure]) -> Table:
    """Figures side by side: name, last value, mean of the last ten steps."""
    known = {figure.name: figure for figure in figures}
    chosen = [known[name] for name in SHOWN if name in known]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("figure", "now", "last ten") * 2:
        table.add_column(name, justify="left" if name == "figure" else "right")
    for left, right in _pairs(chosen):
        table.add_row(*_cells(left), *_cells(right))
    return table


def _pairs(figures: Sequence[Figure]) -> Iterable[tuple[Figure, Figure | None]]:
    """Two columns, read downwards."""
    half = (len(figures) + 1) // 2
    return [(figures[row], figures[row + half] if row + half < len(figures) else None) for row in range(half)]


def _cells(figure: Figure | None) -> tuple[str, str, str]:
    return ("", "", "") if figure is None else (figure.name, f"{figure.last:.4g}", f"{figure.recent:.4g}")


def _engines(pool: PoolFigures, tokens_per_second: float) -> Table:
    table = _table(("engine", "state", "version", "in flight", "trajectories", "requests", "tokens"))
    for engine in pool.engines:
        numbers = (engine.policy_version, engine.in_flight, engine.trajectories, engine.requests, engine.tokens)
        table.add_row(Text(in_line(engine.name)), engine.state.value, *(f"{number:,}" for number in numbers))
    lost = f", {pool.replacements} replaced, {pool.retaken} requests taken up again" if pool.replacements or pool.retaken else ""
    table.caption = f"{tokens_per_second:,.0f} tokens a second{lost}"
    return table


def _hosting(environment_figures: EnvironmentPoolFigures) -> Table:
    table = _table(("environment or tool", "workers", "trajectories", "replaced", "faults"))
    faults = {(figures.kind, figures.name): figures for figures in environment_figures.faults}
    for environment in environment_figures.environments:
        numbers = (environment.workers, environment.trajectories, environment.replaced)
        table.add_row(
            Text(in_line(environment.name)), *(f"{number:,}" for number in numbers), _faults(faults.get(("environment", environment.name)))
        )
    for figures in sorted((f for f in environment_figures.faults if f.kind == "tool"), key=lambda figures: figures.name):
        table.add_row(Text(f"  {in_line(figures.name)}"), "", "", "", _faults(figures))
    table.caption = f"{environment_figures.waiting:,} trajectories have not ended"
    return table


def _faults(figures: FaultFigures | None) -> Text:
    if figures is None:
        return Text("–")
    return Text(f"{figures.faults} of the last {figures.outcomes} {figures.unit}", "red" if figures.faults else "")


def _table(heads: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", caption_justify="left", caption_style="dim")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 0 else "right")
    return table


def _invalid(state: State) -> Text:
    if not state.trajectories:
        return Text("no trajectories yet", "dim")
    share = state.invalid / state.trajectories
    text = f"invalid {100 * share:.1f} %: {state.invalid:,} of {state.trajectories:,} trajectories"
    return Text(text, "bold red" if share > LARGEST_INVALID_SHARE else "")
