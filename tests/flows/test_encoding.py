"""Examples in the tokens of the policy that a stage trains: by the dialect and the limits of its rollouts."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from flows.stages.training import encode
from rl.renderers.base import Truncation
from rl.renderers.tags import TagDialect
from rl.rollouts.config import RolloutConfig
from tests.rl.conftest import create_tiny_policy
from warehouse import Example, Part, PartKind


def test_results_are_cut_as_rollouts_cut_them_and_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    policy = create_tiny_policy(tmp_path / "policy", seed=0)
    config = RolloutConfig.model_validate({"limits": {"max_observation_tokens": 20, "truncate": "left"}})
    asked, call = Part(PartKind.QUESTION, "Who?"), Part(PartKind.CALL, "Amber", True, "search")
    long = Example("long", "trajectory", (asked, call, Part(PartKind.RESULT, "Amber Stone " * 40 + "Blue River.")), ())
    unknown = Example("unknown", "has", (asked, Part(PartKind.CALL, "x", True, "browse")), ())
    (encoded,), (failure,) = encode(config, policy, [long, unknown])
    dialect = TagDialect(AutoTokenizer.from_pretrained(policy))
    observation = dialect.observation_ids(long.parts[-1].text, Truncation(20, "left"))
    assert encoded.token_ids[-len(observation) :] == observation
    assert dialect.decode(observation).startswith("<information> ...")
    assert (failure.kind, failure.item) == ("not_expressible", {"example": "unknown", "kind": "has"})
