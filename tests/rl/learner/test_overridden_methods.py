"""What of TRL and transformers is overridden or reached into, by name and signature: a version that changes it fails here and not in a run.

The bounds of both in pyproject.toml are to be widened once this holds with the newer version.
"""

from __future__ import annotations

import inspect

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
    PolicyLoss: {(GRPOTrainer, "_get_per_token_logps_and_entropies"): LOGPROBS},
    PackedTrainer: {(SFTTrainer, "compute_loss"): "self, model, inputs, return_outputs, num_items_in_batch"},
    MetricsCallback: {(TrainerCallback, "on_log"): "self, args, state, control, kwargs"},
}
"""What a class of ours overrides: the nearest class of TRL or transformers with it, its name and its parameters there."""
ATTRIBUTES = {"_metrics", "_tokenizer", "beta", "loss_type", "ref_model", "temperature"}
"""Attributes of GRPOTrainer that ours reads or writes."""


@pytest.mark.parametrize("own", OVERRIDDEN)
def test_overridden_methods_are_listed_here_and_have_the_expected_parameters(own: type) -> None:
    found = {}
    for name, value in vars(own).items():
        above = [each for each in own.__mro__[1:] if name in vars(each) and each.__module__.split(".")[0] in ("trl", "transformers")]
        if callable(value) and not name.startswith("__") and above:
            found[above[0], name] = ", ".join(inspect.signature(getattr(above[0], name)).parameters)
    assert found == OVERRIDDEN[own]


def test_accessed_attributes_exist() -> None:
    set_there = inspect.getsource(GRPOTrainer)
    assert {name for name in ATTRIBUTES if f"self.{name} = " not in set_there} == set()


def test_the_loss_that_ours_calls_has_the_expected_parameters_and_the_normaliser_that_ours_sets() -> None:
    loss = GRPOTrainer._compute_loss
    assert list(inspect.signature(loss).parameters) == ["self", "model", "inputs"]
    assert "self.current_gradient_accumulation_steps" in inspect.getsource(loss)
