"""Image inputs of policies: placeholder tokens and pixels, both from the policy's own processor, which its engine uses too.

The pixel layout of several images depends on the model family; policies outside `FAMILIES` are used with text only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.content import ImageFault, decode_image
from warehouse.errors import RequestError
from warehouse.records import Image

if TYPE_CHECKING:
    import PIL.Image
    from torch import Tensor

FAMILIES = ("idefics3",)
"""Supported `model_type`s: Idefics3, which includes SmolVLM."""
_PIXELS = ("pixel_values", "pixel_attention_mask")


class Vision:
    """Image processing of one policy.

    Attributes:
        marker: text that a chat template writes for an image.
        placeholder_id: token of the marker, repeated once per image vector.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._lock = threading.Lock()  # its tokenizer is not thread-safe
        self.marker: str = processor.image_token
        self.placeholder_id: int = processor.image_token_id

    def placeholders(self, image: PIL.Image.Image) -> tuple[int, ...]:
        """Token ids for `image`, delimited by control tokens. Raises ImageFault if the processor rejects it."""
        try:
            with self._lock:
                ids = self._processor(images=[image], text=self.marker, add_special_tokens=False)["input_ids"][0]
        except (ValueError, ZeroDivisionError) as error:
            raise ImageFault(
                f"the policy's processor does not accept an image of {image.width} x {image.height} pixels: {error}"
            ) from error
        return tuple(map(int, ids))

    def inputs(self, images: Sequence[Image]) -> dict[str, Tensor]:
        """Pixel inputs of a batch, for all `images` in the order of their placeholders.

        `pixel_values` (1, tiles, channels, height, width) and `pixel_attention_mask` (1, tiles, height, width).
        """
        pixels = [decode_image(image.data, image.media_type) for image in images]
        with self._lock:
            found = self._processor.image_processor([pixels], return_tensors="pt")
        return {name: found[name] for name in _PIXELS}


def has_vision(folder: Path) -> bool:
    """Whether the policy in `folder` takes images and is of a supported family."""
    return _config(folder).get("model_type") in FAMILIES


def load_vision(folder: Path) -> Vision | None:
    """Load the `Vision` of the policy in `folder`; None if it takes no images. Raises RequestError for a missing or unfit processor."""
    if not has_vision(folder):
        return None
    from transformers import AutoProcessor

    try:
        vision = Vision(AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False))  # type: ignore[no-untyped-call]
    except (OSError, ValueError, ImportError, AttributeError) as error:
        raise RequestError(f"the image processor of the policy in {folder} cannot be loaded: {error}.") from error
    expected = _config(folder).get("image_token_id")
    if vision.placeholder_id != expected:
        raise RequestError(f"the processor in {folder} encodes images as token {vision.placeholder_id}; its config.json says {expected}.")
    return vision


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.is_file() else {}
