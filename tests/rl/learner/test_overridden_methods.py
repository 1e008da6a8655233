"""What of TRL and transformers is overridden or reached into, by name and signature: a version that changes it fails here and not in a run.

The bounds of both in pyproject.toml are to be widened once this holds with the newer version.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from transformers import TrainerCallback
from trl import GRPOTrainer, SFTTrainer

from rl.learner.losses import PolicyLoss
from rl.learner.trainers import MetricsCallback
from rl.supervised.training import PackedTrainer

pytestmark = pytest.mark.engine

LOGPROBS = (
    "self, model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, compute_aux_loss, pixel_values, image_grid_thw, "
    "num_images, pixel_attention_mask, spatial_shapes, num_tiles, image_sizes, token_type_ids, mm_token_type_ids, image_position_ids"
)
OVERRIDDEN = {
    (PolicyLoss, GRPOTrainer, "_get_per_token_logps_and_entropies"): LOGPROBS,
    (PackedTrainer, SFTTrainer, "compute_loss"): "self, model, inputs, return_outputs, num_items_in_batch",
    (MetricsCallback, TrainerCallback, "on_log"): "self, args, state, control, kwargs",
}
"""The overridden method, and its parameters."""
ATTRIBUTES = {"_metrics", "_tokenizer", "beta", "loss_type", "ref_model", "temperature"}
"""Attributes of GRPOTrainer that ours reads or writes."""
LOSS = "_compute_loss", "self, model, inputs"
"""The method of GRPOTrainer that ours calls, and its parameters."""
NORMALIZER = "self.current_gradient_accumulation_steps"
"""What it divides a loss by, which ours sets."""


def overrides(own: type) -> Iterator[tuple[type, type, str]]:
    """The methods of `own` that a class of TRL or transformers has too, with the nearest of these classes."""
    for name, value in vars(own).items():
        above = [each for each in own.__mro__[1:] if name in vars(each) and each.__module__.split(".")[0] in ("trl", "transformers")]
        if callable(value) and not name.startswith("__") and above:
            yield own, above[0], name


@pytest.mark.parametrize("own", [PolicyLoss, PackedTrainer, MetricsCallback])
def test_all_overridden_methods_are_listed_here(own: type) -> None:
    assert set(overrides(own)) == {place for place in OVERRIDDEN if place[0] is own}


@pytest.mark.parametrize(("own", "above", "name"), OVERRIDDEN, ids=lambda part: part if isinstance(part, str) else part.__name__)
def test_overridden_methods_have_the_expected_parameters(own: type, above: type, name: str) -> None:
    assert ", ".join(inspect.signature(getattr(above, name)).parameters) == OVERRIDDEN[own, above, name]


def test_accessed_attributes_exist() -> None:
    set_there = inspect.getsource(GRPOTrainer)
    assert {name for name in ATTRIBUTES if f"self.{name} = " not in set_there} == set()


def test_the_loss_has_the_expected_parameters_and_normaliser() -> None:
    name, parameters = LOSS
    loss = getattr(GRPOTrainer, name)
    assert ", ".join(inspect.signature(loss).parameters) == parameters
    assert NORMALIZER in inspect.getsource(loss)
