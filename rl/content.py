"""Multimodal content: text and image parts, image placeholders among token ids, and safe decoding of images.

Images from tools are untrusted: only the Pillow decoder of their media type runs, the size in the header is checked against `MAX_PIXELS`
before pixels are decoded, and any decoder error becomes an `ImageFault`.
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
    """An encoded image; `media_type` is a MIME type such as `image/png`."""

    data: bytes
    media_type: str


ContentPart = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image whose `length` placeholder tokens start at `start`.

    Engines receive a single `marker_id` instead, which their processor expands to the placeholders.
    """

    image: Image
    start: int
    length: int
    marker_id: int


def collapse_images(ids: Sequence[int], images: Iterable[PlacedImage]) -> list[int]:
    """Replace each image's placeholders in `ids` by its marker; `images` must be in order."""
    kept: list[int] = []
    end = 0
    for placed in images:
        kept += [*ids[end : placed.start], placed.marker_id]
        end = placed.start + placed.length
    return kept + list(ids[end:])


def text_of(parts: Iterable[ContentPart]) -> str:
    """Join the parts as text; an image is rendered as its media type and size in bytes."""
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.media_type}, {len(part.data)} bytes]" for part in parts)


def mended(text: str) -> str:
    """Replace unpaired surrogates, which tokenizers and tables reject, by `?`."""
    return text.encode("utf-8", "replace").decode()


MAX_PIXELS = 4096 * 4096
"""Maximum width times height of a decoded image: 48 MiB of RGB pixels."""
MAX_IMAGES = 16
"""Maximum images per tool result; a tiny file can cost a model as many tokens as a photograph."""
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}
"""Accepted media types and their Pillow decoders."""


class ImageFault(ValueError):
    """The bytes are not a valid image of their media type, or exceed a limit. A fault of the tool, not of the policy."""


def decode_image(data: bytes, media_type: str) -> PIL.Image.Image:
    """Decode the first frame of `data` to RGB, with transparency over white. Raises ImageFault."""
    from PIL import Image

    if media_type not in FORMATS:
        raise ImageFault(f"an image has the type {media_type!r}; supported are {', '.join(FORMATS)}")
    try:
        with Image.open(BytesIO(data), formats=[FORMATS[media_type]]) as image:
            _check_size(*image.size)
            image.load()
            return _on_white(image)
    except ImageFault:
        raise
    except Image.DecompressionBombError as error:
        raise ImageFault(f"an image exceeds the limit of {MAX_PIXELS:,} pixels: {error}") from error
    except Exception as error:  # decoders raise many exception types on malicious bytes
        raise ImageFault(f"an image cannot be decoded as {media_type}: {type(error).__name__}: {error}"[:300]) from error


def check_count(images: int) -> None:
    """Raise ImageFault if a tool result holds more than `MAX_IMAGES` images."""
    if images > MAX_IMAGES:
        raise ImageFault(f"a result contains {images} images; the limit is {MAX_IMAGES}")


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageFault(f"an image of {width} x {height} pixels exceeds the limit of {MAX_PIXELS:,} pixels")


def _on_white(image: PIL.Image.Image) -> PIL.Image.Image:
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    opaque = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque).convert("RGB")
