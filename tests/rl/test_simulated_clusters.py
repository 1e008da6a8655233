"""On Ray's simulated clusters, with declared GPUs: actors with the options of ours lie where the plan finds room, and nowhere else.

No engine starts without a GPU, so in the place of engines and environments light actors are started, with the options, the placement
groups that ours are started with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from rl.engines.config import EngineConfig
from rl.engines.replica import engine_group, engine_options
from rl.env_pool.machines import machines
from rl.env_pool.pool import worker_options
from rl.envs.config import EnvironmentKindConfig
from rl.learner.config import LearnerConfig
from rl.learner.group import learner_group
from rl.placement import Bundle, NoRoom, Reservation, place
from rl.ray_runtime import RayConfig, RayRuntime
from tests.rl.light_actor import LightActor

pytestmark = pytest.mark.engine

READY_SECONDS = 300
"""How long a busy machine may take to start an actor."""
STORE = 80 * 1024**2


@dataclass(frozen=True, slots=True)
class Up:
    """What is up at once: engines, a learner, environments."""

    engine: EngineConfig
    learner: LearnerConfig
    environment: EnvironmentKindConfig

    @property
    def reservations(self) -> list[Reservation]:
        workers = (Bundle(self.environment.cpus, self.environment.gpus),) * self.environment.workers
        return [
            self.engine.reservation("rollout.engine"),
            self.learner.reservation("rl.learner"),
            Reservation("rollout.environments", workers),
        ]


def up(engine: dict[str, Any], learner: dict[str, Any], environment: dict[str, Any] | None = None) -> Up:
    own = {"cpus": 0.1, **engine}
    return Up(
        EngineConfig.model_validate(own),
        LearnerConfig.model_validate({"cpus": 0.1, **learner}),
        EnvironmentKindConfig.model_validate({"cpus": 0.1, **(environment or {})}),
    )


@contextmanager
def cluster_of(*gpus: int) -> Iterator[str]:
    """The address of a cluster of nodes with so many GPUs each; this process is not connected to it."""
    cluster = Cluster()
    try:
        for count in gpus:
            cluster.add_node(num_cpus=4, num_gpus=count, object_store_memory=STORE, include_dashboard=False)
        yield str(cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def placed(wanted: Up) -> Iterator[tuple[list[tuple[str, tuple[str, ...]]], list[str]]]:
    """Node and cards of each engine and environment worker, and the node of each of the learner's workers and parallel engines' own."""
    groups = [engine_group(wanted.engine) for _ in range(wanted.engine.count)]
    learners = learner_group(wanted.learner)
    options = [engine_options(wanted.engine, group) for group in groups]
    options += [worker_options(wanted.environment)] * wanted.environment.workers
    actors = [ray.remote(LightActor).options(**{**own, "runtime_env": {}, "max_concurrency": 1}).remote() for own in options]
    try:
        own = ray.get([actor.place.remote() for actor in actors], timeout=READY_SECONDS)
        assert learners.wait(READY_SECONDS)
        yield own, [node for group in (learners, *filter(None, groups)) for node in nodes_of(group)]
    finally:
        for actor in actors:
            ray.kill(actor)
        for group in filter(None, (learners, *groups)):
            remove_placement_group(group)


def nodes_of(group: PlacementGroup) -> list[str]:
    return list(placement_group_table(group)["bundles_to_node_id"].values())


def check(address: str, cases: Sequence[tuple[Up, bool]]) -> None:
    """Each case: the plan says whether there is room; what has it is started, and lies on the machines that the plan counted."""
    there = machines(RayConfig(address=address))
    assert not ray.is_initialized(), "counting machines leaves no connection open"
    runtime = RayRuntime(RayConfig(address=address), 0)
    for wanted, fits in cases:
        if not fits:
            with pytest.raises(NoRoom):
                place(wanted.reservations, there)
            continue
        planned = place(wanted.reservations, there)
        with placed(wanted) as (own, groups):
            assert len(own) == wanted.engine.count + wanted.environment.workers
            used = Counter(node for node, _ in own) + Counter(groups)
            assert len(used) <= len(there)
            seen = [(node, card) for node, cards in own for card in cards]
            assert wanted.engine.gpus < 1 or len(set(seen)) == len(seen), "two actors see one card"
            if wanted.engine.workers == "processes":
                assert [len(cards) for _, cards in own[: wanted.engine.count]] == [max(1, int(wanted.engine.gpus))] * wanted.engine.count
        assert len(planned) == sum(len(each.bundles) for each in wanted.reservations)
    runtime.close()


def test_one_card_is_shared_by_an_engine_and_a_learner() -> None:
    cases = [
        (up({"gpus": 0.5}, {"gpus": 0.5}), True),
        (up({"gpus": 1}, {"gpus": 0.5}), False),
        (up({"gpus": 0.5}, {"gpus": 0.5}, {"gpus": 0.25}), False),
    ]
    with cluster_of(1) as address:
        check(address, cases)


@pytest.mark.long
def test_two_machines_of_eight_cards() -> None:
    eight = {"workers": 8, "gpus": 1}
    cases = [
        (up({"gpus": 4, "tensor_parallel": 4, "count": 2}, eight), True),
        (up({"gpus": 2, "tensor_parallel": 2, "count": 4, "workers": "ray"}, eight), True),
        (up({"gpus": 4, "tensor_parallel": 4, "count": 2}, {"workers": 9, "gpus": 1}), False),
        (up({"gpus": 16, "tensor_parallel": 16, "workers": "ray"}, {"workers": 2}), True),
        (up({"gpus": 16, "tensor_parallel": 16}, {"workers": 2}), False),
    ]
    with cluster_of(8, 8) as address:
        check(address, cases)
