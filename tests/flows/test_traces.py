"""Traces: a real OTLP receiver gets the tree of spans that a trajectory is, at once or while a run writes; they hold the conversation."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from flows.data.imports import import_runs
from flows.data.spans import Sent, headers_of, send_traces, spans_of
from synth.conversations import Conversation
from synth.parts import calls_of, responses_of, thought_of
from tests.flows.homes import flywheel
from tests.flows.operations.test_events import receiver
from tests.flows.test_trajectory_exports import BOTH, RUNS, make_lake
from tests.ports import answers, free_port
from warehouse import Lake, Outcome, RequestError, StopReason, Task, Trajectory, Turn
from warehouse.importers.schemas import schemas_of
from warehouse.records import Call

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
TASK = Task("q", "search", "where?", ("Red Hill",))
CALLS = (Call("search", "Amber Stone", "ok", "a page", 0.25, 1), Call("search", "Blue River", "miss", "nothing", 0.125))
SEARCH = Turn(0, (1, 2, 3), (0.0,) * 3, "<search> ...", "search", "Amber Stone", (7,), "a page nothing", None, "ok", 1.0, 4, (), CALLS)
ANSWER = Turn(1, (4,), (0.0,), "<answer>", "answer", "Red Hill", (), "", None, None, 0.5, 4, (), (Call("answer", "Red Hill", None),))


def run(number: int, outcome: Outcome, error: str | None = None) -> Trajectory:
    turns = (SEARCH, ANSWER)
    return Trajectory(f"t{number}", "q", "p", "rl", 5, (8, 9), turns, StopReason.ANSWERED, outcome, None, 0, BEGAN, 2.0, error=error)


def attributes(span: Span) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def reader(spans: list[Span]) -> Callable[[bytes], None]:
    def read(body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        spans.extend(span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans)

    return read


@pytest.mark.slow
def test_a_trajectory_arrives_as_a_tree_of_spans(tmp_path: Path) -> None:
    spans: list[Span] = []
    with Lake(tmp_path) as lake, receiver(read=reader(spans)) as (address, requests):
        lake.add([TASK, run(1, Outcome.SUCCESS), run(2, Outcome.INVALID, "timeout: gone")])
        assert send_traces(lake, address, "true", 10, {"x-key": "secret"}) == Sent(2, 10)
        headers = {name.lower(): value for name, value in requests[0][0].items()}
        assert (headers["x-key"], headers["x-mlflow-experiment-id"]) == ("secret", "0")
        first = [span for span in spans if span.trace_id == spans[0].trace_id]
        agent, *below = first
        assert [span.name for span in first] == ["invoke_agent p", "chat p", "execute_tool search", "execute_tool search", "chat p"]
        assert all(span.parent_span_id == agent.span_id for span in below) and not agent.parent_span_id
        assert agent.end_time_unix_nano - agent.start_time_unix_nano == 2_000_000_000
        assert below[0].end_time_unix_nano - below[0].start_time_unix_nano == 750_000_000
        assert below[3].start_time_unix_nano - agent.start_time_unix_nano == 1_000_000_000
        assert attributes(agent)["input.value"] == "where?" and attributes(agent)["output.value"] == "Red Hill"
        assert attributes(below[1])["gen_ai.tool.name"] == "search" and attributes(below[1])["flywheel.retries"] == 1
        assert "flywheel.reward" not in attributes(agent), "what is not known is left out"
        read = [(said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) for said in map(attributes, (below[0], below[3]))]
        assert read == [(2, 3), (6, 1)], "the prompt; and the first action with what it was shown"
        failed = [span for span in spans if span.status.code == Status.STATUS_CODE_ERROR]
        assert [span.status.message for span in failed] == ["timeout: gone"]
        ids = [(span.trace_id, span.span_id) for span in spans]
        assert len(set(ids)) == 10
        spans.clear()
        send_traces(lake, address, "true", 10, {})
        assert [(span.trace_id, span.span_id) for span in spans] == ids, "sent again, they are the same"


def test_the_conversations_come_back_through_the_importer(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "home")
    sent = send_traces(lake, str(tmp_path / "spans.jsonl"), "true", 10, {})
    assert (sent.trajectories, sent.left_out) == (5, 1) and "1 left out" in str(sent), "the sixth has no task"
    assert len((tmp_path / "spans.jsonl").read_text().splitlines()) == sent.spans
    read = import_runs(tmp_path / "spans.jsonl", tmp_path / "other")
    assert (read["format"], read["quarantined"], read["trajectories"]["new"]) == ("otel", 0, 5)
    with Lake(tmp_path / "other") as other:
        found = list(other.trajectories())
    asked = [("search", json.dumps({"query": name})) for name in ("Ann", "Bob", "Cy")]
    for one in found:
        first = one.turns[0]
        assert (calls_of(first), responses_of(first)) == (asked, [*responses_of(BOTH), ""])
        assert thought_of(first.action) == "Two at once." and one.policy == "p"
        assert [each["function"]["name"] for each in schemas_of(one.provenance["row"]).tools] == ["search"]
    answers = sorted(str(each.answer) for each in RUNS[:5])
    assert sorted(str(one.answer) for one in found) == answers


def test_messages_before_a_rewritten_history_are_not_made_up() -> None:
    rewritten = replace(run(1, Outcome.SUCCESS), turns=(SEARCH, replace(ANSWER, context_ids=(8, 5))))
    chats = [dict(span.attributes or {}) for span in spans_of(Conversation(rewritten, TASK)) if span.name == "chat p"]
    assert ["gen_ai.input.messages" in one for one in chats] == [True, False]
    assert [one["gen_ai.usage.input_tokens"] for one in chats] == [2, 2] and "Red Hill" in str(chats[1]["gen_ai.output.messages"])


@pytest.mark.slow
def test_followed_trajectories_are_sent_once_each_and_those_refused_again(tmp_path: Path) -> None:
    spans: list[Span] = []
    with Lake(tmp_path) as lake, receiver(400, 200, read=reader(spans)) as (address, requests):
        lake.add([TASK, run(1, Outcome.SUCCESS)])
        command = ["traces", "--home", str(tmp_path), "--to", address, "--follow", "--every", "0.5", "--where", "outcome = 'success'"]
        follower = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *command], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            _until(lambda: len(requests) == 2)
            lake.add([run(2, Outcome.SUCCESS), run(3, Outcome.FAILURE)])
            _until(lambda: len(requests) == 3)
        finally:
            follower.send_signal(signal.SIGINT)
            said = follower.communicate(timeout=60)[0]
    assert follower.returncode == 0 and "1 trajectories wait:" in said and said.endswith(f"2 trajectories, 10 spans, to {address}\n")
    traces = [span.trace_id for span in spans]
    assert traces[:5] == traces[5:10] and len(spans) == 15 and len(set(traces)) == 2, "the first was refused once"


PYTHON = os.environ.get("VIEWERS_PYTHON", sys.executable)
"""An interpreter that has the packages of viewers."""
VIEWERS = {
    "mlflow": (
        (
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            "{port}",
            "--workers",
            "1",
            "--backend-store-uri",
            "sqlite:///{folder}/lake.db",
        ),
        "import mlflow, sys; mlflow.set_tracking_uri(sys.argv[1]); traces = mlflow.search_traces(locations=['0'], return_type='list'); "
        "print(sum(len(trace.data.spans) for trace in traces), max(trace.info.token_usage['total_tokens'] for trace in traces))",
    ),
    "phoenix": (
        ("phoenix", "serve"),
        "import json, sys, urllib.request as r; spans = json.load(r.urlopen(sys.argv[1] + '/v1/projects/default/spans?limit=99'))['data']; "
        "print(len(spans), max(int(span['attributes'].get('llm.token_count.prompt', 0)) for span in spans) + 1)",
    ),
}
"""The command that starts each, and a program that prints the numbers of spans and of tokens that it shows."""


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWERS)
def test_viewers_of_others_show_each_span_once(tmp_path: Path, name: str) -> None:
    if subprocess.run([PYTHON, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"]).returncode:
        pytest.skip(f"{PYTHON} has no {name}: set VIEWERS_PYTHON")
    port, (command, shown) = free_port(), VIEWERS[name]
    address, bin_ = f"http://127.0.0.1:{port}", Path(PYTHON).parent
    variables = {"PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(free_port()), "PHOENIX_WORKING_DIR": str(tmp_path / "phoenix")}
    program, *arguments = (word.format(port=port, folder=tmp_path) for word in command)
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [str(bin_ / program), *arguments], stdout=log, stderr=log, env={**os.environ, **variables}, start_new_session=True
        )
    try:
        _until(lambda: answers(address), seconds=300)
        with Lake(tmp_path / "home") as lake:
            lake.add([TASK, run(1, Outcome.SUCCESS)])
            for _ in range(2):
                assert send_traces(lake, f"{address}/v1/traces", "true", 10, {}) == Sent(1, 5)
        found: list[str] = []
        _until(lambda: found.append(_output(shown, address)) or found[-1].startswith("5 "))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)
    assert found[-1] == ("5 12" if name == "mlflow" else "5 7"), "2 and 6 tokens read, 3 and 1 written"


def _output(program: str, address: str) -> str:
    done = subprocess.run([PYTHON, "-c", program, address], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else done.stderr


def _until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--to", "localhost:6006"), "neither a URL nor"),
        (("--to", "spans.jsonl", "--follow"), "neither a URL nor"),
        (("--to", "http://localhost:1/", "--where", "outcme = 1"), "not a valid condition"),
        (("--to", "http://localhost:1/", "--header", "x-key"), "is not NAME=VALUE"),
        (("--to", "http://localhost:1/", "--header", "x-key=a\r\nb: c"), "is not NAME=VALUE"),
    ],
)
def test_requests_that_cannot_be_met(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    make_lake(tmp_path / "home").close()
    with pytest.raises(RequestError, match=reason):
        flywheel("traces", "--home", tmp_path / "home", *arguments)
    assert headers_of(["X-Key=a=b"]) == {"x-key": "a=b"}
