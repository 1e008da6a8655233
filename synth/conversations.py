"""Trajectories in the formats of others: messages of OpenAI, ATIF 1.7, traces of verifiers v1, session traces of the Hugging Face hub,
messages of OpenTelemetry.

A `Conversation` is a trajectory with the task, tools and system prompt that its record lacks. Where a format has a place for token ids,
they are those that the engine saw and sampled: joined in order, they are the exact context. Content that a format cannot hold raises
`NotExpressible`.

Formats: https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md, `verifiers/v1/episode.py` and `trace.py` of
PrimeIntellect-ai/verifiers, https://huggingface.co/docs/hub/session-traces-format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import isfinite
from typing import Any

from rl.renderers.base import NotExpressible, Schema, named_arguments
from synth.parts import responses_of, thought_of, untagged
from warehouse.digests import digest
from warehouse.records import ANSWER, NOT_RUN, Outcome, Task, Trajectory, Turn
from warehouse.replies import split_reasoning

HARNESS = "agent-flywheel"
Document = dict[str, Any]
_STOP = re.compile(r"(?:\s*(?:<[|｜][^<>|｜]{1,40}[|｜]>|</s>|<end_of_turn>))+\s*$")
"""Control tokens at the end of an action."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A trajectory with its task and the tools and system prompt that the policy was given."""

    run: Trajectory
    task: Task
    tools: Sequence[Schema] = ()
    system: str | None = None

    @property
    def about(self) -> Document:
        """What the lake knows of the trajectory and most formats have no field for; unknown values are left out."""
        run = self.run
        known = {
            "task": run.task_key, "answers": list(self.task.answers), "policy": run.policy, "stage": run.stage, "suite": run.suite,
            "step": run.step, "wheel_turn": run.wheel_turn, "sample": run.sample, "outcome": run.outcome and str(run.outcome),
            "reward": run.reward, "stop_reason": str(run.stop_reason), "horizon": run.horizon, "seed": run.seed, "error": run.error,
        }  # fmt: skip
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Call:
    id: str
    tool: str
    arguments: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class _Step:
    """An action as thought, text and calls, and its results, each with the call that it belongs to (None: feedback on the action)."""

    turn: Turn
    thought: str
    text: str
    calls: tuple[_Call, ...]
    results: tuple[tuple[_Call | None, str], ...]


def _steps(run: Trajectory) -> Iterator[_Step]:
    count = 0
    for turn in run.turns:
        made = [(call.tool, call.arguments or "", call.outcome) for call in turn.calls if call.tool != ANSWER]
        calls = tuple(_Call(f"call{count + n:05}", *call) for n, call in enumerate(made))  # templates of Mistral need nine characters
        count += len(calls)
        yield _Step(turn, *_said(turn), calls, _results(turn, calls))


def _said(turn: Turn) -> tuple[str, str]:
    """Thought and text of an action, without its calls; the whole text of an action that could not be read, but for its stop token."""
    thought, rest = split_reasoning(_STOP.sub("", turn.action))
    if not turn.calls:
        return untagged(thought), untagged(rest)
    answer = next((call.arguments for call in turn.calls if call.tool == ANSWER), None)
    if answer is not None:
        return thought_of(turn.action), answer
    spoken, called, _ = rest.partition("<tool_call>")
    return (untagged(thought), spoken.strip()) if called else (thought_of(turn.action), "")


def _results(turn: Turn, calls: Sequence[_Call]) -> tuple[tuple[_Call | None, str], ...]:
    texts = responses_of(turn)
    executed = [call for call in calls if call.outcome not in (None, NOT_RUN)]
    if len(texts) >= len(executed) > 0:
        return tuple(zip(executed, texts, strict=False))
    return tuple((executed[0] if executed else None, text) for text in texts)


def _logprobs(turn: Turn) -> list[float]:
    if not all(map(isfinite, turn.action_logprobs)):
        raise NotExpressible(f"turn {turn.index} has a log-probability that is not finite, which JSON cannot hold")
    return list(turn.action_logprobs)


def _named(call: _Call, tools: Sequence[Schema]) -> Document | None:
    """Arguments by name; None if they have no names."""
    try:
        return named_arguments(call.tool, call.arguments, tools)
    except NotExpressible:
        return None


def _json_text(call: _Call, tools: Sequence[Schema]) -> str:
    """Arguments as JSON text if they have names, else as the policy wrote them."""
    named = _named(call, tools)
    return call.arguments if named is None else json.dumps(named, ensure_ascii=False)


def _one_context(run: Trajectory) -> Trajectory:
    """The run, if it only appended to one context: the messages of rewritten ones are not stored."""
    if (count := len(run.segments)) > 1:
        raise NotExpressible(f"it has {count} contexts, which one conversation cannot hold")
    return run


def messages_of_run(conversation: Conversation) -> list[Document]:
    """Messages of OpenAI: thoughts in `<think>`, arguments as objects, `weight` 0 for actions that are not learned.

    Calls that were not run are left out, and calls without a result unless they end the run.
    """
    run, tools = _one_context(conversation.run), conversation.tools
    unlearned = run.provenance.get("unlearnt_turns") or ()
    messages = _prompt(conversation)
    for step in _steps(run):
        ids = {call.id for call, _ in step.results if call is not None}
        calls = [call for call in step.calls if call.id in ids or (step.turn is run.turns[-1] and call.outcome != NOT_RUN)]
        weight = int(step.turn.is_readable and step.turn.index not in unlearned)
        message: Document = {"role": "assistant", "content": _with_thought(step), "weight": weight}
        if calls:
            message["tool_calls"] = [{"id": one.id, "type": "function", "function": _function(one, tools)} for one in calls]
        messages += [message, *(_response(call, text) for call, text in step.results)]
    return messages


def _function(call: _Call, tools: Sequence[Schema]) -> Document:
    return {"name": call.tool, "arguments": named_arguments(call.tool, call.arguments, tools)}


def _prompt(conversation: Conversation) -> list[Document]:
    system = [] if conversation.system is None else [{"role": "system", "content": conversation.system}]
    return [*system, {"role": "user", "content": conversation.task.question}]


def _with_thought(step: _Step) -> str:
    content = f"<think>\n{step.thought}\n</think>\n\n{step.text}" if step.thought else step.text
    if step.turn.is_readable and split_reasoning(content) != (step.thought.strip(), step.text.strip()):
        raise NotExpressible("a thought or an answer contains reasoning tags")
    return content


def _response(call: _Call | None, text: str) -> Document:
    if call is None:
        return {"role": "user", "content": text}
    return {"role": "tool", "tool_call_id": call.id, "name": call.tool, "content": text}


def preference(chosen: Sequence[Document], rejected: Sequence[Document]) -> Document:
    """Two runs of a task as prompt, chosen and rejected, as TRL reads them: the prompt ends before the first action in which they differ.

    Raises NotExpressible if they do not differ, or one has no action.
    """
    longer = max(len(chosen), len(rejected))
    shared = next((n for n in range(longer) if chosen[n : n + 1] != rejected[n : n + 1]), longer)
    starts = [n for n in range(min(shared + 1, len(chosen), len(rejected))) if chosen[n]["role"] == rejected[n]["role"] == "assistant"]
    if shared == longer or not starts:
        raise NotExpressible("the two runs do not differ, or one has no action")
    return {"prompt": list(chosen[: starts[-1]]), "chosen": list(chosen[starts[-1] :]), "rejected": list(rejected[starts[-1] :])}


def atif_of(conversation: Conversation) -> list[Document]:
    """The trajectory as an ATIF document; each action has the ids of its whole context, as the format has it."""
    run = conversation.run
    begun = {} if run.started is None else {"timestamp": run.started.isoformat()}
    steps: list[Document] = [] if conversation.system is None else [{"source": "system", "message": conversation.system}]
    steps.append({"source": "user", "message": conversation.task.question, **begun})
    sampled = 0
    for step in _steps(run):
        steps.append(_atif_step(step, conversation, run.context_of(step.turn.index)))
        sampled += len(step.turn.action_ids)
    agent: Document = {"name": HARNESS, "version": version(HARNESS), "model_name": run.policy}
    agent |= {"tool_definitions": list(conversation.tools)} if conversation.tools else {}
    return [
        {
            "schema_version": "ATIF-v1.7", "session_id": run.id, "trajectory_id": run.id, "agent": agent,
            "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
            "final_metrics": {"total_steps": len(steps), **({"total_completion_tokens": sampled} if sampled else {})},
            "extra": conversation.about,
        }
    ]  # fmt: skip


def _atif_step(step: _Step, conversation: Conversation, context: Sequence[int]) -> Document:
    turn = step.turn
    written: Document = {"source": "agent", "model_name": conversation.run.policy, "message": step.text, "llm_call_count": 1}
    if step.thought:
        written["reasoning_content"] = step.thought
    if step.calls:
        written["tool_calls"] = [_atif_call(call, conversation.tools) for call in step.calls]
    if step.results:
        results = [{**({} if call is None else {"source_call_id": call.id}), "content": text} for call, text in step.results]
        written["observation"] = {"results": results}
    if turn.action_ids:
        written["metrics"] = {
            "prompt_tokens": len(context), "completion_tokens": len(turn.action_ids), "prompt_token_ids": list(context),
            "completion_token_ids": list(turn.action_ids), "logprobs": _logprobs(turn),
        }  # fmt: skip
    known = {"reward": turn.reward, "seconds": turn.latency, "policy_version": turn.policy_version if turn.action_ids else None}
    extra = {name: value for name, value in known.items() if value is not None}
    return {**written, "extra": extra} if extra else written


def _atif_call(call: _Call, tools: Sequence[Schema]) -> Document:
    """A call; arguments without names stand under `input`."""
    named = _named(call, tools)
    arguments = {"input": call.arguments} if named is None else named
    outcome = {} if call.outcome is None else {"extra": {"outcome": call.outcome}}
    return {"tool_call_id": call.id, "function_name": call.tool, "arguments": arguments, **outcome}


def verifiers_of(conversation: Conversation) -> list[Document]:
    """The trajectory as an episode with one trace. A node has the ids that it adds to the context; sampled ones are in its mask."""
    run, task = _one_context(conversation.run), conversation.task
    invalid = run.outcome is Outcome.INVALID
    begun = 0.0 if run.started is None else run.started.timestamp()
    data = {"name": task.key, "prompt": task.question, "answers": list(task.answers)}
    data |= {} if conversation.system is None else {"system_prompt": conversation.system}
    described = {"type": "Task", "data": data, "key": task.key, "hash": task.digest}
    nodes = [_node(number, *entry) for number, entry in enumerate(_entries(conversation, begun))]
    trace = {
        "version": 1, "id": run.id, "verifiers": {"version": f"{HARNESS} {version(HARNESS)}"}, "task": described,
        "agent": {"config": {"model": run.policy}, "name": "agent"}, "tools": [_tool(schema["function"]) for schema in conversation.tools],
        "nodes": nodes, "calls": _model_calls(nodes, run.policy),
        "rewards": {} if run.reward is None else {"reward": {"score": run.reward, "weight": 1.0}},
        "metrics": {} if run.outcome is None or invalid else {"success": float(run.outcome is Outcome.SUCCESS)},
        "info": conversation.about, "is_completed": True, "ok": not invalid, "stop_condition": str(run.stop_reason),
        "errors": [{"type": "Invalid", "message": run.error or "invalid"}] if invalid else [],
        "timing": {"start": begun, "agent": {"start": begun, "end": begun + (run.seconds or 0.0)}},
    }  # fmt: skip
    group = {"id": digest([run.task_key, run.policy, run.stage, run.step])}
    return [{"id": run.id, "env": {"id": task.environment}, "task": described, "group": group, "ok": not invalid, "traces": [trace]}]


_Entry = tuple[Document, Sequence[int], Sequence[float] | None, float]
"""A message, the ids that it adds to the context, their log-probabilities if they were sampled, and its time."""


def _entries(conversation: Conversation, clock: float) -> Iterator[_Entry]:
    *before, question = _prompt(conversation)
    yield from ((message, (), None, clock) for message in before)
    yield question, conversation.run.prompt_ids, None, clock
    for step in _steps(conversation.run):
        turn = step.turn
        clock += turn.latency or 0.0
        message: Document = {"role": "assistant", "content": step.text}
        message |= {"reasoning_content": step.thought} if step.thought else {}
        made = [{"id": call.id, "name": call.tool, "arguments": _json_text(call, conversation.tools)} for call in step.calls]
        yield {**message, "tool_calls": made} if made else message, turn.action_ids, _logprobs(turn), clock
        responses = [_response(call, text) for call, text in step.results]
        if turn.observation_ids and not responses:
            responses = [_response(None, turn.observation)]
        for number, response in enumerate(responses, start=1):
            yield response, turn.observation_ids if number == len(responses) else (), None, clock


def _node(number: int, message: Document, ids: Sequence[int], logprobs: Sequence[float] | None, clock: float) -> Document:
    sampled = logprobs is not None
    tokens = {"token_ids": list(ids), "mask": [sampled] * len(ids), "logprobs": list(logprobs or ())}
    return {**({"parent": number - 1} if number else {}), "message": message, "sampled": sampled, "timestamp": clock, **tokens}


def _model_calls(nodes: Sequence[Document], policy: str) -> list[Document]:
    """The call behind each sampled node, with the number of tokens where they were recorded."""
    calls: list[Document] = []
    context = 0
    for number, node in enumerate(nodes):
        size = len(node["token_ids"])
        if node["sampled"]:
            usage = {"usage": {"prompt_tokens": context, "completion_tokens": size}} if size else {}
            calls.append({"node": number, "model": policy, **usage})
        context += size
    return calls


def _tool(function: Document) -> Document:
    return {"name": function["name"], "description": function.get("description") or "", "parameters": function.get("parameters") or {}}


def session_of(conversation: Conversation) -> list[Document]:
    """The trajectory as the lines of a session: its header, then a line per message."""
    run = conversation.run
    begun = {} if run.started is None else {"timestamp": int(run.started.timestamp() * 1000)}
    name = " ".join(conversation.task.question.split())[:100]
    lines: list[Document] = [{"type": "session", "harness": HARNESS, "id": run.id, "name": name, **conversation.about}]
    messages = [{**message, **begun} for message in _prompt(conversation)]
    for step in _steps(run):
        message: Document = {"role": "assistant", "content": step.text, "model": run.policy}
        message |= {"reasoningContent": step.thought} if step.thought else {}
        made = [{"id": call.id, "function": {"name": call.tool, "arguments": _json_text(call, conversation.tools)}} for call in step.calls]
        messages.append({**message, "toolCalls": made} if made else message)
        for call, text in step.results:
            tool = {"role": "user"} if call is None else {"role": "tool", "toolCallId": call.id}
            messages.append({**tool, "content": text})
    return [*lines, *({"type": "message", "message": message} for message in messages)]


def chats_of(conversation: Conversation) -> Iterator[tuple[Turn, list[Document] | None, Document]]:
    """Each turn with the messages before it and its own message, in the form of OpenTelemetry's conventions for generative AI.

    The messages are None after the history was rewritten, since the lake has its token ids only.
    """
    before: list[Document] | None = [text_message(one["role"], one["content"]) for one in _prompt(conversation)]
    for step in _steps(conversation.run):
        before = None if step.turn.context_ids else before
        thought = [{"type": "reasoning", "content": step.thought}] if step.thought else []
        text = text_message("assistant", step.text)["parts"] if step.text else []
        calls = [_call_part(call, conversation.tools) for call in step.calls]
        said = {"role": "assistant", "parts": [*thought, *text, *calls]}
        yield step.turn, before, said
        if before is not None:
            before = [*before, said, *(_response_parts(call, text) for call, text in step.results)]


def text_message(role: str, text: str) -> Document:
    """A message of text in OpenTelemetry's form."""
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _call_part(call: _Call, tools: Sequence[Schema]) -> Document:
    named = _named(call, tools)
    return {"type": "tool_call", "id": call.id, "name": call.tool, "arguments": call.arguments if named is None else named}


def _response_parts(call: _Call | None, text: str) -> Document:
    if call is None:
        return text_message("user", text)
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": call.id, "response": text}]}
