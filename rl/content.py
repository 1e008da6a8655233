"""Multimodal content: text and image parts, image placeholders among token ids, and decoding of untrusted images.

Images from tools are untrusted: only the decoder of their media type runs (Pillow), the header's size is checked against `MAX_PIXELS`
before any pixel is decoded, and every decoder error becomes an `ImageFault`.
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
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An encoded image; `media_type` is, for example, `image/png`."""

    data: bytes
    media_type: str


ContentPart = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image whose `length` placeholder tokens start at `start`.

    An engine receives one `marker_id` instead; its own processor expands that to the placeholders.
    """

    image: Image
    start: int
    length: int
    marker_id: int


def collapse_images(ids: Sequence[int], images: Iterable[PlacedImage]) -> list[int]:
    """`ids` with one marker in place of each image's placeholders; `images` in order."""
    kept: list[int] = []
    end = 0
    for placed in images:
        kept += [*ids[end : placed.start], placed.marker_id]
        end = placed.start + placed.length
    return kept + list(ids[end:])


def text_of(parts: Iterable[ContentPart]) -> str:
    """The text of the parts; an image is shown as media type and size."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.media_type}, {len(part.data)} bytes]" for part in parts)


def mended(text: str) -> str:
    """The text with `?` in place of unpaired surrogates, which tokenizers and tables refuse."""
    return text.encode("utf-8", "replace").decode()


MAX_PIXELS = 4096 * 4096
"""Width times height of the largest image that is decoded: 48 MiB of pixels."""
MAX_IMAGES = 16
"""Images per tool result: a file of a hundred bytes can cost a model as much as a photograph."""
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}
"""Accepted media types and their decoders."""


class ImageFault(ValueError):
    """The bytes are not a valid image of their media type, or too large; the tool is at fault, not the policy."""


def decode_image(data: bytes, media_type: str) -> PIL.Image.Image:
    """The first frame in `data` as RGB, transparent areas on white. Raises ImageFault."""
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
    """Raises ImageFault when a result holds too many images."""
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
