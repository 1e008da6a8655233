"""Images for policies that take them: the tokens that stand for an image in a context, and the pixels that the model is given.

Both come from the policy's own processor (transformers), which its engine asks too. How the pixels of several images lie together in a
model's inputs depends on its family; the families known here are `FAMILIES`. Other models of text and images are used for text alone.
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
"""By the `model_type` of their configuration: Idefics3, which SmolVLM is too."""
_PIXELS = ("pixel_values", "pixel_attention_mask")


class Vision:
    """The images of one policy.

    Attributes:
        marker: what a chat template writes for an image, and the processor writes out.
        placeholder_id: the token that the marker is, and that stands once for each vector that the model makes of an image.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._lock = threading.Lock()  # its tokenizer is not safe for threads
        self.marker: str = processor.image_token
        self.placeholder_id: int = processor.image_token_id

    def placeholders(self, image: PIL.Image.Image) -> tuple[int, ...]:
        """The token ids that stand for `image`; the first and the last are control tokens, so that no text around them matters.

        Raises:
            ImageFault: where the processor does not take it.
        """
        try:
            with self._lock:
                ids = self._processor(images=[image], text=self.marker, add_special_tokens=False)["input_ids"][0]
        except (ValueError, ZeroDivisionError) as error:
            raise ImageFault(f"the policy's processor does not take an image of {image.width} x {image.height} pixels: {error}") from error
        return tuple(map(int, ids))

    def inputs(self, images: Sequence[Image]) -> dict[str, Tensor]:
        """The model's inputs beside the token ids of a batch: the pixels of all its `images`, in the order of their placeholders.

        `pixel_values` have the shape (1, tiles, channels, height, width) and `pixel_attention_mask` (1, tiles, height, width): the model
        lays the vectors of all tiles in order where the placeholders of the whole batch stand.
        """
        pixels = [decode_image(image.data, image.media_type) for image in images]
        with self._lock:
            found = self._processor.image_processor([pixels], return_tensors="pt")
        return {name: found[name] for name in _PIXELS}


def has_vision(folder: Path) -> bool:
    """Whether the policy in `folder` is one of text and images, of a family that is known here."""
    return _config(folder).get("model_type") in FAMILIES


def load_vision(folder: Path) -> Vision | None:
    """The `Vision` of the policy in `folder`; None where it takes no images.

    Raises:
        RequestError: where its processor is not there or does not go with it.
    """
    if not has_vision(folder):
        return None
    from transformers import AutoProcessor

    try:
        vision = Vision(AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False))  # type: ignore[no-untyped-call]
    except (OSError, ValueError, ImportError, AttributeError) as error:
        raise RequestError(f"{folder} holds a policy that sees, and its processor of images cannot be loaded: {error}.") from error
    expected = _config(folder).get("image_token_id")
    if vision.placeholder_id != expected:
        raise RequestError(f"the processor in {folder} writes images as token {vision.placeholder_id}; its config.json says {expected}.")
    return vision


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.is_file() else {}
