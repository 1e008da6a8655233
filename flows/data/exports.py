"""Exports from a lake: datasets with their cards, and trajectories as OpenTelemetry traces."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.util.re import parse_env_headers

from flows.data.imports import config_of
from flows.data.trajectories import EVERY, TRACE_FORMS, Selection, chosen_ids, export_traces, messages_dataset, preference_dataset
from flows.evaluation_config import EvaluationConfig
from flows.inputs import tools_of
from flows.results import judged_trajectories
from rl.renderers.registry import dialect_config
from synth.exporters import ChatOptions, PromptOptions, TextOptions, cpt_dataset, rl_dataset, sft_dataset, tasks_to_write, webshaper_dataset
from synth.formulas.webshaper import write_rows
from warehouse import Lake
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.exporters.dataset import Dataset, card_of, card_path, check_free, format_of, is_file, write_dataset
from warehouse.exporters.traces import spans_of


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export, and how. Each option applies only to some kinds of dataset.

    Attributes:
        at: Snapshot of the lake; None: the current one.
        turn, near_duplicates: For `cpt` and `sft`; see `TextOptions`.
        split_by, held_out: For `rl`; see `PromptOptions`.
        where: SQL condition on the table `trajectories`, for the kinds that are made of trajectories.
    """

    form: str | None = None
    at: int | None = None
    turn: int | None = None
    near_duplicates: float | None = None
    split_by: str | None = None
    held_out: float = 0.1
    where: str | None = None

    @property
    def settings(self) -> str:
        """The command-line options that reproduce the export."""
        given = {"--turn": self.turn, "--near-duplicates": self.near_duplicates, "--split-by": self.split_by}
        given |= {"--held-out": self.held_out if self.split_by else None, "--where": self.where and shlex.quote(self.where)}
        return "".join(f" {name} {value}" for name, value in given.items() if value is not None)


_BUILDERS: dict[str, Callable[[Lake, int, ExportOptions], Dataset]] = {
    "cpt": lambda lake, at, options: cpt_dataset(lake, at, TextOptions(options.turn, options.near_duplicates)),
    "sft": lambda lake, at, options: sft_dataset(lake, at, TextOptions(options.turn, options.near_duplicates), _chat(lake)),
    "rl": lambda lake, at, options: rl_dataset(lake, at, PromptOptions(options.split_by, options.held_out, _default_verifier(lake))),
    "webshaper": lambda lake, at, options: webshaper_dataset(lake, at),
    "openai": lambda lake, at, options: messages_dataset(_selection(lake, at, options)),
    "preferences": lambda lake, at, options: preference_dataset(_selection(lake, at, options)),
}


def _selection(lake: Lake, at: int, options: ExportOptions) -> Selection:
    return Selection(lake, at, options.where or EVERY, _chat(lake))


def _default_verifier(lake: Lake) -> str:
    config = config_of(lake.place.home)
    return (config.evaluation if config is not None else EvaluationConfig()).verifier


def _chat(lake: Lake) -> ChatOptions:
    """Return the tools and system prompt of the home's own runs; empty without a configuration."""
    config = config_of(lake.place.home)
    if config is None:
        return ChatOptions()
    system = None if config.rollout.speaks_tags else dialect_config(config.rollout.dialect, config.rollout.dialects).system
    try:
        return ChatOptions(tools_of(config, 1), system)
    except RequestError:  # its tools file no longer exists
        return ChatOptions((), system)


KINDS = (*_BUILDERS, *TRACE_FORMS)


def export_dataset(lake: Lake, kind: str, path: Path, options: ExportOptions) -> Dataset:
    """Write the dataset `kind` to `path` with its card, and return it.

    Raises:
        RequestError: `path` is taken, options conflict, the snapshot is unknown, or there is nothing to write.
    """
    at = lake.snapshot() if options.at is None else options.at
    lake.query("SELECT 1", at=at)  # raises for an unknown snapshot
    if kind in TRACE_FORMS:
        return export_traces(_selection(lake, at, options), kind, path, options.settings)
    form = format_of(path, options.form)
    check_free(path)
    dataset = replace(_BUILDERS[kind](lake, at, options), settings=options.settings)
    if not dataset.rows:
        raise RequestError(f"{lake.place.home} has no data for {kind} at snapshot {at}; create it first, e.g. with `flywheel synth`.")
    if kind == "webshaper" and form == "jsonl" and is_file(path):
        write_rows(tasks_to_write(lake, at)[0], path)
        card_path(path).write_text(card_of(dataset, form, {"train": path.name}), encoding="utf-8")
    else:
        write_dataset(dataset, path, form)
    return dataset


SENT_AT_ONCE = 500
"""Spans per request."""
MLFLOW_EXPERIMENT = "x-mlflow-experiment-id"
"""Header without which MLflow rejects spans; other collectors ignore it. Experiment 0 exists on every server."""
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
"""OpenTelemetry environment variables with additional headers."""


def send_traces(lake: Lake, to: str, where: str, limit: int) -> tuple[int, int]:
    """Send traces of at most `limit` trajectories that match the SQL condition `where`. Return the numbers of trajectories and spans.

    `to` is a collector's address, `http://host:port/v1/traces`, or a file that ends in `.jsonl`.

    Raises:
        RequestError: `to` is neither, no trajectory matches, or the collector does not answer.
    """
    trajectories = judged_trajectories(lake, "id IN (SELECT unnest(?))", [chosen_ids(lake, where, limit)])
    tasks = {task.key: task for task in lake.tasks()}
    spans = [span for trajectory in trajectories for span in spans_of(trajectory, tasks.get(trajectory.task_key))]
    if to.startswith(("http://", "https://")):
        _send(spans, to)
    elif to.endswith(".jsonl"):
        with drafted(Path(to)) as draft:
            draft.write_text("".join(f"{span.to_json(indent=None)}\n" for span in spans), encoding="utf-8")
    else:
        raise RequestError(f"--to {to!r} is neither a URL nor a .jsonl file: write for example http://host:port/v1/traces.")
    return len(trajectories), len(spans)


def _send(spans: Sequence[ReadableSpan], to: str) -> None:
    own = next((os.environ[name] for name in HEADERS if os.environ.get(name)), "")
    exporter = OTLPSpanExporter(endpoint=to, headers={MLFLOW_EXPERIMENT: "0", **parse_env_headers(own, liberal=True)}, timeout=10)
    try:
        if any(exporter.export(part) is not SpanExportResult.SUCCESS for part in _parts(spans)):
            raise RequestError(
                f"{to} did not accept the traces; check that a collector listens there (Phoenix: port 6006, MLflow: port 5000) "
                f"and that {HEADERS[1]} contains the headers that it requires."
            )
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]


def _parts(spans: Iterable[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
    left = iter(spans)
    while part := list(islice(left, SENT_AT_ONCE)):
        yield part
