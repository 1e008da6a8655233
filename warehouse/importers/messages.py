"""Chat messages of every dialect as one form, `ChatMessage`: what importers read and `conversation.py` makes turns of.

Read are OpenAI's chat messages (older forms too), items of its Responses API, Anthropic's content blocks, ShareGPT's `from`/`value`, the
channels of Harmony, and calls written as text in `<tool_call>` (Hermes, Qwen). Reasoning is kept apart from the text, wherever it stands.
What the form cannot hold (images, unknown parts, calls in another syntax) is a `MalformedRow` with the number of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from warehouse.bounds import read_json, unique_object
from warehouse.importers.contents import Content, as_json, read_content, text_of
from warehouse.importers.conversation import ChatMessage, ToolCall
from warehouse.importers.runs import MalformedRow
from warehouse.importers.schemas import NO_TOOLS, ToolSchemas
from warehouse.importers.text_calls import read_responses, read_text_calls
from warehouse.replies import split_reasoning

_ROLES = {
    "developer": "system",
    "human": "user",
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model"), "assistant"),
    **dict.fromkeys(("function", "ipython", "observation", "function_response", "tool_response", "tool_result"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
}
_BESIDE = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_CARRIERS = ("content", "value", "tool_calls", "function_call", "refusal", *_BESIDE)
"""The keys of a message that hold what it says."""
_ITEMS = {"function_call_output": "output", "custom_tool_call_output": "output"}


def read_messages(value: Any, schemas: ToolSchemas = NO_TOOLS) -> list[ChatMessage]:
    """The messages of a list, or of its JSON text. Raises MalformedRow with the number of the message that cannot be read."""
    if isinstance(value, str):
        try:
            value = read_json(value, unique_object)
        except ValueError as error:
            raise MalformedRow(f"the row's messages are a text that is not JSON: {error}") from error
    if not isinstance(value, list):
        raise MalformedRow("the row has no list of messages")
    messages: list[ChatMessage] = []
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise MalformedRow(f"message {number} is no object")
        try:
            _add(messages, _read(message, schemas, bool(messages) and messages[-1].awaits_results))
        except MalformedRow as error:
            raise MalformedRow(str(error) if str(error).startswith("message ") else f"message {number} {error}") from error
    return messages


def plain_messages(value: Any, speaker: str, schemas: ToolSchemas = NO_TOOLS) -> list[ChatMessage]:
    """The messages of a prompt or completion, which may be one text of `speaker`."""
    if isinstance(value, str) and not value.lstrip().startswith('[{"'):
        value = [{"role": speaker, "content": value}]
    return [] if value is None else read_messages(value, schemas)


def _add(messages: list[ChatMessage], read: Sequence[ChatMessage]) -> None:
    """Append messages; what one response has in several items (reasoning, text, calls) becomes one message."""
    for message in read:
        before = messages[-1] if messages else None
        if before is not None and before.role == message.role == "assistant" and (before.only_thought or (before.item and message.item)):
            thought, text = ("\n".join(filter(None, parts)) for parts in ((before.thought, message.thought), (before.text, message.text)))
            messages[-1] = replace(message, text=text, thought=thought, calls=(*before.calls, *message.calls))
        else:
            messages.append(message)


def _read(message: dict[str, Any], schemas: ToolSchemas, waiting: bool) -> list[ChatMessage]:
    named = message.get("role", message.get("from"))
    kind = message.get("type")
    if named is None and isinstance(kind, str) and kind != "message":
        return [_item(message, kind, schemas)]
    role = _ROLES.get(named, named) if isinstance(named, str) else named
    if role not in ("system", "user", "assistant", "tool", "call"):
        raise MalformedRow(f"has the role {named!r:.60}")
    if not any(name in message for name in _CARRIERS):
        raise MalformedRow(f"has none of {', '.join(_CARRIERS)}")
    said = message.get("content", message.get("value"))
    if role == "call":
        return [ChatMessage("assistant", "", calls=tuple(_tool_call(one, schemas) for one in _listed(_from_json(said))), item=True)]
    if role == "tool":
        return _results(message, said)
    content = read_content(said)
    if role == "assistant":
        return [_assistant(message, content, schemas)]
    if content.calls or content.thought:
        raise MalformedRow(f"is the {role}'s, and holds a call or reasoning")
    results = [ChatMessage("tool", one.text, answers=one.call, outcome=one.outcome) for one in content.results]
    text = content.text
    if role == "user" and waiting and not results and (read := read_responses(text)) is not None:
        texts, text = read
        results = [ChatMessage("tool", one) for one in texts]
    return [*results, *([ChatMessage(role, text)] if text.strip() or not results else [])]


def _assistant(message: dict[str, Any], content: Content, schemas: ToolSchemas) -> ChatMessage:
    if content.results:
        raise MalformedRow("is the assistant's, and holds the result of a call")
    text, recipient = content.text or _text_or_none(message.get("refusal")) or "", message.get("recipient")
    if isinstance(recipient, str) and recipient.startswith("functions."):
        called = {"name": recipient.removeprefix("functions."), "arguments": text}
        return ChatMessage("assistant", "", calls=(_tool_call(called, schemas),), weight=_weight(message), item=True)
    if message.get("channel") == "analysis":
        return ChatMessage("assistant", "", text, weight=_weight(message))
    inline, text = split_reasoning(text)
    thoughts = [*_reasoning(message), content.thought, inline]
    text, written = read_text_calls(text)
    calls = [_tool_call(call, schemas) for call in (*_structured(message), *content.calls)]
    said = [_tool_call(call, schemas) for call in written]
    if calls and said and [(one.tool, one.arguments) for one in said] != [(one.tool, one.arguments) for one in calls]:
        raise MalformedRow("has other calls in its text than beside it")
    thought = "\n".join(dict.fromkeys(filter(None, thoughts)))
    return ChatMessage("assistant", text, thought, tuple(calls or said), weight=_weight(message), item=message.get("type") == "message")


def _reasoning(message: dict[str, Any]) -> list[str]:
    """The reasoning that stands beside a message's content."""
    return [text for name in _BESIDE if (text := text_of(message.get(name)).strip())]


def _weight(message: dict[str, Any]) -> int:
    """Whether the message is trained on: OpenAI's `weight`, 0 or 1."""
    weight = message.get("weight", message.get("loss"))
    if weight is not None and weight not in (0, 1):
        raise MalformedRow(f"has the weight {weight!r:.40}, which is neither 0 nor 1")
    return 1 if weight is None else int(weight)


def _structured(message: dict[str, Any]) -> list[Any]:
    """The calls of a message; `function_call` is the older form of one."""
    calls = message.get("tool_calls") or ([message["function_call"]] if message.get("function_call") else [])
    if isinstance(calls, str):
        calls = _from_json(calls)
    if not isinstance(calls, list):
        raise MalformedRow("has tool_calls that are no list")
    return calls


def _item(message: dict[str, Any], kind: str, schemas: ToolSchemas) -> ChatMessage:
    """An item of the Responses API that is no message."""
    identity = identity_of(message, "call_id")
    if kind == "reasoning":
        thought = "\n".join(filter(None, (text_of(message.get("content")), text_of(message.get("summary")))))
        return ChatMessage("assistant", "", thought, item=True)
    if kind in ("function_call", "custom_tool_call"):
        return ChatMessage("assistant", "", calls=(replace(_tool_call(message, schemas), id=identity),), item=True)
    if kind in _ITEMS:
        return ChatMessage("tool", _result_text(message.get(_ITEMS[kind])), answers=identity)
    raise MalformedRow(f"is an item of the type {kind!r:.60}, which is not read")


def _results(message: dict[str, Any], said: Any) -> list[ChatMessage]:
    """The result or results of a tool's message."""
    identity = identity_of(message, "tool_call_id", "call_id", "tool_use_id")
    if identity is None and "requestor" in message:  # tau2 has it under `id`
        identity = identity_of(message, "id")
    tool, outcome = _text_or_none(message.get("name")) or None, _text_or_none(message.get("outcome")) or _outcome(message)
    blocks = said if isinstance(said, list) else []
    if blocks and all(isinstance(part, dict) and part.get("type") in ("tool_result", "tool-result") for part in blocks):
        return [ChatMessage("tool", one.text, answers=one.call, outcome=one.outcome) for one in read_content(said).results]
    text = _result_text(said)
    read = read_responses(text)
    if read is None or read[1].strip():
        return [ChatMessage("tool", text, answers=identity, tool=tool, outcome=outcome)]
    if len(read[0]) > 1 and identity is not None:
        raise MalformedRow("holds several results, and names one call")
    return [ChatMessage("tool", one, answers=identity, tool=tool, outcome=outcome) for one in read[0]]


def _outcome(message: dict[str, Any]) -> str:
    return "error" if message.get("error") is True or message.get("is_error") is True else "ok"


def _result_text(said: Any) -> str:
    """The text of a result: what is neither text nor parts of text stands as JSON."""
    return read_content(said, result=True).text


def _tool_call(call: Any, schemas: ToolSchemas) -> ToolCall:
    """A call: `function` or `custom` within it, or name and arguments at once; some exports write it as a text of JSON."""
    call = _from_json(call) if isinstance(call, str) else call
    inner = (call.get("function") or call.get("custom") or call) if isinstance(call, dict) else None
    name = inner.get("name", inner.get("function_name")) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(name, str) or not name:
        raise MalformedRow("has a call without a name")
    given: Any = next((inner[key] for key in ("arguments", "parameters", "args", "input") if inner.get(key) is not None), {})
    if isinstance(given, str):
        _check_unique(given)
    else:
        given = as_json(schemas.without_fill(name, given))
    return ToolCall(identity_of(call, "id", "tool_call_id"), name, given)


def _check_unique(arguments: str) -> None:
    """Raises MalformedRow for arguments in which a key stands twice; those that are not JSON stay as they were written."""
    try:
        read_json(arguments, unique_object)
    except ValueError as error:
        if _is_json(arguments):
            raise MalformedRow(f"has a call with arguments in which {error}") from error


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def _from_json(text: Any) -> Any:
    try:
        return read_json(text, unique_object) if isinstance(text, str) else text
    except ValueError as error:
        raise MalformedRow(f"has a call that is not JSON: {error}") from error


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def identity_of(value: dict[str, Any], *names: str) -> str | None:
    """The id of a call under one of `names`; an empty one is none."""
    found = next((value[name] for name in names if value.get(name) not in (None, "")), None)
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    return _text_or_none(found)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
