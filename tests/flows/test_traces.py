"""Traces: a real OTLP receiver gets the tree of spans that a trajectory is."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from flows.data.exports import send_traces
from warehouse import Lake, Outcome, StopReason, Task, Trajectory, Turn
from warehouse.records import Call

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
CALLS = (Call("search", "Amber Stone", "ok", "a page", 0.25, 1), Call("search", "Blue River", "miss", "nothing", 0.125))
SEARCH = Turn(0, (1, 2, 3), (0.0,) * 3, "<search> ...", "search", "Amber Stone", (), "a page nothing", None, "ok", 1.0, 4, (), CALLS)
ANSWER = Turn(1, (4,), (0.0,), "<answer>", "answer", "Red Hill", (), "", None, None, 0.5, 4, (), (Call("answer", "Red Hill", None),))


def run(number: int, outcome: Outcome, error: str | None = None) -> Trajectory:
    return Trajectory(f"t{number}", "q", "p", "rl", 5, (), (SEARCH, ANSWER), StopReason.ANSWERED, outcome, None, 0, BEGAN, 2.0, error=error)


@contextmanager
def receiver() -> Iterator[tuple[str, list[Span], dict[str, str]]]:
    """Its address, the spans that it got, and the headers, in lower case, of the last request."""
    spans: list[Span] = []
    headers: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers.update({name.lower(): value for name, value in self.headers.items()})
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            spans.extend(s for resource in request.resource_spans for scope in resource.scope_spans for s in scope.spans)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans, headers
    finally:
        server.shutdown()
        server.server_close()


def attributes(span: Span) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


@pytest.mark.slow
def test_a_trajectory_arrives_as_a_tree_of_spans(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake, receiver() as (address, spans, _):
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
