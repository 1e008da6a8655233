"""Images in tool results under a chat template: the markup around an image and the placeholders inside it.

At start-up the template renders a result of text, image and text. It writes a marker for the image, which the policy's processor expands
into placeholders; these are the tokens that engine and learner see. The dialect's rendering, with the marker restored, must equal the
template's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rl.content import ContentPart, ImagePart, PlacedImage, check_count, collapse_images, decode_image
from rl.policies.vision import Vision
from rl.renderers.base import ContentRefused, Reply, Truncation
from rl.renderers.chat_template import ChatTemplate, Filter, Message, Piece, Slot, TemplateRefused, slot
from rl.renderers.layout import NAME, PROBE_TOOL, RESULT, call_message, reply_markup, tool_message
from warehouse.digests import digest_bytes
from warehouse.records import Image

_FIRST_TEXT = 10_000
"""First slot number for texts of a result."""
_PROBES = ("see \n", " 3 < 4")
_PROBE_IMAGE = Image("", "", 0, 0, b"")


@dataclass(frozen=True, slots=True)
class RenderedImage:
    """An image in a result and its token ids."""

    image: Image
    ids: tuple[int, ...]


Part = str | RenderedImage
"""Results consist of outside texts and images."""


class ImageRenderer:
    """How one template shows the images of one policy; `text_filter` is its filter for result texts."""

    def __init__(self, template: ChatTemplate, vision: Vision, text_filter: Filter) -> None:
        self._template, self._vision, self._text_filter = template, vision, text_filter
        self.refusal: str | None = None
        self._markup = ("", "")
        try:
            self._markup = _image_markup(template, vision.marker)
            self._check()
        except TemplateRefused as error:
            self.refusal = str(error)

    def parts(self, parts: Sequence[ContentPart], cut: Truncation) -> list[Part]:
        """Texts of a result, truncated together, and its images, which are never truncated.

        Raises:
            ContentRefused: the template shows no images.
            ImageFault: an image cannot be decoded, or the processor rejects it.
        """
        if self.refusal is not None:
            raise ContentRefused(f"a tool returned an image, and the policy's chat template cannot be used with them: {self.refusal}")
        found: list[Part] = []
        check_count(sum(isinstance(part, ImagePart) for part in parts))
        for part in parts:
            if isinstance(part, ImagePart):
                found.append(self._render_image(part))
            elif found and isinstance(found[-1], str):
                found[-1] += part.text
            else:
                found.append(part.text)
        return self._cut(found, cut)

    def write(self, start: Iterable[int], pieces: Iterable[Piece], texts: Mapping[int, str], results: Sequence[Sequence[Part]]) -> Reply:
        """The reply: ids `start`, then the template's `pieces` with `texts` and the parts of `results` in their slots."""
        ids, images, slots = list(start), list[PlacedImage](), dict(texts)
        pending: list[Piece] = []  # what is encoded together, as a whole rendering would be
        before, behind = self._markup
        for piece in pieces:
            if not isinstance(piece, Slot) or piece.number < RESULT:
                pending.append(piece)
                continue
            for part in results[piece.number - RESULT]:
                if isinstance(part, str):
                    number = _FIRST_TEXT + len(slots)
                    slots[number] = part
                    pending.append(Slot(number))
                    continue
                ids += self._template.encode([*pending, before], slots)
                images.append(PlacedImage(part.image, len(ids), len(part.ids), self._vision.placeholder_id))
                ids += part.ids
                pending = [behind]
        return Reply((*ids, *self._template.encode(pending, slots)), tuple(images))

    def _render_image(self, part: ImagePart) -> RenderedImage:
        pixels = decode_image(part.data, part.media_type)
        image = Image(digest_bytes(part.data), part.media_type, pixels.width, pixels.height, part.data)
        return RenderedImage(image, self._vision.placeholders(pixels))

    def _cut(self, parts: Sequence[Part], cut: Truncation) -> list[Part]:
        """Parts whose texts fit into `cut.max_tokens` together, kept from the left, or from the right if the cut is on the left."""
        room, kept = cut.max_tokens, list[Part]()
        for part in reversed(parts) if cut.side == "left" else parts:
            if isinstance(part, str):
                part = self._template.plain.cut(part, Truncation(room, cut.side)) if room > 0 else ""
                room -= len(self._template.plain.ids(part))
                part = self._text_filter(part)
            kept.append(part)
        return kept[::-1] if cut.side == "left" else kept

    def _check(self) -> None:
        """Check that a result with an image is rendered as the template would."""
        message = {**tool_message(0, "lookup", ""), "content": _content(*_PROBES)}
        conversation = self._template.tokenize([_ASKED, call_message([("lookup", "a")]), message], [PROBE_TOOL], generate=True)
        before, behind = map(self._text_filter, _PROBES)
        parts: list[Part] = [before, RenderedImage(_PROBE_IMAGE, (self._vision.placeholder_id,) * 2), behind]
        reply = self.write((), reply_markup(self._template, 1)[1], {NAME: "lookup"}, [parts])
        ours = tuple(collapse_images(reply.ids, reply.images))
        rendered = conversation[-len(ours) :]
        if rendered != ours:
            shown, read = map(self._template.decode, (rendered, ours))
            raise TemplateRefused(f"a result with an image is rendered as {shown!r} and was {read!r}")


_ASKED: Message = {"role": "user", "content": "a"}


def _content(before: str, behind: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": behind}]


def _image_markup(template: ChatTemplate, marker: str) -> tuple[str, str]:
    """What the template writes before and after an image marker. Raises TemplateRefused if it writes none."""
    message = {**tool_message(0, "lookup", ""), "content": _content(slot(0), slot(1))}
    text = template.render([_ASKED, call_message([("lookup", "a")]), message], [PROBE_TOOL], generate=True)
    markup = text.partition(slot(0))[2].partition(slot(1))[0]
    if markup.count(marker) != 1:
        raise TemplateRefused(f"it does not write {marker} for an image in what a tool returns")
    before, _, behind = markup.partition(marker)
    return before, behind
