"""The stage: all parts of a turn's synthesis in their order, or those of one kind, and what there is afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from flows.context import RunContext
from flows.plan import SynthesisKind
from flows.stage_run import StageRun
from flows.stages.synthesis.actions import first_order, foreign_decisions, own_decisions
from flows.stages.synthesis.batches import Batch, dropped_by, work_off
from flows.stages.synthesis.context import EARLIER, IMPORTED, SynthesisContext
from flows.stages.synthesis.examples import again, corpora, demonstrations, documents, rejection_sampled, stored_runs, taught
from flows.stages.synthesis.questions import expansions, questions, rewordings, seeds, suites
from flows.stages.synthesis.tool_worlds import tool_worlds
from flows.task_choice import choose_tasks
from synth.corpora import seed_questions
from synth.parts import CPT_KINDS, SFT_KINDS
from synth.teachers import teacher as asked_teacher
from synth.teachers.model_teacher import open_teacher
from synth.worlds import world_proposals
from warehouse.errors import RequestError


def ground(synthesis: SynthesisContext, kind: SynthesisKind) -> Iterator[Batch]:
    """What all turns stand on, and no budget cuts: the corpora and the suites."""
    if kind not in ("has", "toolworld") and (synthesis.turn == 1 or kind != "all"):
        yield from corpora(synthesis, everything=kind == "all")
    if kind == "all" and synthesis.turn == 1:
        yield from suites(synthesis)


def parts(synthesis: SynthesisContext, kind: SynthesisKind) -> Iterator[Batch]:
    """All other batches of one kind of work, in their order."""
    if kind in ("all", "webshaper"):
        yield from questions(synthesis)
        yield from seeds(synthesis)
        yield from rewordings(synthesis)
        yield from expansions(synthesis)
    if kind in ("all", "toolworld"):
        yield from tool_worlds(synthesis)
    read = synthesis.context.config.for_turn(synthesis.turn).cpt.sources if kind == "all" and synthesis.reads_text else ()
    if kind == "fas" or "fas" in read:
        yield from first_order(synthesis)
    if kind == "has" or "has" in read:
        yield from own_decisions(synthesis)
    if kind == "has":
        yield from foreign_decisions(synthesis)
    if kind == "all" and "sft" in synthesis.context.config.wheel.stages:
        yield from cold_start(synthesis)
    if "documents" in read:
        yield from documents(synthesis)
    if "again" in read:
        yield from again(synthesis, CPT_KINDS)


def cold_start(synthesis: SynthesisContext) -> Iterator[Batch]:
    """The runs that SFT learns from, of each source that `sft.from` names."""
    sft = synthesis.context.config.for_turn(synthesis.turn).sft
    for source in sft.sources:
        match source:
            case "oracle":
                yield from demonstrations(synthesis)
            case "own":
                yield from rejection_sampled(synthesis)
            case "imported":
                yield from stored_runs(synthesis, "imported", IMPORTED, sft.imported)
            case "rollouts":
                yield from stored_runs(synthesis, "rollouts", "TRUE", sft.rollouts)
            case "teacher":
                yield from taught(synthesis)
            case "again":
                yield from again(synthesis, SFT_KINDS)


def synthesise(context: RunContext, run: StageRun, turn: int, kind: SynthesisKind = "all") -> dict[str, Any]:
    """Do the synthesis of a turn, or one kind of it alone, and return how much there is of each thing."""
    settings = context.config.for_turn(turn).synth
    if kind == "has":
        _check_trajectories(context, turn, settings.has_count)
    if kind == "toolworld" and settings.tool_worlds is None:
        raise RequestError("synth.tool_worlds describes no tool world: give --from DESCRIPTION, or set synth.tool_worlds.descriptions.")
    asked = settings.teacher_of(kind)
    if asked is not None and asked.kind == "engine":
        context.stop_engines()  # the teacher's own take their place
        context.start_ray()
    with open_teacher(asked, context.lake) if asked is not None else nullcontext() as teacher:
        synthesis = SynthesisContext(context, turn, teacher)
        work_off(run, ground(synthesis, kind), needed=True)
        work_off(run, parts(synthesis, kind), counted=synthesis.counted)
    splits = {"all": ("train", *context.config.evaluation.all_suites), "webshaper": ("train",)}.get(kind, ())
    figures = {f"tasks.{split}": _count(context, "tasks", "split = ?", [split]) for split in splits}
    if not run.stopped:
        _check_tasks(context, run, turn, kind, [split for split in splits if not figures[f"tasks.{split}"]])
        for stage in context.config.wheel.stages if kind == "all" else ():
            context.check_examples(stage, turn)
    return {**figures, **_examples_by_kind(context, turn), "failures": dropped_by(run)}


def _check_tasks(context: RunContext, run: StageRun, turn: int, kind: SynthesisKind, empty: Sequence[str]) -> None:
    """That every suite has a task, training one where any was to be made, and RL those that it draws from, wherever they came from."""
    wanted = {"train": context.config.for_turn(turn).synth.webshaper, **context.config.evaluation.all_suites}
    if "train" in empty and context.config.corpus.kind == "pages" and context.config.for_turn(turn).synth.seeds is not None:
        raise _nothing_left(context, run, "question about the pages", seed_questions.STAGE)
    if kind == "toolworld" and not _count(context, "tasks", "environment = ?", ["tool_world"]):
        raise _nothing_left(context, run, "task of a tool world", world_proposals.STAGE)
    failed = [split for split in empty if sum(wanted[split].wanted().values())]
    if failed:
        first, config = failed[0], wanted[failed[0]]
        setting = "synth.webshaper" if first == "train" else context.config.evaluation.setting_of(first)
        deepest = max(depth for depth, count in config.wanted().items() if count)
        raise RequestError(
            f"the graph gives no task for {', '.join(failed)}: {setting}.{config.asked_by} asks for up to {deepest} {config.unit}; ask for "
            f"fewer, or bring more facts and documents that state them. The reasons are in the lake: "
            f'flywheel sql "SELECT kind, count(*) FROM failures GROUP BY kind" --home {context.home.root}'
        )
    left = [split for split in empty if split != "train"]
    if left:
        raise RequestError(
            f"the suite {left[0]} has no task, and {context.config.evaluation.setting_of(left[0])}.counts asks for none: raise it, or "
            f"import tasks with `flywheel import tasks PATH --split {left[0]}`."
        )
    if kind == "all" and "rl" in context.config.wheel.stages:
        choose_tasks(context.lake, context.config, turn)


def _check_trajectories(context: RunContext, turn: int, wanted: int) -> None:
    """That decisions alone, if they are asked for, can be made of something."""
    if not wanted:
        raise RequestError("synth.has_count is 0, so no trajectory would become decision records; set it to how many should.")
    if not _count(context, "trajectories", f"({EARLIER}) OR {IMPORTED}", [turn]):
        raise RequestError(f"{context.home.root} has no trajectory of earlier turns and none imported; bring some in by `flywheel import`.")


def _nothing_left(context: RunContext, run: StageRun, what: str, stage: str) -> RequestError:
    """That a teacher brought nothing that held at this stage of synthesis, with what became of most of what the run asked it there."""
    sql = (
        "SELECT reason, count(*) AS times FROM failures WHERE stage IN (?, ?) AND NOT starts_with(kind, 'retried_') AND recorded >= ? "
        "GROUP BY reason ORDER BY times DESC, reason LIMIT 1"
    )
    counted = context.lake.query(sql, [stage, asked_teacher.STAGE, run.run.started.replace(tzinfo=None)]).to_pylist()
    most = "".join(f"; most often, {row['times']} times: {row['reason']:.200}" for row in counted)
    ask = f'flywheel sql "SELECT stage, kind, reason, count(*) FROM failures GROUP BY ALL" --home {context.home.root}'
    return RequestError(f"no {what} is left of what the teacher was asked for{most}. All reasons: {ask}")


def _count(context: RunContext, table: str, where: str, parameters: Sequence[Any]) -> int:
    return int(context.lake.query(f"SELECT count(*) AS n FROM {table} WHERE {where}", parameters).column("n")[0].as_py())


def _examples_by_kind(context: RunContext, turn: int) -> dict[str, int]:
    rows = context.lake.query("SELECT kind, count(*) AS n FROM examples WHERE wheel_turn = ? GROUP BY kind ORDER BY kind", [turn])
    return {f"examples.{row['kind']}": row["n"] for row in rows.to_pylist()}
