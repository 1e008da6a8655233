"""What runs concurrently in each stage, and whether it fits on Ray's machines.

Engines and environments start with the first stage that needs them and keep running next to any learner. A teacher's own engines replace
them while it writes, unless the policy proposes actions for the same synthesis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.config import FlywheelConfig, TurnConfig
from rl.engines.config import EngineConfig
from rl.placement import Bundle, Machine, NoRoom, Placed, Reservation, place, total_cpus
from warehouse.errors import RequestError

if TYPE_CHECKING:
    from rl.envs.config import EnvironmentPoolConfig


@dataclass(frozen=True, slots=True)
class Phase:
    """Reservations that are held at the same time."""

    name: str
    reservations: tuple[Reservation, ...]

    @property
    def gpus(self) -> float:
        return sum(bundle.gpus for reservation in self.reservations for bundle in reservation.bundles)


def phases(config: FlywheelConfig) -> list[Phase]:
    """Return the distinct phases of the first and later iterations."""
    rollouts = tuple(_rollouts(config))
    found = [phase for iteration in (1, 2) for phase in _of_iteration(config, config.for_turn(iteration), rollouts)]
    judge = config.evaluation.judge
    if judge is not None and judge.kind == "engine":
        found.append(Phase("judging", (judge.engine.reservation("evaluation.judge.engine"),)))
    return list(dict.fromkeys(found))


def reserved_cpus(config: FlywheelConfig) -> float:
    """Maximum CPUs reserved at once, for starting Ray on this machine."""
    return config.rollout.reserved_cpus + max(total_cpus(phase.reservations) - total_cpus(_rollouts(config)) for phase in phases(config))


def learner_threads(in_turns: bool, engines: EngineConfig, there: int) -> int:
    """Number of the `there` threads for an in-process learner: those that CPU engines leave if rollouts run alongside it."""
    return there if in_turns or engines.gpus else max(there - engines.count * engines.threads, 1)


def check_placement(config: FlywheelConfig) -> None:
    """Check that every phase fits. Ray is asked only about GPUs or a cluster; a local Ray starts with as many CPUs as are reserved.

    Raises:
        RequestError: A phase does not fit; the message names the key.
    """
    wanted = phases(config)
    if config.rollout.ray.address is None and not any(phase.gpus for phase in wanted):
        return
    from rl.env_pool.machines import machines

    there = machines(config.rollout.ray)
    for phase in wanted:
        place_phase(phase, there)


def place_phase(phase: Phase, machines: Sequence[Machine]) -> list[Placed]:
    """Assign each bundle of a phase to a machine. Raise RequestError if one does not fit."""
    try:
        return place(phase.reservations, machines)
    except NoRoom as error:
        raise RequestError(_refusal(error, phase, machines)) from error


def _refusal(error: NoRoom, phase: Phase, machines: Sequence[Machine]) -> str:
    key = error.reservation.key
    others = [str(each) for each in phase.reservations if each.bundles and each.key != key]
    alongside = f" alongside {', '.join(others)}" if others else ""
    there = ", ".join(map(str, machines)) or "a cluster without machines"
    return (
        f"{key}: {error.bundle} does not fit in {phase.name}: there is no room for {error.reservation}{alongside} on {there}; "
        f"{_advice(key)}, or give Ray more with rollout.ray."
    )


def _advice(key: str) -> str:
    if key.endswith(".engine"):
        return f"lower {key}.count, .gpus or .tensor_parallel"
    if key.endswith(".file"):
        return "lower worker.gpus or worker.cpus of its tools"
    return f"lower {key}.workers, .gpus or .cpus"


def _rollouts(config: FlywheelConfig) -> Iterator[Reservation]:
    pool = config.rollout.environments
    yield config.rollout.engine.reservation("rollout.engine")
    yield from pool.reservations({*pool.kinds, config.synth.webshaper.environment})
    yield from _tools(pool)


def _tools(pool: EnvironmentPoolConfig) -> Iterator[Reservation]:
    for name, kind in pool.kinds.items():
        if (kind.factory or name) != "tools" or "file" not in kind.options:
            continue
        from rl.tools.file import read_tools_file  # imports Ray

        tools = read_tools_file(Path(kind.options["file"])).tools
        bundles = tuple(Bundle(tool.worker.cpus, tool.worker.gpus) for tool in tools.values() if tool.worker is not None)
        yield Reservation(f"rollout.environments.kinds.{name}.options.file", bundles)


def _of_iteration(config: FlywheelConfig, settings: TurnConfig, rollouts: tuple[Reservation, ...]) -> Iterator[Phase]:
    teacher = settings.synth.teacher
    if teacher is not None and teacher.kind == "engine":
        own = rollouts if settings.synth.has_count and settings.synth.has.asks("policy") else ()
        yield Phase("synthesis", (*own, teacher.engine.reservation("synth.teacher.engine")))
    yield Phase("evaluation", rollouts)
    for stage in settings.wheel.stages:
        reserved = getattr(settings, stage).learner.reservation(f"{stage}.learner")
        if reserved.bundles:
            yield Phase(f"the stage {stage}", (*rollouts, reserved))
