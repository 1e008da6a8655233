"""Send trajectories as OpenTelemetry traces to viewers such as Phoenix and MLflow, once or while a run writes them.

A trajectory is a trace: the agent's span, with a span per turn and tool call below it. Attributes follow OpenTelemetry's conventions for
generative AI and OpenInference; what a run's record does not say is left out. Ids derive from the trajectory's, so sending a trace twice is
harmless. Spans without a recorded duration have length zero, in recorded order.

Conventions: https://opentelemetry.io/docs/specs/semconv/gen-ai, https://arize-ai.github.io/openinference/spec/semantic_conventions.html.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.re import parse_env_headers

from flows.data.exports import selection
from flows.data.trajectories import chosen_ids
from rl.terminal import Interrupts
from synth.conversations import HARNESS, Conversation, Document, chats_of, text_message
from warehouse import Failure, Lake
from warehouse.digests import digest
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Call, Outcome, Trajectory, Turn

SENT_AT_ONCE = 100
"""Spans per request."""
MLFLOW_EXPERIMENT = "x-mlflow-experiment-id"
"""Header without which MLflow rejects spans; other collectors ignore it. Experiment 0 exists on every server."""
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
"""OpenTelemetry environment variables with additional headers."""
_LOG = logging.getLogger(OTLPSpanExporter.__module__)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
NANOSECONDS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCOPE = InstrumentationScope(HARNESS)
RESOURCE = Resource({"service.name": HARNESS})

Attributes = dict[str, str | int | float | bool | None]
Send = Callable[[Iterable[ReadableSpan]], int]
"""Sends spans and returns their number. Raises RequestError."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Numbers of trajectories and spans that were sent, and of trajectories left out because the lake does not have their task."""

    trajectories: int = 0
    spans: int = 0
    left_out: int = 0

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.trajectories + other.trajectories, self.spans + other.spans, self.left_out + other.left_out)

    def __str__(self) -> str:
        missing = f", {self.left_out} left out: their task is not in the lake" if self.left_out else ""
        return f"{self.trajectories} trajectories, {self.spans} spans{missing}"


def send_traces(lake: Lake, to: str, where: str, limit: int, headers: Mapping[str, str]) -> Sent:
    """Send traces of at most `limit` trajectories that match the SQL condition `where`.

    `to` is a collector's address, `http://host:port/v1/traces`, or a file that ends in `.jsonl`; `headers` go with each request.

    Raises:
        RequestError: `to` is neither, no trajectory matches, or the collector does not accept the spans.
    """
    at = lake.snapshot()
    ids = chosen_ids(lake, where, limit, at)
    if to.endswith(".jsonl") and not _is_address(to):
        with drafted(Path(to)) as draft, draft.open("w", encoding="utf-8") as file:
            return _send(lake, at, ids, lambda spans: sum(bool(file.write(f"{span.to_json(indent=None)}\n")) for span in spans))
    with _collector(to, headers) as send:
        return _send(lake, at, ids, send)


def follow_traces(
    lake: Lake, to: str, where: str, limit: int, headers: Mapping[str, str], every: float, say: Callable[[str], None]
) -> Sent:
    """Send trajectories that match `where` as they are written, until Ctrl-C; those that are there already come first.

    The lake is read every `every` seconds, at most `limit` trajectories at a time. Traces that the collector did not accept are sent again
    at the next look.

    Raises:
        RequestError: `to` is no address, or `where` is not a condition.
    """
    done: set[str] = set()
    total = Sent()
    interrupts = Interrupts(signal.SIGINT)
    with _collector(to, headers) as send:
        while not interrupts.wait(0):
            at = lake.snapshot()
            new = [each for each in chosen_ids(lake, where, at=at, some=False) if each not in done][:limit]
            if new:
                try:
                    sent = _send(lake, at, new, send)
                except RequestError as error:
                    say(f"{len(new)} trajectories wait: {error}")
                else:
                    done.update(new)
                    total += sent
                    say(f"{sent}, to {to}")
                    continue
            if interrupts.wait(every):
                break
    return total


def _send(lake: Lake, at: int, ids: Sequence[str], send: Send) -> Sent:
    failures: list[Failure] = []
    conversations = selection(lake, at, None).conversations(failures, ids)
    spans = send(span for each in conversations for span in spans_of(each))
    return Sent(len(ids) - len(failures), spans, len(failures))


def headers_of(given: Sequence[str]) -> dict[str, str]:
    """Headers written as `NAME=VALUE`. Raises RequestError for one that is not, or that HTTP does not allow."""
    headers: dict[str, str] = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not (sign and _HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            raise RequestError(f"--header {each!r:.100} is not NAME=VALUE: write for example x-mlflow-experiment-id=1.")
        headers[name.lower()] = value
    return headers


def _is_address(to: str) -> bool:
    return to.startswith(("http://", "https://"))


@contextmanager
def _collector(to: str, headers: Mapping[str, str]) -> Iterator[Send]:
    """What sends spans to the collector at `to`; it raises RequestError if they are not accepted."""
    if not _is_address(to):
        raise RequestError(
            f"--to {to!r} is neither a URL nor, without --follow, a .jsonl file: write for example http://host:port/v1/traces."
        )
    own = parse_env_headers(next((os.environ[name] for name in HEADERS if os.environ.get(name)), ""), liberal=True)
    exporter = OTLPSpanExporter(endpoint=to, headers={MLFLOW_EXPERIMENT: "0", **own, **headers}, timeout=30)
    told = _Told()

    def send(spans: Iterable[ReadableSpan]) -> int:
        told.first, sent = "", 0
        for part in _parts(spans):
            if exporter.export(part) is not SpanExportResult.SUCCESS:
                raise RequestError(
                    f"{to} did not accept the traces ({told.first:.200}); check that a collector listens there (Phoenix: port 6006, "
                    f"MLflow: port 5000) and that --header or {HEADERS[1]} gives the headers that it requires."
                )
            sent += len(part)
        return sent

    _LOG.addFilter(told)
    try:
        yield send
    finally:
        _LOG.removeFilter(told)
        exporter.shutdown()  # type: ignore[no-untyped-call]


class _Told(logging.Filter):
    """Keeps the first message that the exporter logs, which has the reason, and prints none."""

    first = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.first = self.first or record.getMessage()
        return False


def _parts(spans: Iterable[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
    left = iter(spans)
    while part := list(islice(left, SENT_AT_ONCE)):
        yield part


def spans_of(conversation: Conversation) -> list[ReadableSpan]:
    """Spans of one trajectory, the agent's first."""
    run = conversation.run
    start = _nanoseconds(run.started)
    root = _context(run.id, "agent")
    below: list[ReadableSpan] = []
    clock = start
    for turn, before, said in chats_of(conversation):
        spans, clock = _turn_spans(run, turn, _chat_attributes(conversation, turn, before, said), root, clock)
        below += spans
    end = max(clock, start + int((run.seconds or 0.0) * NANOSECONDS))
    agent = _span(f"invoke_agent {run.policy}", root, None, start, end, _agent_attributes(conversation), _status(run))
    return [agent, *below]


def _turn_spans(run: Trajectory, turn: Turn, attributes: Attributes, root: SpanContext, start: int) -> tuple[list[ReadableSpan], int]:
    """Spans of a turn and its end time; turn time not spent in tools is attributed to the engine."""
    seconds = turn.latency or 0.0
    tools = max((call.latency_seconds or 0.0 for call in turn.calls), default=0.0)
    sampled = start + int(max(0.0, seconds - tools) * NANOSECONDS)
    key = f"turn {turn.index}"
    spans = [_span(f"chat {run.policy}", _context(run.id, key), root, start, sampled, attributes, None)]
    end = max(sampled, start + int(seconds * NANOSECONDS))
    for number, call in enumerate(turn.calls):
        if call.tool == ANSWER:
            continue
        over = sampled + int((call.latency_seconds or 0.0) * NANOSECONDS)
        context = _context(run.id, f"{key} call {number}")
        spans.append(_span(f"execute_tool {call.tool}", context, root, sampled, over, _call_attributes(run, call), None))
        end = max(end, over)
    return spans, end


def _shared(run: Trajectory, operation: str, kind: str) -> Attributes:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": HARNESS,
        "gen_ai.agent.name": run.policy,
        "gen_ai.conversation.id": run.id,
        "openinference.span.kind": kind,
        "session.id": run.id,
    }


def _agent_attributes(conversation: Conversation) -> Attributes:
    run, question = conversation.run, conversation.task.question
    return {
        **_shared(run, "invoke_agent", "AGENT"),
        "gen_ai.request.model": run.policy,
        "gen_ai.input.messages": _json([text_message("user", question)]),
        "gen_ai.output.messages": None if run.answer is None else _json([text_message("assistant", run.answer)]),
        "input.value": question,
        "output.value": run.answer,
        **{f"flywheel.{name}": value for name, value in conversation.about.items() if not isinstance(value, list)},
    }


def _chat_attributes(conversation: Conversation, turn: Turn, before: list[Document] | None, said: Document) -> Attributes:
    run = conversation.run
    read, written = (len(run.context_of(turn.index)), len(turn.action_ids)) if turn.action_ids else (None, None)
    called = any(part["type"] == "tool_call" for part in said["parts"])
    return {
        **_shared(run, "chat", "LLM"),
        "gen_ai.request.model": run.policy,
        "gen_ai.input.messages": None if before is None else _json(before),
        "gen_ai.output.messages": _json([{**said, "finish_reason": "tool_call" if called else "stop"}]),
        "gen_ai.tool.definitions": _json(list(conversation.tools)) if conversation.tools else None,
        "gen_ai.usage.input_tokens": read,
        "gen_ai.usage.output_tokens": written,
        "llm.model_name": run.policy,
        "llm.token_count.prompt": read,
        "llm.token_count.completion": written,
        **_openinference("llm.input_messages", before or ()),
        **_openinference("llm.output_messages", [said]),
        "output.value": turn.action,
        "flywheel.turn": turn.index,
        "flywheel.policy_version": turn.policy_version,
        "flywheel.reward": turn.reward,
    }


def _openinference(name: str, messages: Sequence[Document]) -> Attributes:
    """Messages in OpenInference's flat form."""
    flat: Attributes = {}
    for place, message in enumerate(messages):
        at, texts, calls = f"{name}.{place}.message", [], 0
        flat[f"{at}.role"] = message["role"]
        for part in message["parts"]:
            if part["type"] == "tool_call":
                call = f"{at}.tool_calls.{calls}.tool_call"
                flat[f"{call}.id"], flat[f"{call}.function.name"] = part["id"], part["name"]
                flat[f"{call}.function.arguments"] = _json(part["arguments"])
                calls += 1
            elif part["type"] == "tool_call_response":
                flat[f"{at}.tool_call_id"] = part["id"]
                texts.append(part["response"])
            else:
                texts.append(part["content"])
        flat[f"{at}.content"] = "\n".join(texts)
    return flat


def _call_attributes(run: Trajectory, call: Call) -> Attributes:
    return {
        **_shared(run, "execute_tool", "TOOL"),
        "gen_ai.tool.name": call.tool,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": call.arguments,
        "gen_ai.tool.call.result": call.observation,
        "tool.name": call.tool,
        "input.value": call.arguments,
        "output.value": call.observation,
        "flywheel.tool_outcome": call.outcome,
        "flywheel.retries": call.retries,
        "flywheel.reward": call.reward,
    }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _status(run: Trajectory) -> Status:
    """ERROR for an invalid trajectory; a policy's failure is OK."""
    if run.outcome is Outcome.INVALID:
        return Status(StatusCode.ERROR, run.error or "invalid")
    return Status(StatusCode.OK)


def _span(
    name: str, context: SpanContext, parent: SpanContext | None, start: int, end: int, attributes: Attributes, status: Status | None
) -> ReadableSpan:
    return ReadableSpan(
        name=name,
        context=context,
        parent=parent,
        resource=RESOURCE,
        attributes={name: value for name, value in attributes.items() if value is not None},
        kind=SpanKind.INTERNAL,
        instrumentation_scope=SCOPE,
        status=status or Status(StatusCode.UNSET),
        start_time=start,
        end_time=end,
    )


def _context(trajectory_id: str, part: str) -> SpanContext:
    trace, span = int(digest(["trace", trajectory_id], 32), 16), int(digest(["span", trajectory_id, part], 16), 16)
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(moment: datetime | None) -> int:
    """Nanoseconds since the epoch; 0 if a foreign run did not record the time."""
    return 0 if moment is None else int((moment.astimezone(UTC) - EPOCH).total_seconds() * NANOSECONDS)
