"""The content of observations beside plain text: parts of text and of images, where images stand in token ids, and images as pixels.

It stands apart because environments make parts, dialects render them and engines are given them, and none needs the others for it.
Images of tools are untrusted: only the decoder that their media type names is asked, the size in the header is held
against `MAX_PIXELS` before a pixel is decoded, and whatever the decoder raises is an `ImageFault`. Library: Pillow, which transformers
and vLLM decode with too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

from warehouse.records import Image

if TYPE_CHECKING:
    import PIL.Image


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image as its encoded bytes; `media_type` says how they are encoded, such as `image/png`."""

    data: bytes
    media_type: str


ContentPart = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image among token ids: `length` of them from `start` on are its placeholders, as many as the model's own processor makes of it.

    Engines are given `marker_id`, one token, in the place of these, and put the placeholders in by the same processor.
    """

    image: Image
    start: int
    length: int
    marker_id: int


def collapse_images(ids: Sequence[int], images: Iterable[PlacedImage]) -> list[int]:
    """`ids` with one marker in the place of each image's placeholders; `images` in their order."""
    kept: list[int] = []
    end = 0
    for placed in images:
        kept += [*ids[end : placed.start], placed.marker_id]
        end = placed.start + placed.length
    return kept + list(ids[end:])


def text_of(parts: Iterable[ContentPart]) -> str:
    """The text of parts, an image as its media type and size: what a reader sees who takes no images."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.media_type}, {len(part.data)} bytes]" for part in parts)


def mended(text: str) -> str:
    """The text with a question mark in the place of each half of a surrogate pair, which no tokenizer and no table takes."""
    return text.encode("utf-8", "replace").decode()


MAX_PIXELS = 4096 * 4096
"""Width times height of the largest image that is decoded: 48 MiB of pixels. Every model's own processor makes it smaller than that."""
MAX_IMAGES = 16
"""Images that one result of a tool may hold: a file of a hundred bytes costs a model as much as a photograph."""
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}
"""The media types that are taken, and the decoder of each."""


class ImageFault(ValueError):
    """The bytes are no image of their media type, or one of too many pixels; the tool is at fault, not the policy."""


def decode_image(data: bytes, media_type: str) -> PIL.Image.Image:
    """The pixels in `data` as RGB: of several frames the first, on white where it is transparent.

    Raises:
        ImageFault: there is no such image in it.
    """
    from PIL import Image

    if media_type not in FORMATS:
        raise ImageFault(f"an image of type {media_type!r} is none of {', '.join(FORMATS)}")
    try:
        with Image.open(BytesIO(data), formats=[FORMATS[media_type]]) as image:
            _check_size(*image.size)
            image.load()
            return _on_white(image)
    except ImageFault:
        raise
    except Image.DecompressionBombError as error:
        raise ImageFault(f"an image is larger than the {MAX_PIXELS:,} pixels that are decoded: {error}") from error
    except Exception as error:  # decoders raise errors of a dozen kinds for bytes that were made to break them
        raise ImageFault(f"the bytes of an image are not {media_type}, as it says: {type(error).__name__}: {error}"[:300]) from error


def check_count(images: int) -> None:
    """Raises `ImageFault` for more images than one result may hold."""
    if images > MAX_IMAGES:
        raise ImageFault(f"a result holds {images} images, and {MAX_IMAGES} are the most")


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageFault(f"an image of {width} x {height} pixels is larger than the {MAX_PIXELS:,} pixels that are decoded")


def _on_white(image: PIL.Image.Image) -> PIL.Image.Image:
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    opaque = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque).convert("RGB")
