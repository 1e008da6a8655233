"""Images from outside: good ones as pixels, and hostile ones as faults that cost little."""

from __future__ import annotations

import resource
import struct
import zlib
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rl.content import FORMATS, ImageFault, decode_image
from tests.rl.hostile_images import png

MIB = 2**10  # of the kilobytes that the kernel counts memory in


def _gif(width: int, height: int, frame: int) -> bytes:
    screen = struct.pack("<HH", width, height) + b"\x80\0\0" + bytes(6)
    return b"GIF89a" + screen + b"," + struct.pack("<HHHH", 0, 0, frame, frame) + b"\0\x02\x02\x4c\x01\0;"


ZEROS = zlib.compress(bytes(50_000_000), 9)
"""50 MB in 50 kB."""
HOSTILE = {
    "a bomb of pixels": (png(60_000, 60_000), "image/png"),
    "a smaller bomb of pixels": (png(8_000, 8_000), "image/png"),
    "a bomb of text": (png(10, 10, bytes(310), (b"zTXt", b"a\0\0" + ZEROS)), "image/png"),
    "a bomb of colours": (png(10, 10, bytes(310), (b"iCCP", b"a\0\0" + ZEROS)), "image/png"),
    "a stump": (png(100, 100, bytes(10)), "image/png"),
    "no width": (png(0, 10), "image/png"),
    "a huge screen": (_gif(65_535, 65_535, 1), "image/gif"),
    "a frame beyond the screen": (_gif(10, 10, 65_535), "image/gif"),
    "a huge canvas": (
        b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0" + (2**24 - 1).to_bytes(3, "little") + (255).to_bytes(3, "little"),
        "image/webp",
    ),
    "a program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/png"),
    "another kind": (b"GIF89a", "image/png"),
    "an unknown kind": (b"<svg/>", "image/svg+xml"),
    "nothing": (b"", "image/jpeg"),
}


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("media_type", FORMATS)
def test_every_kind_is_decoded_to_rgb(media_type: str) -> None:
    data = encoded(Image.new("RGB", (5, 3), (200, 100, 50)), FORMATS[media_type])
    image = decode_image(data, media_type)
    assert (image.mode, image.size) == ("RGB", (5, 3))
    assert all(abs(got - wanted) < 12 for got, wanted in zip(image.getpixel((1, 1)), (200, 100, 50), strict=True))


def test_transparent_places_are_white_and_of_frames_the_first_is_taken() -> None:
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert decode_image(encoded(clear, "PNG"), "image/png").getpixel((0, 0)) == (255, 255, 255)
    frames = [Image.new("RGB", (2, 2), color) for color in ("red", "blue")]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(moving, "image/gif").getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bytes_are_a_fault_and_take_no_memory(what: str) -> None:
    data, media_type = HOSTILE[what]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ImageFault):
        decode_image(data, media_type)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * MIB


@given(st.binary(max_size=200), st.sampled_from(sorted(FORMATS)), st.integers(0, 100))
@pytest.mark.slow
def test_any_bytes_are_an_image_or_a_fault(noise: bytes, media_type: str, place: int) -> None:
    good = encoded(Image.new("RGB", (4, 4), "red"), FORMATS[media_type])
    for tried in (noise, good[:place] + noise + good[place:], good[:place]):
        try:
            decode_image(tried, media_type)
        except ImageFault:
            continue
