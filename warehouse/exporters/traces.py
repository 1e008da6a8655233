"""Convert trajectories to OpenTelemetry traces, for viewers such as Phoenix and MLflow.

A trajectory is a trace: the agent's span, with a span per turn and tool call below it. Attributes follow OpenTelemetry's conventions for
generative AI and OpenInference. Ids derive from the trajectory's, so sending a trace twice is harmless. Spans without a recorded duration
have length zero, in recorded order.
"""

from __future__ import annotations

from datetime import UTC, datetime

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from warehouse.digests import digest
from warehouse.records import ANSWER, Call, Outcome, Task, Trajectory, Turn

NANOSECONDS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCOPE = InstrumentationScope("agent-flywheel")
RESOURCE = Resource({"service.name": "agent-flywheel"})

Attributes = dict[str, str | int | float | bool | None]


def spans_of(trajectory: Trajectory, task: Task | None = None) -> list[ReadableSpan]:
    """Spans of one trajectory, the agent's first; `task` provides the question if known."""
    start = _nanoseconds(trajectory.started)
    root = _context(trajectory.id, "agent")
    below: list[ReadableSpan] = []
    clock = start
    for turn in trajectory.turns:
        spans, clock = _turn_spans(trajectory, turn, root, clock)
        below += spans
    end = max(clock, start + int((trajectory.seconds or 0.0) * NANOSECONDS))
    agent = _span("invoke_agent", root, None, start, end, _agent_attributes(trajectory, task), _status(trajectory))
    return [agent, *below]


def _turn_spans(trajectory: Trajectory, turn: Turn, root: SpanContext, start: int) -> tuple[list[ReadableSpan], int]:
    """Spans of a turn and its end time; turn time not spent in tools is attributed to the engine."""
    seconds = turn.latency or 0.0
    tools = max((call.latency_seconds or 0.0 for call in turn.calls), default=0.0)
    sampled = start + int(max(0.0, seconds - tools) * NANOSECONDS)
    key = f"turn {turn.index}"
    spans = [_span("chat", _context(trajectory.id, key), root, start, sampled, _turn_attributes(trajectory, turn), None)]
    end = max(sampled, start + int(seconds * NANOSECONDS))
    for number, call in enumerate(turn.calls):
        if call.tool == ANSWER:
            continue
        over = sampled + int((call.latency_seconds or 0.0) * NANOSECONDS)
        context = _context(trajectory.id, f"{key} call {number}")
        spans.append(_span(f"execute_tool {call.tool}", context, root, sampled, over, _call_attributes(call), None))
        end = max(end, over)
    return spans, end


def _agent_attributes(trajectory: Trajectory, task: Task | None) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.request.model": trajectory.policy,
        "gen_ai.conversation.id": trajectory.id,
        "openinference.span.kind": "AGENT",
        "input.value": task.question if task else trajectory.task_key,
        "output.value": trajectory.answer,
        "flywheel.stage": trajectory.stage,
        "flywheel.wheel_turn": trajectory.wheel_turn,
        "flywheel.step": trajectory.step,
        "flywheel.suite": trajectory.suite,
        "flywheel.horizon": trajectory.horizon,
        "flywheel.stop_reason": str(trajectory.stop_reason),
        "flywheel.outcome": None if trajectory.outcome is None else str(trajectory.outcome),
        "flywheel.reward": trajectory.reward,
    }


def _turn_attributes(trajectory: Trajectory, turn: Turn) -> Attributes:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": trajectory.policy,
        "gen_ai.usage.output_tokens": len(turn.action_ids),
        "openinference.span.kind": "LLM",
        "llm.model_name": trajectory.policy,
        "llm.token_count.completion": len(turn.action_ids),
        "output.value": turn.action,
        "flywheel.turn": turn.index,
        "flywheel.policy_version": turn.policy_version,
        "flywheel.reward": turn.reward,
    }


def _call_attributes(call: Call) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.tool,
        "openinference.span.kind": "TOOL",
        "tool.name": call.tool,
        "input.value": call.arguments,
        "output.value": call.observation,
        "flywheel.tool_outcome": call.outcome,
        "flywheel.retries": call.retries,
        "flywheel.reward": call.reward,
    }


def _status(trajectory: Trajectory) -> Status:
    """ERROR for an invalid trajectory; a policy's failure is OK."""
    if trajectory.outcome is Outcome.INVALID:
        return Status(StatusCode.ERROR, trajectory.error or "invalid")
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
