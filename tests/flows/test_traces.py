"""Traces: a real OTLP receiver gets the tree of spans that a trajectory is."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from flows.data.exports import send_traces
from tests.flows.operations.test_events import receiver
from warehouse import Lake, Outcome, StopReason, Task, Trajectory, Turn
from warehouse.records import Call

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
CALLS = (Call("search", "Amber Stone", "ok", "a page", 0.25, 1), Call("search", "Blue River", "miss", "nothing", 0.125))
SEARCH = Turn(0, (1, 2, 3), (0.0,) * 3, "<search> ...", "search", "Amber Stone", (), "a page nothing", None, "ok", 1.0, 4, (), CALLS)
ANSWER = Turn(1, (4,), (0.0,), "<answer>", "answer", "Red Hill", (), "", None, None, 0.5, 4, (), (Call("answer", "Red Hill", None),))


def run(number: int, outcome: Outcome, error: str | None = None) -> Trajectory:
    return Trajectory(f"t{number}", "q", "p", "rl", 5, (), (SEARCH, ANSWER), StopReason.ANSWERED, outcome, None, 0, BEGAN, 2.0, error=error)


def attributes(span: Span) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


@pytest.mark.slow
def test_a_trajectory_arrives_as_a_tree_of_spans(tmp_path: Path) -> None:
    def read(body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        spans.extend(span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans)

    spans: list[Span] = []
    with Lake(tmp_path) as lake, receiver(read=read) as (address, _):
        lake.add([Task("q", "search", "where?", ("Red Hill",)), run(1, Outcome.SUCCESS), run(2, Outcome.INVALID, "timeout: gone")])
        assert send_traces(lake, address, "true", 10) == (2, 10)
        first = [span for span in spans if span.trace_id == spans[0].trace_id]
        agent, *below = first
        assert [span.name for span in first] == ["invoke_agent", "chat", "execute_tool search", "execute_tool search", "chat"]
        assert all(span.parent_span_id == agent.span_id for span in below) and not agent.parent_span_id
        assert agent.end_time_unix_nano - agent.start_time_unix_nano == 2_000_000_000
        assert below[0].end_time_unix_nano - below[0].start_time_unix_nano == 750_000_000
        assert below[3].start_time_unix_nano - agent.start_time_unix_nano == 1_000_000_000
        assert attributes(agent)["input.value"] == "where?" and attributes(agent)["output.value"] == "Red Hill"
        assert attributes(below[1])["gen_ai.tool.name"] == "search" and attributes(below[1])["flywheel.retries"] == 1
        assert "flywheel.reward" not in attributes(agent), "what is not known is left out"
        failed = [span for span in spans if span.status.code == Status.STATUS_CODE_ERROR]
        assert [span.status.message for span in failed] == ["timeout: gone"]
        ids = [(span.trace_id, span.span_id) for span in spans]
        assert len(set(ids)) == 10
        spans.clear()
        send_traces(lake, address, "true", 10)
        assert [(span.trace_id, span.span_id) for span in spans] == ids, "sent again, they are the same"
