"""The stage: all parts of a turn's synthesis in their order, or those of one kind, and what there is afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from flows.plan import SynthesisKind
from flows.runs import StageRun
from flows.stages.synthesis.batches import Batch, dropped_by, work_off
from flows.stages.synthesis.bench import EARLIER, Bench
from flows.stages.synthesis.cold_start import demonstrations, rejection_sampled
from flows.stages.synthesis.corpus_text import corpora, documents
from flows.stages.synthesis.first_order import first_order
from flows.stages.synthesis.higher_order import IMPORTED, foreign_decisions, own_decisions
from flows.stages.synthesis.questions import expansions, questions, rewordings, suites
from flows.workshop import Workshop
from synth.teachers.opening import open_teacher
from warehouse.errors import RequestError


def ground(bench: Bench, kind: SynthesisKind) -> Iterator[Batch]:
    """What all turns stand on, and no budget cuts: the corpora and the suites."""
    if kind != "has" and (bench.turn == 1 or kind != "all"):
        yield from corpora(bench, everything=kind == "all")
    if kind == "all" and bench.turn == 1:
        yield from suites(bench)


def parts(bench: Bench, kind: SynthesisKind) -> Iterator[Batch]:
    """All other batches of one kind of work, in their order."""
    if kind in ("all", "webshaper"):
        yield from questions(bench)
        yield from rewordings(bench)
        yield from expansions(bench)
    if kind in ("all", "fas"):
        yield from first_order(bench)
    if kind in ("all", "has"):
        yield from own_decisions(bench)
    if kind == "has":
        yield from foreign_decisions(bench)
    if kind == "all":
        for part in (demonstrations, rejection_sampled, documents):
            yield from part(bench)


def synthesise(shop: Workshop, run: StageRun, turn: int, kind: SynthesisKind = "all") -> dict[str, Any]:
    """Do the synthesis of a turn, or one kind of it alone, and return how much there is of each thing."""
    settings = shop.config.for_turn(turn).synth
    if kind == "has":
        _check_trajectories(shop, turn, settings.has_count)
    wanted = settings.teacher is not None and (kind != "webshaper" or bool(settings.rewording or settings.expander))
    with open_teacher(settings.teacher, shop.lake) if settings.teacher is not None and wanted else nullcontext() as teacher:
        bench = Bench(shop, turn, teacher)
        work_off(run, ground(bench, kind), needed=True)
        work_off(run, parts(bench, kind))
    splits = {"all": ("train", *shop.config.evaluation.suites), "webshaper": ("train",)}.get(kind, ())
    figures = {f"tasks.{split}": _count(shop, "tasks", "split = ?", [split]) for split in splits}
    empty = [name.removeprefix("tasks.") for name, count in figures.items() if not count]
    if empty and not run.stopped:
        raise RequestError(
            f"the graph gives no task for {', '.join(empty)}; the reasons are in the lake: "
            f'flywheel sql "SELECT kind, count(*) FROM failures GROUP BY kind" --home {shop.home.root}'
        )
    return {**figures, **_examples_by_kind(shop, turn), "failures": dropped_by(run)}


def _check_trajectories(shop: Workshop, turn: int, wanted: int) -> None:
    """That decisions alone, if they are asked for, can be made of something."""
    if not wanted:
        raise RequestError("synth.has_count is 0, so no trajectory would become decision records; set it to how many should.")
    if not _count(shop, "trajectories", f"({EARLIER}) OR {IMPORTED}", [turn]):
        raise RequestError(f"{shop.home.root} has no trajectory of earlier turns and none imported; bring some in by `flywheel import`.")


def _count(shop: Workshop, table: str, where: str, parameters: Sequence[Any]) -> int:
    return int(shop.lake.query(f"SELECT count(*) AS n FROM {table} WHERE {where}", parameters).column("n")[0].as_py())


def _examples_by_kind(shop: Workshop, turn: int) -> dict[str, int]:
    rows = shop.lake.query("SELECT kind, count(*) AS n FROM examples WHERE wheel_turn = ? GROUP BY kind ORDER BY kind", [turn])
    return {f"examples.{row['kind']}": row["n"] for row in rows.to_pylist()}
