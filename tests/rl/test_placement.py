"""Bundles on machines, as a pure function: what lies where, what finds no room, and what no configuration may ask for."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.config import load_config
from rl.engines.config import EngineConfig
from rl.envs.config import EnvironmentPoolConfig
from rl.learner.config import LearnerConfig
from rl.placement import Bundle, Machine, NoRoom, Placed, Reservation, place
from rl.rollouts.config import RolloutConfig
from warehouse.errors import RequestError


def gpus(*counts: int) -> list[Machine]:
    return [Machine(f"node {number}", math.inf, count) for number, count in enumerate(counts)]


def on_gpus(key: str, *each: float) -> Reservation:
    return Reservation(key, tuple(Bundle(1, amount) for amount in each))


def used(placed: list[Placed], machine: int) -> float:
    return sum(one.bundle.gpus for one in placed if one.machine == machine)


@pytest.mark.parametrize(
    ("reservations", "machines", "fits"),
    [
        ([on_gpus("engine", 0.5), on_gpus("learner", 0.5)], gpus(1), True),
        ([on_gpus("engine", 1), on_gpus("learner", 0.5)], gpus(1), False),
        ([on_gpus("engine", 0.6, 0.6)], gpus(1), False),
        ([on_gpus("engine", 0.5, 0.5), on_gpus("learner", 1)], gpus(2), True),
        ([on_gpus("engine", *[1] * 5), on_gpus("learner", *[1] * 4)], gpus(8), False),
        ([on_gpus("learner", *[1] * 8), on_gpus("engine", 4, 4)], gpus(8, 8), True),
        ([on_gpus("engine", 4), on_gpus("learner", *[1] * 3)], gpus(3, 4), True),
        ([on_gpus("engine", 4)], gpus(2, 2), False),
    ],
)
def test_what_fits_is_placed_and_what_does_not_is_refused(reservations: list[Reservation], machines: list[Machine], fits: bool) -> None:
    if not fits:
        with pytest.raises(NoRoom):
            place(reservations, machines)
        return
    placed = place(reservations, machines)
    assert len(placed) == sum(len(each.bundles) for each in reservations)
    assert all(used(placed, number) <= machine.gpus for number, machine in enumerate(machines))


@settings(max_examples=50)
@given(st.lists(st.sampled_from([0.25, 0.5, 1, 2, 4]), max_size=12), st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3))
def test_placements_never_exceed_a_machine(sizes: list[float], cards: list[int]) -> None:
    wanted = [on_gpus(f"part {number}", size) for number, size in enumerate(sizes)]
    try:
        placed = place(wanted, gpus(*cards))
    except NoRoom as refused:
        assert sum(sizes) > sum(cards) or refused.bundle.gpus > max(cards) or len(cards) > 1 or any(size % 1 for size in sizes)
        return
    assert sorted(one.bundle.gpus for one in placed) == sorted(sizes)
    assert all(used(placed, number) <= count for number, count in enumerate(cards))


def test_each_part_reserves_what_its_configuration_says() -> None:
    parallel = EngineConfig(count=2, older=1, cpus=8, gpus=4, tensor_parallel=4)
    assert parallel.bundles == (Bundle(8, 4),)
    assert parallel.model_copy(update={"workers": "ray"}).bundles == (Bundle(2, 1),) * 4
    assert len(parallel.reservation("rollout.engine").bundles) == 3
    assert LearnerConfig().reservation("rl.learner").bundles == (), "it is the process that runs the stage"
    assert LearnerConfig(gpus=1).reservation("rl.learner").bundles == (Bundle(0.5, 1),)
    assert LearnerConfig(workers=2).reservation("rl.learner").bundles == (Bundle(0.5, 0),) * 2
    pool = EnvironmentPoolConfig.model_validate({"gpus": 0.25, "kinds": {"encoder": {"workers": 2, "gpus": 1}}})
    assert pool.reservations(["search", "encoder"]) == [
        Reservation("rollout.environments.kinds.encoder", (Bundle(0.5, 1),) * 2),
        Reservation("rollout.environments", (Bundle(0.5, 0.25),)),
    ]
    assert RolloutConfig().reserved_cpus == 1 + 4 * 0.5


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (EngineConfig, {"gpus": 2}, "make them equal"),
        (EngineConfig, {"sleep_level": 2, "older": 1}, "older"),
        (EngineConfig, {"adapter_rank": 513}, "512"),
        (EngineConfig, {"adapter_rank": 8, "transfer": "gloo"}, "engine.transfer = gloo"),
        (EngineConfig, {"adapter_rank": 8, "workers": "ray", "gpus": 1}, "on one machine"),
        (EngineConfig, {"adapter_rank": 8, "sleep_level": 2}, "engine.sleep_level = 2 .*engine.adapter_rank"),
        (EngineConfig, {"transfer": "nccl"}, "engine.transfer = nccl needs engines on GPUs"),
        (EngineConfig, {"transfer": "nccl", "gpus": 1, "tensor_parallel": 2}, "make them equal"),
        (EngineConfig, {"transfer": "ipc"}, "engine.transfer = ipc needs engines on GPUs"),
        (EngineConfig, {"transfer": "ipc", "gpus": 0.5, "count": 2}, "one engine with one worker"),
        (LearnerConfig, {"gpus": 2}, "less than or equal to 1"),
        (LearnerConfig, {"gpus": 0.5, "workers": 2}, "NCCL"),
    ],
)
def test_impossible_engines_and_learners_are_refused_by_the_configuration(
    kind: type[EngineConfig | LearnerConfig], changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        kind.model_validate(changes)


ON_GPUS = ("rollout.engine.gpus=1", "rl.learner.workers=2")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rollout.engine.adapter_rank=8"], "rl.lora"),
        (["rollout.engine.adapter_rank=8", "rl.lora={rank = 16}"], "rl.lora.rank = 16"),
        ([*ON_GPUS, "rollout.engine.transfer=nccl"], "nccl needs rl.learner.gpus"),
        ([*ON_GPUS, "rollout.engine.transfer=ipc", "rl.learner.gpus=1"], "ipc supports a learner of one process"),
        (["rollout.engine.transfer=gloo", "rl.learner.workers=2"], None),
    ],
)
def test_settings_of_engines_and_learner_must_match(overrides: list[str], said: str | None) -> None:
    with pytest.raises(RequestError, match=said) if said else nullcontext():
        load_config("quickstart", overrides)
