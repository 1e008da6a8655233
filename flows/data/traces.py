"""`flywheel traces`: stored trajectories to a viewer of OpenTelemetry traces, or into a file of spans."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.util.re import parse_env_headers

from flows.results import judged_trajectories
from warehouse import Lake
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.exporters.traces import spans_of

SENT_AT_ONCE = 500
"""Spans of one request."""
MLFLOW_EXPERIMENT = "x-mlflow-experiment-id"
"""The header without which MLflow refuses spans; other collectors ignore it. Experiment 0 is the one that every server has."""
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
"""The variables of OpenTelemetry that name further headers."""


def send_traces(lake: Lake, to: str, where: str, limit: int) -> tuple[int, int]:
    """Send the traces of the trajectories that the SQL condition `where` holds for, at most `limit`; returns how many, and their spans.

    `to` is the address of a collector, `http://host:port/v1/traces`, or a file that ends in `.jsonl`.

    Raises:
        RequestError: it is neither, no trajectory is meant, or nobody answers there.
    """
    try:
        ids = lake.query(f"SELECT id FROM trajectories WHERE ({where}\n) ORDER BY id LIMIT ?", [limit]).column("id").to_pylist()
    except RequestError as error:
        raise RequestError(f"--where {where!r:.200} is no condition on the table trajectories: {error}") from error
    trajectories = judged_trajectories(lake, "id IN (SELECT unnest(?))", [ids])
    if not trajectories:
        raise RequestError(f"no trajectory of {lake.place.home} is meant by --where {where!r}.")
    tasks = {task.key: task for task in lake.tasks()}
    spans = [span for trajectory in trajectories for span in spans_of(trajectory, tasks.get(trajectory.task_key))]
    if to.startswith(("http://", "https://")):
        _send(spans, to)
    elif to.endswith(".jsonl"):
        with drafted(Path(to)) as draft:
            draft.write_text("".join(f"{span.to_json(indent=None)}\n" for span in spans), encoding="utf-8")
    else:
        raise RequestError(f"--to {to!r} is no address and no file: give http://host:port/v1/traces, or a name that ends in .jsonl.")
    return len(trajectories), len(spans)


def _send(spans: Sequence[ReadableSpan], to: str) -> None:
    own = next((os.environ[name] for name in HEADERS if os.environ.get(name)), "")
    exporter = OTLPSpanExporter(endpoint=to, headers={MLFLOW_EXPERIMENT: "0", **parse_env_headers(own, liberal=True)}, timeout=10)
    try:
        if any(exporter.export(part) is not SpanExportResult.SUCCESS for part in _parts(spans)):
            raise RequestError(
                f"{to} did not take the traces; is a collector listening there (Phoenix: port 6006, MLflow: port 5000), "
                f"and does it want a header that {HEADERS[1]} should name?"
            )
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]


def _parts(spans: Iterable[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
    left = iter(spans)
    while part := list(islice(left, SENT_AT_ONCE)):
        yield part
