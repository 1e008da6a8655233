"""What the parts of a reward are given to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.stages.reinforcement import evidence_of, reward_context
from rl.rewards.config import RewardConfig
from warehouse import Document, Fact, Lake, Task
from warehouse.errors import RequestError

FACTS = [Fact("Amber", "works at", "Blue", ("d1",)), Fact("Blue", "sits in", "Green", ("d2", "gone")), Fact("Green", "is", "Red", ("d3",))]
DOCUMENTS = [Document(f"d{n}", title, "", "test") for n, title in ((1, "Amber"), (2, "Blue River"), (3, "Green"))]
TASK = Task("t", "search", "Where?", ("Green",), provenance={"path": ["Amber", "Blue", "Green"]})
BARE = Task("bare", "search", "Where?", ("Green",))


def test_the_evidence_of_a_task_are_the_documents_that_state_the_facts_along_its_path(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([*FACTS, *DOCUMENTS])
        assert evidence_of(lake, [TASK]) == {"t": {"Amber", "Blue River"}}


@pytest.mark.slow
def test_a_reward_by_evidence_is_refused_at_once_where_a_task_names_none(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.add([*FACTS, *DOCUMENTS])
        assert reward_context(lake, RewardConfig(), [BARE]).evidence == {}
        with pytest.raises(RequestError, match="task bare names none"):
            reward_context(lake, RewardConfig(parts={"evidence": 0.1}), [TASK, BARE])
        with pytest.raises(RequestError, match="no part of the reward 'nothing'"):
            reward_context(lake, RewardConfig(parts={"nothing": 0.1}), [TASK])
