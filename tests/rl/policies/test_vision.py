"""Policies that see: what tells them, what goes with their weights, and what is refused before anything starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl.content import decode_image
from rl.policies.config import PolicyConfig
from rl.policies.policy import PROCESSOR, create_policy, load_policy, save_policy
from rl.policies.vision import Vision, load_vision
from tests.rl.seeing import TOKENS_A_TILE, make_seeing_policy
from tests.rl.seeing_tools import noise
from warehouse.digests import digest_bytes
from warehouse.errors import RequestError
from warehouse.records import Image


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing_policy(tmp_path_factory.mktemp("seeing") / "policy")


def image(seed: int, width: int, height: int) -> Image:
    data = noise(seed, width, height)
    return Image(digest_bytes(data), "image/png", width, height, data)


def seeing(folder: Path) -> Vision:
    found = load_vision(folder)
    assert found is not None
    return found


def changed(policy: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of `policy` with another config.json."""
    shutil.copytree(policy, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_image_processor_is_saved_with_the_weights(policy: Path, tmp_path: Path) -> None:
    adopted = create_policy(PolicyConfig(path=str(policy)), [], [], tmp_path / "adopted", seed=1)
    model, tokenizer = load_policy(adopted)
    save_policy(model, tokenizer, tmp_path / "saved")
    shown = decode_image(noise(1), "image/png")
    assert seeing(tmp_path / "saved").placeholders(shown) == seeing(policy).placeholders(shown)
    assert "<search>" in tokenizer.get_vocab(), "the tags are added"


def test_a_processor_that_is_missing_or_of_another_policy_is_refused(policy: Path, tmp_path: Path) -> None:
    other = changed(policy, tmp_path / "other", lambda config: config.update(image_token_id=5))
    with pytest.raises(RequestError, match=r"token \d+; its config.json says 5"):
        load_vision(other)
    shutil.copytree(policy, tmp_path / "bare")
    for name in PROCESSOR:
        (tmp_path / "bare" / name).unlink(missing_ok=True)
    with pytest.raises(RequestError, match=r"image processor .* cannot be loaded"):
        load_vision(tmp_path / "bare")


def test_there_are_as_many_placeholders_as_vectors_that_the_model_makes(policy: Path) -> None:
    vision, (model, _) = seeing(policy), load_policy(policy)
    images = [image(1, 50, 40), image(2, 20, 64), image(3, 300, 10), image(4, 1, 1)]
    ids = [vision.placeholders(decode_image(each.data, each.media_type)) for each in images]
    counts = [each.count(vision.placeholder_id) // TOKENS_A_TILE for each in ids]
    assert counts == [5, 3, 3, 5]
    with torch.no_grad():
        vectors = model.get_image_features(**vision.inputs(images)).pooler_output
    assert vectors.shape[0] * vectors.shape[1] == sum(counts) * TOKENS_A_TILE
