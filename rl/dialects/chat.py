"""The dialect of a model from elsewhere: its own chat template, with tool calls in the form that the model was trained on.

The prompt is rendered once and then only appended to: ids as sampled, then what the template writes around results, then its
invitation to speak. `proof.py` shows at start-up, for the template at hand, that this is what the template would render for the whole
conversation. A message without a call is the answer, and so is a call of a tool named `answer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl.dialect import ActionTurn, Cut, ParseError, Reply, Result, Schema, holds_image, text_of
from rl.dialects.layout import NAME, QUESTION, RESULT, find_layout, replies
from rl.dialects.pictures import Pictures
from rl.dialects.templates import ChatTemplate, Message, Piece, TemplateRefused, slot
from rl.policies.vision import Vision
from warehouse.digests import digest
from warehouse.errors import RequestError


class ChatDialect:
    """One chat template; `system` stands before the question where it is given, and `vision` is there where the policy sees.

    Raises:
        RequestError: where the template cannot be used for calls of tools.
    """

    def __init__(self, template: ChatTemplate, system: str | None = None, vision: Vision | None = None) -> None:
        try:
            self.layout = find_layout(template)
        except TemplateRefused as error:
            raise RequestError(f"the policy's chat template cannot be used with tools: {error}.") from error
        self.template = template
        self.pictures = None if vision is None else Pictures(template, vision, self.layout.result)
        self.placeholder_id = None if vision is None else vision.placeholder_id
        self.opening: tuple[Message, ...] = () if system is None else ({"role": "system", "content": system},)
        self._ends = {template.special[stop] for stop in (self.layout.call_stop, self.layout.answer_stop)}
        self._forbidden = frozenset(template.special.values())
        self._prompts: dict[str, tuple[Piece, ...]] = {}
        self._replies: dict[int, tuple[Piece, ...]] = {}
        self.stop_token_ids = tuple(sorted(self._ends | template.plain.end))

    def prompt_ids(self, question: str, seen: str = "", tools: Sequence[Schema] = (), cut: Cut | None = None) -> tuple[int, ...]:
        """The system's message, the tools, and the question in the user's; `seen` stands below the question.

        Raises:
            RequestError: where a tool's schema holds a control token, or the template cannot show it.
        """
        if seen:
            question = f"{question}\n\n{seen if cut is None else self.template.plain.cut(seen, cut)}"
        return self.template.encode(self._prompt(tools), {QUESTION: self.layout.question(question)})

    def parse(self, action_ids: Sequence[int]) -> ActionTurn | ParseError:
        """Read a message that was ended; no special token may stand inside it."""
        if not action_ids or action_ids[-1] not in self.stop_token_ids:
            return ParseError("the message was not ended")
        if not self._forbidden.isdisjoint(action_ids[:-1]):
            return ParseError("a control token inside the message")
        turn = self.layout.reader(self.decode(action_ids[:-1]))
        if isinstance(turn, ActionTurn) and len(turn.calls) > 1 and not self.layout.several:
            return ParseError("only one call is possible in a message")
        return turn

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Cut) -> tuple[int, ...]:
        """Results as messages of the tools; a message that was not ended is ended first. The cut is of the texts alone."""
        texts = [self._text(result, cut) for result in results]
        end, names, pieces = self._frame(action_ids)
        return end + self.template.encode(pieces, names | dict(enumerate(texts, start=RESULT)))

    def reply(self, action_ids: Sequence[int], results: Sequence[Result], cut: Cut) -> Reply:
        """The same with images, where the policy sees."""
        if self.pictures is None or not any(map(holds_image, results)):
            return Reply(self.reply_ids(action_ids, results, cut))
        parts = [self.pictures.parts(each.parts, cut) if holds_image(each) else [self._text(each, cut)] for each in results]
        end, names, pieces = self._frame(action_ids)
        return self.pictures.write(end, pieces, names, parts)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self.template.decode(token_ids)

    def _text(self, result: Result, cut: Cut) -> str:
        return self.layout.result(self.template.plain.cut(text_of(result), cut))

    def _frame(self, action_ids: Sequence[int]) -> tuple[tuple[int, ...], dict[int, str], tuple[Piece, ...]]:
        """What stands around the results of an action: the token that ends it where it is not ended, the tools' names, and the markup."""
        turn = self.parse(action_ids)
        names = [] if isinstance(turn, ParseError) else [call.tool for call in turn.calls]
        ended = bool(action_ids) and action_ids[-1] in self._ends
        pieces = self._behind(len(names)) if names else self.layout.correction
        return () if ended else (self.template.special[self.layout.call_stop],), dict(enumerate(names, start=NAME)), pieces

    def _prompt(self, tools: Sequence[Schema]) -> tuple[Piece, ...]:
        """Rendered once for each set of tools."""
        key = digest(list(tools))
        if key not in self._prompts:
            self.template.refuse_control_tokens(tools)
            try:
                asked: Message = {"role": "user", "content": slot(QUESTION)}
                self._prompts[key] = self.template.pieces([*self.opening, asked], tools, generate=True)
            except TemplateRefused as error:
                raise RequestError(f"the policy's chat template cannot show the tools: {error}.") from error
        return self._prompts[key]

    def _behind(self, count: int) -> tuple[Piece, ...]:
        """Rendered once for each number of calls."""
        if count not in self._replies:
            self._replies[count] = replies(self.template, count)[1]
        return self._replies[count]
