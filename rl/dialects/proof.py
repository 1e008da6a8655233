"""The proof that appending gives what a chat template would render, for the template at hand.

Conversations with calls, several calls, thoughts, answers and a message that cannot be read are rendered by the template as a whole.
Each must begin with all that was appended before, go on with a message that the dialect reads as the calls that were put in, and end
with the very ids that the dialect appends. A template that strips thoughts from earlier turns, or writes into them later, fails here.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl.dialect import Action, ActionTurn, Cut, ParseError, Result
from rl.dialects.chat import ChatDialect
from rl.dialects.layout import ARGUMENT_NAME, PROBE_TOOL, calling, returned
from rl.dialects.templates import Message, TemplateRefused
from warehouse.errors import RequestError
from warehouse.records import ANSWER

_QUESTION = "Where is «Amber Stone»?\nSay it."
_RESULTS = ('Found "Blue River".\n\n3 < 4 & more', "  indented\tété \n", "")
_SAID = "I look."
_THOUGHT = f"<think>\n{_SAID}\n</think>\n\n"
_PLAIN, _SPEAKING, _THINKING, _TAGGED = {"content": ""}, {"content": _SAID}, {"reasoning_content": _SAID}, {"content": _THOUGHT}
"""What stands before a call: nothing, a text, or a thought in one of the two ways in which templates are given it."""
_WIDE = Cut(10_000)
_UNREADABLE = {"bare_json": '{"name": "lookup", "parameters": {'}


def prove(dialect: ChatDialect) -> None:
    """See that what `dialect` appends is what its template renders.

    Raises:
        RequestError: where it is not, with the place where they part.
    """
    try:
        for said in _manners(dialect):
            _Conversation(dialect, said).run()
    except TemplateRefused as error:
        raise RequestError(f"the policy's chat template cannot be appended to: {error}; {_ADVICE}.") from error


_ADVICE = 'give another with the dialect\'s option "template", such as "training" for the one that TRL ships for the model'


def _manners(dialect: ChatDialect) -> list[dict[str, str]]:
    """What stands before calls and answers: nothing, a text or a thought; a prompt that has opened or closed a thought leaves less."""
    prompt = dialect.decode(dialect.prompt_ids(_QUESTION, tools=[PROBE_TOOL]))
    invitation = prompt.rpartition("Say it.")[2]
    if "</think>" in invitation:
        return [_PLAIN, _SPEAKING]
    thinking = _THINKING if _Conversation(dialect, _THINKING).shows_what_is_said() else _TAGGED
    return [thinking] if "<think>" in invitation else [_PLAIN, _SPEAKING, thinking]


class _Conversation:
    """One conversation, message by message, as the template renders it and as the dialect appends it."""

    def __init__(self, dialect: ChatDialect, said: dict[str, str]) -> None:
        self._dialect = dialect
        self._said = said
        self._messages: list[Message] = [*dialect.opening, {"role": "user", "content": _QUESTION}]
        self._context = dialect.prompt_ids(_QUESTION, tools=[PROBE_TOOL])

    def run(self) -> None:
        """A call, several calls or another one, a message that cannot be read, and the answer."""
        self._expect(self._whole(generate=True), self._context, "the prompt")
        if self._said != _PLAIN and not self.shows_what_is_said():
            self._refuse_to_drop()
            return
        self._call(["Amber Stone"], _RESULTS[:1])
        self._call(["Blue", "Green Lake"] if self._dialect.layout.several else ["Blue"], _RESULTS[1:])
        self._misspeak()
        self._call(["Quiet"], _RESULTS[:1])
        self._answer()

    def shows_what_is_said(self) -> bool:
        """Whether the template shows what is said or thought before a call."""
        asked = [*self._messages, calling([("lookup", "a")], **self._said), returned(0, "lookup", "b")]
        return _SAID in self._dialect.template.render(asked, [PROBE_TOOL], generate=True)

    def _refuse_to_drop(self) -> None:
        """What the template does not show before a call, the dialect must not read as said before one."""
        plain = [*self._messages, calling([("lookup", "a")]), returned(0, "lookup", "b")]
        written = self._dialect.template.whole(plain, [PROBE_TOOL], generate=True)[len(self._context) :]
        turn = self._dialect.layout.reader(self._said["content"] + self._dialect.decode(self._until_stop(written)[:-1]))
        if isinstance(turn, ActionTurn) and turn.calls[0].tool != ANSWER:
            raise TemplateRefused("it drops what is said or thought before a call")

    def _call(self, arguments: Sequence[str], results: Sequence[str]) -> None:
        calls = [("lookup", argument) for argument in arguments]
        self._messages.append(calling(calls, **self._said))
        self._messages += [returned(number, "lookup", text) for number, (_, text) in enumerate(zip(calls, results, strict=False))]
        expected = tuple(Action("lookup", f'{{"{ARGUMENT_NAME}": "{argument}"}}') for argument in arguments)
        self._grow(expected, [Result(text) for text in results[: len(calls)]], f"after {len(calls)} calls")

    def _misspeak(self) -> None:
        text = _UNREADABLE.get(self._dialect.layout.form, "<tool_call>\nlookup")
        self._speak(text)
        role = self._dialect.layout.correction_role
        self._messages.append({"role": "user", "content": "Error: a"} if role == "user" else returned(0, "error", "Error: a"))
        self._grow(None, [Result("Error: a")], "after a message that cannot be read")

    def _answer(self) -> None:
        self._speak("Green Lake")
        whole = self._whole(generate=False)
        self._expect(whole[: len(self._context)], self._context, "what stands before the answer")
        rest = whole[len(self._context) :]
        stop = self._dialect.template.special[self._dialect.layout.answer_stop]
        turn = self._dialect.parse(self._until_stop(rest) if stop in rest else (*rest, stop))
        if isinstance(turn, ParseError) or turn.calls[0].tool != ANSWER or not turn.calls[0].arguments.endswith("Green Lake"):
            raise TemplateRefused(f"the answer that it writes is not read as one ({turn})")

    def _speak(self, text: str) -> None:
        self._messages.append({"role": "assistant", **self._said, "content": self._said.get("content", "") + text})

    def _grow(self, expected: tuple[Action, ...] | None, results: Sequence[Result], where: str) -> None:
        """The template's rendering goes on from the context with a message that is read as `expected`, and with the dialect's reply."""
        whole = self._whole(generate=True)
        self._expect(whole[: len(self._context)], self._context, f"what stands before, seen {where}")
        action = self._until_stop(whole[len(self._context) :])
        turn = self._dialect.parse(action)
        if expected is not None and (isinstance(turn, ParseError) or turn.calls != expected):
            raise TemplateRefused(f"the calls that it writes are not read as they are ({turn})")
        if expected is None and not isinstance(turn, ParseError):
            raise TemplateRefused(f"a broken call is read as {turn}")
        context = (*self._context, *action)
        self._context = (*context, *self._dialect.reply_ids(action, results, _WIDE))
        self._expect(whole[len(context) :], self._context[len(context) :], f"what is appended {where}")

    def _until_stop(self, ids: Sequence[int]) -> tuple[int, ...]:
        stops = self._dialect.stop_token_ids
        end = next((number for number, token in enumerate(ids) if token in stops), None)
        if end is None:
            raise TemplateRefused("a message of the assistant is not ended by a token")
        return tuple(ids[: end + 1])

    def _whole(self, generate: bool) -> tuple[int, ...]:
        return self._dialect.template.whole(self._messages, [PROBE_TOOL], generate)

    def _expect(self, rendered: Sequence[int], appended: Sequence[int], what: str) -> None:
        if tuple(rendered) == tuple(appended):
            return
        pairs = zip([*rendered, None], [*appended, None], strict=False)
        place = next((number for number, (a, b) in enumerate(pairs) if a != b), 0)
        shown, ours = (self._dialect.decode(list(ids)[max(0, place - 4) : place + 12]) for ids in (rendered, appended))
        raise TemplateRefused(f"{what} is rendered as {shown!r} and was {ours!r}")
