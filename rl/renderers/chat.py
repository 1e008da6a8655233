"""Dialect of a pretrained model: its own chat template, with tool calls in the format it was trained on.

The prompt is rendered once and then only extended: by sampled ids, the template's markup around results, and its generation prompt. A
message without a call is the answer, and so is a call of a tool named `answer`.

`prove` checks at start-up that extending equals rendering the whole conversation. It renders conversations with calls, parallel calls,
thoughts, answers and an unparsable message as a whole; each must start with everything appended so far, continue with a message that parses
as the given calls, and end with the ids that the dialect appends. A template that strips or edits earlier thoughts fails here.

For images in tool results, the template renders a result of text, image and text at start-up. It writes a marker for the image, which the
policy's processor expands into placeholders, the tokens that engine and learner see.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl.content import ContentPart, ImagePart, PlacedImage, check_count, collapse_images, decode_image
from rl.policies.vision import Vision
from rl.renderers.base import (
    Action,
    ActionTurn,
    ContentRefused,
    NotExpressible,
    ParseError,
    Reply,
    Result,
    Schema,
    Truncation,
    holds_image,
    named_arguments,
    text_of,
)
from rl.renderers.chat_template import (
    ARGUMENT_NAME,
    NAME,
    PROBE_TOOL,
    QUESTION,
    RESULT,
    ChatTemplate,
    Filter,
    Message,
    Piece,
    Slot,
    TemplateRefused,
    Thoughts,
    assistant_message,
    call_message,
    find_layout,
    reply_markup,
    slot,
    tool_message,
)
from rl.renderers.tool_parsers import named_calls, read_json_calls
from warehouse.digests import digest, digest_bytes
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Image

_FIRST_TEXT = 10_000
"""First slot number for texts of a result."""
_PROBES = ("see \n", " 3 < 4")
_PROBE_IMAGE = Image("", "", 0, 0, b"")


@dataclass(frozen=True, slots=True)
class RenderedImage:
    """An image in a result and its token ids."""

    image: Image
    ids: tuple[int, ...]


ResultPart = str | RenderedImage
"""Results consist of untrusted texts and images."""


class ImageRenderer:
    """How a template shows the images of a policy; `text_filter` is its filter for result texts."""

    def __init__(self, template: ChatTemplate, vision: Vision, text_filter: Filter) -> None:
        self._template, self._vision, self._text_filter = template, vision, text_filter
        self.refusal: str | None = None
        self._markup = ("", "")
        try:
            self._markup = _image_markup(template, vision.marker)
            self._check()
        except TemplateRefused as error:
            self.refusal = str(error)

    def parts(self, parts: Sequence[ContentPart], cut: Truncation) -> list[ResultPart]:
        """Texts of a result, truncated together, and its images, which are never truncated.

        Raises:
            ContentRefused: the template cannot show images.
            ImageFault: an image cannot be decoded, or the processor rejects it.
        """
        if self.refusal is not None:
            raise ContentRefused(f"a tool returned an image, and the policy's chat template cannot be used with images: {self.refusal}")
        found: list[ResultPart] = []
        check_count(sum(isinstance(part, ImagePart) for part in parts))
        for part in parts:
            if isinstance(part, ImagePart):
                found.append(self._render_image(part))
            elif found and isinstance(found[-1], str):
                found[-1] += part.text
            else:
                found.append(part.text)
        return self._cut(found, cut)

    def write(
        self, start: Iterable[int], pieces: Iterable[Piece], texts: Mapping[int, str], results: Sequence[Sequence[ResultPart]]
    ) -> Reply:
        """The reply: ids `start`, then the template's `pieces` with their slots filled."""
        ids, images, slots = list(start), list[PlacedImage](), dict(texts)
        pending: list[Piece] = []  # encoded together, as in a full rendering
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

    def _cut(self, parts: Sequence[ResultPart], cut: Truncation) -> list[ResultPart]:
        """Truncate the texts together to `cut.max_tokens`, filling from the left, or from the right if the cut is on the left."""
        room, kept = cut.max_tokens, list[ResultPart]()
        for part in reversed(parts) if cut.side == "left" else parts:
            if isinstance(part, str):
                part = self._template.plain.cut(part, Truncation(room, cut.side)) if room > 0 else ""
                room -= len(self._template.plain.ids(part))
                part = self._text_filter(part)
            kept.append(part)
        return kept[::-1] if cut.side == "left" else kept

    def _check(self) -> None:
        """Check that a result with an image is rendered as the template does."""
        message = {**tool_message(0, "lookup", ""), "content": _probe_content(*_PROBES)}
        conversation = self._template.tokenize([_PROBE_QUESTION, call_message([("lookup", "a")]), message], [PROBE_TOOL], generate=True)
        before, behind = map(self._text_filter, _PROBES)
        parts: list[ResultPart] = [before, RenderedImage(_PROBE_IMAGE, (self._vision.placeholder_id,) * 2), behind]
        reply = self.write((), reply_markup(self._template, 1)[1], {NAME: "lookup"}, [parts])
        ours = tuple(collapse_images(reply.ids, reply.images))
        rendered = conversation[-len(ours) :]
        if rendered != ours:
            shown, read = map(self._template.decode, (rendered, ours))
            raise TemplateRefused(f"a result with an image is rendered as {shown!r}, but appended as {read!r}")


_PROBE_QUESTION: Message = {"role": "user", "content": "a"}


def _probe_content(before: str, behind: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": behind}]


def _image_markup(template: ChatTemplate, marker: str) -> tuple[str, str]:
    """What the template writes before and after an image marker. Raises TemplateRefused if it writes none."""
    message = {**tool_message(0, "lookup", ""), "content": _probe_content(slot(0), slot(1))}
    text = template.render([_PROBE_QUESTION, call_message([("lookup", "a")]), message], [PROBE_TOOL], generate=True)
    markup = text.partition(slot(0))[2].partition(slot(1))[0]
    if markup.count(marker) != 1:
        raise TemplateRefused(f"it does not write {marker} for an image in a tool result")
    before, _, behind = markup.partition(marker)
    return before, behind


class ChatDialect:
    """Dialect of one chat template; `system` is a message before the question, `vision` is set if the policy takes images.

    Raises:
        RequestError: the template cannot be used with tool calls.
    """

    def __init__(self, template: ChatTemplate, system: str | None = None, vision: Vision | None = None) -> None:
        try:
            self.layout = find_layout(template)
        except TemplateRefused as error:
            raise RequestError(f"the policy's chat template cannot be used with tools: {error}.") from error
        self.template = template
        self.images = None if vision is None else ImageRenderer(template, vision, self.layout.result_filter)
        self.placeholder_id = None if vision is None else vision.placeholder_id
        self.system_messages: tuple[Message, ...] = () if system is None else ({"role": "system", "content": system},)
        self._end_ids = {template.special[stop] for stop in (self.layout.call_stop, self.layout.answer_stop)}
        self._control_ids = frozenset(template.special.values())
        self._prompts: dict[str, tuple[Piece, ...]] = {}
        self._replies: dict[int, tuple[Piece, ...]] = {}
        self.stop_token_ids = tuple(sorted(self._end_ids | template.plain.end))

    def prompt_ids(self, question: str, seen: str = "", tools: Sequence[Schema] = (), cut: Truncation | None = None) -> tuple[int, ...]:
        """System message, tools and question; `seen` follows the question.

        Raises:
            RequestError: a tool's schema contains a control token, or the template cannot show it.
        """
        if seen:
            question = f"{question}\n\n{seen if cut is None else self.template.plain.cut(seen, cut)}"
        return self.template.encode(self._prompt(tools), {QUESTION: self.layout.question_filter(question)})

    def action_ids(self, turn: ActionTurn, tools: Sequence[Schema] = ()) -> tuple[int, ...]:
        """The assistant message as the template writes it after its generation prompt.

        A thought goes where the template has a place for it: as reasoning, or as text before calls. Text before an answer would become part
        of the answer.
        """
        calls: list[tuple[str, Any]] = [
            (call.tool, named_arguments(call.tool, call.arguments, tools)) for call in turn.calls if call.tool != ANSWER
        ]
        answers = [call.arguments.strip() for call in turn.calls if call.tool == ANSWER]
        if len(answers) + bool(calls) > 1:
            raise NotExpressible("with a chat template an answer must be a separate message")
        answer = answers[0] if answers else None
        ids = self._written(calls, answer, turn.think)
        read, wanted = self.parse(ids, tools), calls or [(ANSWER, answer)]
        if turn.calls and (isinstance(read, ParseError) or [_content(call) for call in read.calls] != wanted):
            raise NotExpressible(f"the message would be parsed differently: {read}"[:300])
        return ids

    def text_ids(self, text: str, is_document: bool = False) -> tuple[int, ...]:
        return self.template.plain.ids(text)

    def parse(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        """Parse a finished message without special tokens inside. Accepts plain JSON calls in any format (`rl.renderers.tool_parsers`)."""
        if not action_ids or action_ids[-1] not in self.stop_token_ids:
            return ParseError("the message was not ended")
        if not self._control_ids.isdisjoint(action_ids[:-1]):
            return ParseError("a control token inside the message")
        text = self.decode(action_ids[:-1])
        opened = self.layout.opens_thought
        turn = self.layout.parser(text, tools, opened)
        if isinstance(turn, ParseError) or turn.calls[0].tool == ANSWER:
            turn = read_json_calls(text, tools, opened) or turn
        if isinstance(turn, ActionTurn) and len(turn.calls) > 1 and not self.layout.parallel_calls:
            return ParseError("only one call is possible in a message")
        return turn

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> tuple[int, ...]:
        """Results as tool messages; an unfinished message is ended first. The truncation applies to text only."""
        texts = [self._text(result, cut) for result in results]
        end, names, pieces = self._reply_markup(action_ids, len(results))
        return end + self.template.encode(pieces, names | dict(enumerate(texts, start=RESULT)))

    def reply(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> Reply:
        """Like `reply_ids`, with images if the policy takes them."""
        if self.images is None or not any(map(holds_image, results)):
            return Reply(self.reply_ids(action_ids, results, cut))
        parts = [self.images.parts(each.parts, cut) if holds_image(each) else [self._text(each, cut)] for each in results]
        end, names, pieces = self._reply_markup(action_ids, len(results))
        return self.images.write(end, pieces, names, parts)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.template.decode(token_ids)

    def _written(self, calls: Sequence[tuple[str, dict[str, Any]]], answer: str | None, thought: str | None) -> tuple[int, ...]:
        """Ids of an assistant message after the generation prompt, including its stop token.

        Texts are rendered in place, so a text with a control token is rejected. Some templates render an empty thought differently from
        their generation prompt; it is then written as content.
        """
        forms: list[Thoughts] = [self.layout.thoughts, "tagged"] if thought is None else [self.layout.thoughts]
        stop = self.layout.call_stop if calls else self.layout.answer_stop
        asked: list[Message] = [*self.system_messages, {"role": "user", "content": "a"}]
        replies = [tool_message(number, name, "b") for number, (name, _) in enumerate(calls)]
        try:
            self.template.refuse_spelled(json.dumps([calls, answer, thought], ensure_ascii=False))
            begun = self.template.render(asked, (), generate=True)
            for form in forms:
                message = assistant_message(calls, answer, thought, form)
                text = self.template.render([*asked, message, *replies], (), generate=bool(calls))
                if text.startswith(begun):
                    return self.template.encode([text[len(begun) :].partition(stop)[0] + stop], {})
        except TemplateRefused as error:
            raise NotExpressible(f"the policy's chat template cannot write the message: {error}") from error
        raise NotExpressible("the policy's chat template does not begin such a message with its own generation prompt")

    def _text(self, result: Result, cut: Truncation) -> str:
        return self.layout.result_filter(self.template.plain.cut(text_of(result), cut))

    def _reply_markup(self, action_ids: Sequence[int], count: int) -> tuple[tuple[int, ...], dict[int, str], tuple[Piece, ...]]:
        """Markup around an action's results: the token that ends an unfinished action, the tools' names, and the pieces."""
        turn = self.parse(action_ids)
        names = [] if isinstance(turn, ParseError) else [call.tool for call in turn.calls]
        if names in ([], [ANSWER]):  # tools are unknown here, but plain JSON calls carry names
            text = self.decode(action_ids).removesuffix(self.decode(action_ids[-1:]))
            named = named_calls(text, self.layout.opens_thought)
            names = named if len(named) == count else names
        ended = bool(action_ids) and action_ids[-1] in self._end_ids
        pieces = self._reply_pieces(len(names)) if names else self.layout.correction
        return () if ended else (self.template.special[self.layout.call_stop],), dict(enumerate(names, start=NAME)), pieces

    def _prompt(self, tools: Sequence[Schema]) -> tuple[Piece, ...]:
        """Prompt pieces, rendered once per set of tools."""
        key = digest(list(tools))
        if key not in self._prompts:
            self.template.refuse_control_tokens(tools)
            try:
                asked: Message = {"role": "user", "content": slot(QUESTION)}
                self._prompts[key] = self.template.pieces([*self.system_messages, asked], tools, generate=True)
            except TemplateRefused as error:
                raise RequestError(f"the policy's chat template cannot show the tools: {error}.") from error
        return self._prompts[key]

    def _reply_pieces(self, count: int) -> tuple[Piece, ...]:
        """Reply pieces, rendered once per number of calls."""
        if count not in self._replies:
            self._replies[count] = reply_markup(self.template, count)[1]
        return self._replies[count]


def _content(call: Action) -> tuple[str, Any]:
    return call.tool, call.arguments if call.tool == ANSWER else json.loads(call.arguments)


_QUESTION = "Where is «Amber Stone»?\nSay it."
_RESULTS = ('Found "Blue River".\n\n3 < 4 & more', "  indented\tété \n", "")
_SPOKEN = "I look."
_THOUGHT = f"<think>\n{_SPOKEN}\n</think>\n\n"
_PLAIN, _SPEAKING, _THINKING, _TAGGED = {"content": ""}, {"content": _SPOKEN}, {"reasoning_content": _SPOKEN}, {"content": _THOUGHT}
"""What may precede a call: nothing, text, or a thought in one of two forms."""
_ADVICE = 'choose another with the dialect\'s option "template", such as "training", the one that TRL ships for the model'
_WIDE = Truncation(10_000)
_UNREADABLE = {"bare_json": '{"name": "lookup", "parameters": {'}


def prove(dialect: ChatDialect) -> None:
    """Check that what `dialect` appends equals what its template renders.

    Raises:
        RequestError: it differs; the message shows the place.
    """
    try:
        for preamble in _preambles(dialect):
            _ConversationProof(dialect, preamble).run()
    except TemplateRefused as error:
        raise RequestError(f"the policy's chat template cannot be appended to: {error}; {_ADVICE}.") from error


def _preambles(dialect: ChatDialect) -> list[dict[str, str]]:
    """Possible texts before calls and answers; fewer if the generation prompt opens or closes a thought."""
    prompt = dialect.decode(dialect.prompt_ids(_QUESTION, tools=[PROBE_TOOL]))
    if "</think>" in prompt.rpartition("Say it.")[2]:
        return [_PLAIN, _SPEAKING]
    thinking = _THINKING if dialect.layout.thoughts == "reasoning" else _TAGGED
    return [thinking] if dialect.layout.opens_thought else [_PLAIN, _SPEAKING, thinking]


class _ConversationProof:
    """Checks one conversation message by message, comparing rendered with appended ids."""

    def __init__(self, dialect: ChatDialect, preamble: dict[str, str]) -> None:
        self._dialect = dialect
        self._preamble = preamble
        self._messages: list[Message] = [*dialect.system_messages, {"role": "user", "content": _QUESTION}]
        self._context = dialect.prompt_ids(_QUESTION, tools=[PROBE_TOOL])

    def run(self) -> None:
        """Check a call, several calls, an unparsable message, and the answer."""
        self._expect(self._rendered_ids(generate=True), self._context, "the prompt")
        if self._preamble != _PLAIN and not self.shows_preamble():
            self._check_dropped_preamble()
            return
        self._call(["Amber Stone"], _RESULTS[:1])
        self._call(["Blue", "Green Lake"] if self._dialect.layout.parallel_calls else ["Blue"], _RESULTS[1:])
        self._unreadable_message()
        self._call(["Quiet"], _RESULTS[:1])
        self._answer()

    def shows_preamble(self) -> bool:
        """Whether the template shows text or a thought before a call."""
        asked = [*self._messages, call_message([("lookup", "a")], **self._preamble), tool_message(0, "lookup", "b")]
        return _SPOKEN in self._dialect.template.render(asked, [PROBE_TOOL], generate=True)

    def _check_dropped_preamble(self) -> None:
        """Check that the dialect rejects a call after a preamble that the template does not show."""
        plain = [*self._messages, call_message([("lookup", "a")]), tool_message(0, "lookup", "b")]
        written = self._dialect.template.tokenize(plain, [PROBE_TOOL], generate=True)[len(self._context) :]
        turn = self._dialect.layout.parser(self._preamble["content"] + self._dialect.decode(self._up_to_stop(written)[:-1]), ())
        if isinstance(turn, ActionTurn) and turn.calls[0].tool != ANSWER:
            raise TemplateRefused("it drops text or thoughts before a call")

    def _call(self, arguments: Sequence[str], results: Sequence[str]) -> None:
        calls = [("lookup", argument) for argument in arguments]
        self._messages.append(call_message(calls, **self._preamble))
        self._messages += [tool_message(number, "lookup", text) for number, (_, text) in enumerate(zip(calls, results, strict=False))]
        expected = tuple(Action("lookup", f'{{"{ARGUMENT_NAME}": "{argument}"}}') for argument in arguments)
        self._check_step(expected, [Result(text) for text in results[: len(calls)]], f"after {len(calls)} calls")

    def _unreadable_message(self) -> None:
        text = _UNREADABLE.get(self._dialect.layout.call_format, "<tool_call>\nlookup")
        self._speak(text)
        role = self._dialect.layout.correction_role
        self._messages.append({"role": "user", "content": "Error: a"} if role == "user" else tool_message(0, "error", "Error: a"))
        self._check_step(None, [Result("Error: a")], "after an unreadable message")

    def _answer(self) -> None:
        self._speak("Green Lake")
        rendered = self._rendered_ids(generate=False)
        self._expect(rendered[: len(self._context)], self._context, "the context before the answer")
        rest = rendered[len(self._context) :]
        stop = self._dialect.template.special[self._dialect.layout.answer_stop]
        turn = self._dialect.parse(self._up_to_stop(rest) if stop in rest else (*rest, stop))
        if isinstance(turn, ParseError) or turn.calls[0].tool != ANSWER or not turn.calls[0].arguments.endswith("Green Lake"):
            raise TemplateRefused(f"the answer that it writes is not parsed as one ({turn})")

    def _speak(self, text: str) -> None:
        self._messages.append({"role": "assistant", **self._preamble, "content": self._preamble.get("content", "") + text})

    def _check_step(self, expected: tuple[Action, ...] | None, results: Sequence[Result], where: str) -> None:
        """Check that the rendering extends the context by a message that parses as `expected`, and by the dialect's reply to it."""
        rendered = self._rendered_ids(generate=True)
        self._expect(rendered[: len(self._context)], self._context, f"the earlier context, seen {where},")
        action = self._up_to_stop(rendered[len(self._context) :])
        turn = self._dialect.parse(action)
        if expected is not None and (isinstance(turn, ParseError) or turn.calls != expected):
            raise TemplateRefused(f"the calls that it writes are parsed differently ({turn})")
        if expected is None and not isinstance(turn, ParseError):
            raise TemplateRefused(f"a broken call is parsed as {turn}")
        context = (*self._context, *action)
        self._context = (*context, *self._dialect.reply_ids(action, results, _WIDE))
        self._expect(rendered[len(context) :], self._context[len(context) :], f"the reply {where}")

    def _up_to_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        stops = self._dialect.stop_token_ids
        end = next((number for number, token in enumerate(ids) if token in stops), None)
        if end is None:
            raise TemplateRefused("an assistant message does not end with a stop token")
        return tuple(ids[: end + 1])

    def _rendered_ids(self, generate: bool) -> tuple[int, ...]:
        return self._dialect.template.tokenize(self._messages, [PROBE_TOOL], generate)

    def _expect(self, rendered: Sequence[int], appended: Sequence[int], what: str) -> None:
        if tuple(rendered) == tuple(appended):
            return
        pairs = zip([*rendered, None], [*appended, None], strict=False)
        place = next((number for number, (a, b) in enumerate(pairs) if a != b), 0)
        shown, ours = (self._dialect.decode(list(ids)[max(0, place - 4) : place + 12]) for ids in (rendered, appended))
        raise TemplateRefused(f"{what} is rendered as {shown!r}, but appended as {ours!r}")
