"""Images in what tools return, under a chat template: the markup that it puts around one, and the placeholders in its middle.

A template is asked once, at start-up, what it writes for a result of text, an image and text. It writes a marker for the image; the
policy's processor writes that marker out as placeholders, and these are the tokens that engine and learner see. What the dialect
writes, with the marker in their place, is held against the template's whole rendering.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rl.content import ContentPart, ImagePart, PlacedImage, collapsed
from rl.dialect import ContentRefused, Cut, Reply
from rl.dialects.layout import NAME, PROBE_TOOL, RESULT, calling, replies, returned
from rl.dialects.templates import ChatTemplate, Filter, Message, Piece, Slot, TemplateRefused, slot
from rl.images import check_count, decode_image
from rl.policies.vision import Vision
from warehouse.digests import digest_bytes
from warehouse.records import Image

_TEXT = 10_000
"""The number of the first slot that a text of a result is put into."""
_PROBES = ("see \n", " 3 < 4")
_PROBE_IMAGE = Image("", "", 0, 0, b"")


@dataclass(frozen=True, slots=True)
class Picture:
    """An image in a result, with the token ids that stand for it."""

    image: Image
    ids: tuple[int, ...]


Part = str | Picture
"""What results are made of: texts from outside, and images between them."""


class Pictures:
    """How one template shows the images of one policy; `change` is what it does to the texts of results."""

    def __init__(self, template: ChatTemplate, vision: Vision, change: Filter) -> None:
        self._template, self._vision, self._change = template, vision, change
        self.refusal: str | None = None
        self._around = ("", "")
        try:
            self._around = _markup_of(template, vision.marker)
            self._prove()
        except TemplateRefused as error:
            self.refusal = str(error)

    def parts(self, parts: Sequence[ContentPart], cut: Cut) -> list[Part]:
        """The texts of a result, cut together, and its images, which stand whole.

        Raises:
            ContentRefused: where the template shows no images.
            ImageFault: where an image cannot be decoded, or the policy's processor does not take it.
        """
        if self.refusal is not None:
            raise ContentRefused(f"a tool returned an image, and the policy's chat template cannot be used with them: {self.refusal}")
        found: list[Part] = []
        check_count(sum(isinstance(part, ImagePart) for part in parts))
        for part in parts:
            if isinstance(part, ImagePart):
                found.append(self._picture(part))
            elif found and isinstance(found[-1], str):
                found[-1] += part.text
            else:
                found.append(part.text)
        return self._cut(found, cut)

    def write(self, start: Iterable[int], pieces: Iterable[Piece], texts: Mapping[int, str], results: Sequence[Sequence[Part]]) -> Reply:
        """The reply that begins with the ids `start`: the template's `pieces`, with `texts` and the parts of `results` in their slots."""
        writing = _Writing(self._template, start, texts)
        for piece in pieces:
            if not isinstance(piece, Slot) or piece.number < RESULT:
                writing.markup(piece)
                continue
            for part in results[piece.number - RESULT]:
                if isinstance(part, str):
                    writing.text(part)
                else:
                    writing.markup(self._around[0])
                    writing.picture(part, self._vision.placeholder_id)
                    writing.markup(self._around[1])
        writing.encode()
        return Reply(tuple(writing.ids), tuple(writing.images))

    def _picture(self, part: ImagePart) -> Picture:
        pixels = decode_image(part.data, part.media_type)
        image = Image(digest_bytes(part.data), part.media_type, pixels.width, pixels.height, part.data)
        return Picture(image, self._vision.placeholders(pixels))

    def _cut(self, parts: Sequence[Part], cut: Cut) -> list[Part]:
        """`parts` whose texts stand in `cut.max_tokens` together: the first are kept, or the last where the cut is on the left."""
        room, kept = cut.max_tokens, list[Part]()
        for part in reversed(parts) if cut.side == "left" else parts:
            if isinstance(part, str):
                part = self._template.plain.cut(part, Cut(room, cut.side)) if room > 0 else ""
                room -= len(self._template.plain.ids(part))
                part = self._change(part)
            kept.append(part)
        return kept[::-1] if cut.side == "left" else kept

    def _prove(self) -> None:
        """See that a result with an image is written as the template would write it."""
        message = {**returned(0, "lookup", ""), "content": _content(*_PROBES)}
        whole = self._template.whole([_ASKED, calling([("lookup", "a")]), message], [PROBE_TOOL], generate=True)
        before, behind = map(self._change, _PROBES)
        parts: list[Part] = [before, Picture(_PROBE_IMAGE, (self._vision.placeholder_id,) * 2), behind]
        reply = self.write((), replies(self._template, 1)[1], {NAME: "lookup"}, [parts])
        ours = tuple(collapsed(reply.ids, reply.images))
        rendered = whole[-len(ours) :]
        if rendered != ours:
            shown, read = map(self._template.decode, (rendered, ours))
            raise TemplateRefused(f"a result with an image is rendered as {shown!r} and was {read!r}")


class _Writing:
    """A reply under way, as ids; what is pending is encoded together, as a whole rendering would be."""

    def __init__(self, template: ChatTemplate, ids: Iterable[int], texts: Mapping[int, str]) -> None:
        self.ids = list(ids)
        self.images: list[PlacedImage] = []
        self._template, self._texts = template, dict(texts)
        self._pending: list[Piece] = []

    def markup(self, piece: Piece) -> None:
        """Add what the template writes."""
        self._pending.append(piece)

    def text(self, text: str) -> None:
        """Add a text from outside."""
        number = _TEXT + len(self._texts)
        self._texts[number] = text
        self._pending.append(Slot(number))

    def picture(self, picture: Picture, marker_id: int) -> None:
        """Add an image's placeholders."""
        self.encode()
        self.images.append(PlacedImage(picture.image, len(self.ids), len(picture.ids), marker_id))
        self.ids += picture.ids

    def encode(self) -> None:
        """Make ids of what is pending."""
        self.ids += self._template.encode(self._pending, self._texts)
        self._pending.clear()


_ASKED: Message = {"role": "user", "content": "a"}


def _content(before: str, behind: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": behind}]


def _markup_of(template: ChatTemplate, marker: str) -> tuple[str, str]:
    """What the template writes before and behind the marker of an image in a result.

    Raises:
        TemplateRefused: where it writes none.
    """
    message = {**returned(0, "lookup", ""), "content": _content(slot(0), slot(1))}
    text = template.render([_ASKED, calling([("lookup", "a")]), message], [PROBE_TOOL], generate=True)
    markup = text.partition(slot(0))[2].partition(slot(1))[0]
    if markup.count(marker) != 1:
        raise TemplateRefused(f"it does not write {marker} for an image in what a tool returns")
    before, _, behind = markup.partition(marker)
    return before, behind
