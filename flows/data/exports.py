"""Exports from a lake: datasets with their cards."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flows.data.imports import config_of
from flows.data.trajectories import EVERY, TRACE_FORMS, Selection, export_traces, messages_dataset, preference_dataset
from flows.evaluation_config import EvaluationConfig
from flows.inputs import tools_of
from rl.renderers.registry import dialect_config
from synth.exporters import ChatOptions, PromptOptions, TextOptions, cpt_dataset, rl_dataset, sft_dataset, tasks_to_write, webshaper_dataset
from synth.formulas.webshaper import write_rows
from warehouse import Lake
from warehouse.errors import RequestError
from warehouse.exporters.dataset import Dataset, card_of, card_path, check_free, format_of, is_file, write_dataset


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
    "openai": lambda lake, at, options: messages_dataset(selection(lake, at, options.where)),
    "preferences": lambda lake, at, options: preference_dataset(selection(lake, at, options.where)),
}


def selection(lake: Lake, at: int, where: str | None) -> Selection:
    """Trajectories at a snapshot that satisfy an SQL condition; None: all."""
    return Selection(lake, at, where or EVERY, _chat(lake))


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
        return export_traces(selection(lake, at, options.where), kind, path, options.settings)
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
