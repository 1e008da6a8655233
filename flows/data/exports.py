"""`flywheel export` for datasets: what the lake holds at a snapshot, written with its card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flows.data.imports import config_of
from flows.evaluation_config import EvaluationConfig
from flows.inputs import tools_of
from rl.renderers.registry import dialect_config
from synth.exporters import ChatOptions, PromptOptions, TextOptions, cpt_dataset, rl_dataset, sft_dataset, tasks_to_write, webshaper_dataset
from synth.formulas.webshaper import write_rows
from warehouse import Lake
from warehouse.errors import RequestError
from warehouse.exporters.dataset import Dataset, card_beside, card_of, check_free, format_of, is_file, write_dataset


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Which part of the lake to export, and how; an option concerns the kinds that know it.

    Attributes:
        at: snapshot of the lake; the present one without it.
        turn, near_duplicates: of `cpt` and `sft`; see `TextOptions`.
        split_by, held_out: of `rl`; see `PromptOptions`.
    """

    form: str | None = None
    at: int | None = None
    turn: int | None = None
    near_duplicates: float | None = None
    split_by: str | None = None
    held_out: float = 0.1

    @property
    def settings(self) -> str:
        """The options that the same export must be given again."""
        given = {"--turn": self.turn, "--near-duplicates": self.near_duplicates, "--split-by": self.split_by}
        given |= {"--held-out": self.held_out if self.split_by else None}
        return "".join(f" {name} {value}" for name, value in given.items() if value is not None)


_BUILDERS: dict[str, Callable[[Lake, int, ExportOptions], Dataset]] = {
    "cpt": lambda lake, at, options: cpt_dataset(lake, at, TextOptions(options.turn, options.near_duplicates)),
    "sft": lambda lake, at, options: sft_dataset(lake, at, TextOptions(options.turn, options.near_duplicates), _chat(lake)),
    "rl": lambda lake, at, options: rl_dataset(lake, at, PromptOptions(options.split_by, options.held_out, _default_verifier(lake))),
    "webshaper": lambda lake, at, options: webshaper_dataset(lake, at),
}


def _default_verifier(lake: Lake) -> str:
    """Who judges the tasks of a home that name no verifier."""
    config = config_of(lake.place.home)
    return (config.evaluation if config is not None else EvaluationConfig()).verifier


def _chat(lake: Lake) -> ChatOptions:
    """What the home's own runs are offered and told; nothing where it has no configuration."""
    config = config_of(lake.place.home)
    if config is None:
        return ChatOptions()
    system = None if config.rollout.speaks_tags else dialect_config(config.rollout.dialect, config.rollout.dialects).system
    try:
        return ChatOptions(tools_of(config, 1), system)
    except RequestError:  # its file of tools is not there any more
        return ChatOptions((), system)


KINDS = tuple(_BUILDERS)


def export_dataset(lake: Lake, kind: str, path: Path, options: ExportOptions) -> Dataset:
    """Write the dataset `kind` to `path` with its card, and return it.

    Raises:
        RequestError: `path` is taken, options contradict each other, the snapshot is unknown, or there is nothing to write.
    """
    form = format_of(path, options.form)
    check_free(path)
    at = lake.snapshot() if options.at is None else options.at
    lake.query("SELECT 1", at=at)  # refuses a snapshot that is not there
    dataset = replace(_BUILDERS[kind](lake, at, options), settings=options.settings)
    if not dataset.rows:
        raise RequestError(f"{lake.place.home} has nothing for {kind} at snapshot {at}; make it first, for example with `flywheel synth`.")
    if kind == "webshaper" and form == "jsonl" and is_file(path):
        write_rows(tasks_to_write(lake, at)[0], path)
        card_beside(path).write_text(card_of(dataset, form, {"train": path.name}), encoding="utf-8")
    else:
        write_dataset(dataset, path, form)
    return dataset
