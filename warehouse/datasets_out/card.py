"""The card of a dataset: counts, sources, licences, filters, snapshot; Markdown with the front matter that the Hugging Face Hub reads."""

from __future__ import annotations

from collections.abc import Mapping

from warehouse.datasets_out.dataset import UNTRACED, Dataset, licence_of


def card_of(dataset: Dataset, form: str, files: Mapping[str, str]) -> str:
    """The text of the card.

    Args:
        form: the format as `flywheel export` calls it.
        files: for each split the path of its file within the dataset.
    """
    parts = [_front_matter(files), f"# {dataset.kind}", dataset.about, _counts(dataset), _columns(dataset), _sources(dataset)]
    return "\n\n".join([*parts, _filters(dataset), _again(dataset, form)]) + "\n"


def _front_matter(files: Mapping[str, str]) -> str:
    entries = [f"  - split: {split}\n    path: {path}" for split, path in files.items()]
    return "\n".join(["---", "license: other", "configs:", "- config_name: default", "  data_files:", *entries, "---"])


def _counts(dataset: Dataset) -> str:
    lines = [f"| {split} | {len(rows)} |" for split, rows in dataset.splits.items()]
    return "\n".join(["| split | rows |", "| --- | --- |", *lines])


def _columns(dataset: Dataset) -> str:
    lines = [f"| `{name}` | {dataset.columns[name]} |" for name in dataset.schema.names]
    return "\n".join(["| column | what it holds |", "| --- | --- |", *lines])


def _sources(dataset: Dataset) -> str:
    traced = sorted((source, count) for source, count in dataset.sources.items() if source != UNTRACED)
    lines = [f"| {source} | {licence_of(source)} | {count} |" for source, count in traced]
    if dataset.sources[UNTRACED]:
        lines.append(f"| {UNTRACED} | that of any source of the lake | {dataset.sources[UNTRACED]} |")
    return "\n".join(["## Sources and licences", "", "| source | licence | rows |", "| --- | --- | --- |", *lines])


def _filters(dataset: Dataset) -> str:
    return "\n".join(["## Filters", "", *(f"- {sentence}" for sentence in dataset.filters or ["none"])])


def _again(dataset: Dataset, form: str) -> str:
    command = f"flywheel export {dataset.kind} --home HOME --to PATH --format {form} --at {dataset.snapshot}{dataset.settings}"
    return (
        f"## The same again\n\nRead at snapshot {dataset.snapshot} of the lake. With the same versions of code and pyarrow this "
        f"writes these files again, byte for byte:\n\n```\n{command}\n```"
    )
