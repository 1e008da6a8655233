"""What a stage stands on that is run by itself, and the commands that make what is missing, in the order to run them in."""

from __future__ import annotations

from collections.abc import Iterator

from flows.config import TRAINING, FlywheelConfig
from flows.lakes import champion_of, maker_of
from flows.plan import policy_id, synthesis_id
from flows.training_data import examples_made
from flows.variants import Variant
from warehouse import Lake
from warehouse.errors import RequestError


def parent_id(lake: Lake, config: FlywheelConfig, stage: str, turn: int, variant: str) -> str:
    """The policy that a stage starts from: that of the stage before it, else the champion, else the first; it need not be there."""
    before = _stage_before(config, stage, variant)
    if before is not None:
        return policy_id(turn, before, variant if variant == Variant.WITHOUT_CPT else "")
    champion = champion_of(lake, before=turn)
    return champion.id if champion else policy_id(0, "init")


def check_before(lake: Lake, config: FlywheelConfig, stage: str, turn: int, variant: str = "") -> None:
    """Raises RequestError where what a stage starts from or trains on is not there: it names the commands to run first."""
    commands = list(dict.fromkeys(_commands_before(lake, config, stage, turn, variant)))
    if commands:
        named = ", then ".join(f"`{command}`" for command in commands)
        raise RequestError(f"{lake.place.home} is not ready for {policy_id(turn, stage, variant)}: run first {named}.")


def _stage_before(config: FlywheelConfig, stage: str, variant: str) -> str | None:
    """The stage of training before `stage` in the same turn; None where it is the first."""
    order = list[str](TRAINING)
    earlier = [each for each in order[: order.index(stage)] if each in config.wheel.stages]
    return next((each for each in reversed(earlier) if not (variant == Variant.WITHOUT_CPT and each == "cpt")), None)


def _commands_before(lake: Lake, config: FlywheelConfig, stage: str, turn: int, variant: str) -> Iterator[str]:
    """With repetitions: several stages may wait for the same synthesis."""
    home, parent = lake.place.home, parent_id(lake, config, stage, turn, variant)
    if not lake.policies("id = ?", [parent]):
        before = _stage_before(config, stage, variant)
        if before is not None:
            yield from _commands_before(lake, config, before, turn, variant)
        yield str(maker_of(parent, home))
    if not lake.runs("id = ? AND state = 'completed'", [synthesis_id(turn)]) and not _has_data(lake, config, stage, turn):
        yield f"flywheel synth --home {home} --turn {turn}"


def _has_data(lake: Lake, config: FlywheelConfig, stage: str, turn: int) -> bool:
    """Whether what a stage trains on is there, made by one kind of synthesis or imported; True where synthesis makes none."""
    settings = config.for_turn(turn)
    if stage != "rl":
        return bool(examples_made(lake, stage, turn))
    return not settings.synth.makes_tasks or bool(lake.query(f"SELECT key FROM tasks WHERE ({settings.rl.tasks}\n) LIMIT 1").num_rows)
