"""What a step asks of the engines."""

from __future__ import annotations

from typing import Any, cast

from rl.learner.config import ReinforceConfig
from rl.rollouts.collect import ReinforceRun
from warehouse.records import Task

NOBODY = cast(Any, None)


def test_a_group_is_sampled_at_the_temperature_that_the_learner_scores_it_at() -> None:
    config = ReinforceConfig(temperature=0.7, samples_per_task=3)
    run = ReinforceRun("r", "p", 1, 0, config, NOBODY, NOBODY, {}, NOBODY, NOBODY)
    requests = run.requests(Task("k", "search", "Who?", ("one",)), step=2, horizon=4)
    assert [request.temperature for request in requests] == [0.7] * 3
    assert len({request.seed for request in requests}) == len({request.trajectory_id for request in requests}) == 3
