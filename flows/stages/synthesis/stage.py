"""The synthesis stage: runs all parts of an iteration's synthesis in order, or those of one kind, and checks the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from flows.context import RunContext, StageRun
from flows.inputs import check_examples, choose_tasks
from flows.plan import SynthesisKind
from flows.stages.synthesis.actions import FirstOrder, foreign_decisions, own_decisions
from flows.stages.synthesis.batches import EARLIER, IMPORTED, Batch, Guard, Work, begin, dropped_by, work_off
from flows.stages.synthesis.bugs import bugs
from flows.stages.synthesis.examples import again, corpora, demonstrations, documents, rejection_sampled, stored_runs, taught
from flows.stages.synthesis.questions import DerivedQuestions, DirectAttempts, SeedQuestions, questions, suites
from flows.stages.synthesis.sources import Material
from flows.stages.synthesis.tool_worlds import tool_worlds
from synth.bugs.config import STAGE as BUGS
from synth.corpora import seed_proposals
from synth.parts import CPT_KINDS, SFT_KINDS
from synth.teachers import teacher as asked_teacher
from synth.teachers.model_teacher import open_teacher
from synth.worlds.writing_config import STAGE as TOOL_WORLDS
from warehouse.errors import RequestError


def ground(work: Work, material: Material, kind: SynthesisKind) -> Iterator[Batch]:
    """Batches that all iterations build on, regardless of budgets: the corpora and the suites."""
    if kind not in ("has", "toolworld", "bugs") and (work.turn == 1 or kind != "all"):
        yield from corpora(material.sources, everything=kind == "all")
    if kind == "all" and work.turn == 1:
        yield from suites(work, material)


def parts(work: Work, material: Material, guard: Guard, kind: SynthesisKind) -> Iterator[Batch]:
    """All other batches of one kind of work, in order."""
    config, settings = work.context.config, work.context.config.for_turn(work.turn)
    if kind in ("all", "webshaper"):
        attempts = DirectAttempts(work)
        derived = DerivedQuestions(work, material, guard, attempts)
        yield from questions(work, material, guard, attempts)
        yield from SeedQuestions(work, material, guard, attempts).batches()
        yield from derived.rewordings()
        yield from derived.expansions()
    if kind in ("all", "toolworld"):
        yield from tool_worlds(work, guard)
    if kind in ("all", "bugs"):
        yield from bugs(work, guard)
    reads_text = "cpt" in settings.wheel.stages or config.policy.path is None  # CPT, or the tokenizer of a policy from scratch
    read = settings.cpt.sources if kind == "all" and reads_text else ()
    if kind == "fas" or "fas" in read:
        yield from FirstOrder(work, material, guard).batches()
    if kind == "has" or "has" in read:
        yield from own_decisions(work, material, guard)
        yield from foreign_decisions(work, material, guard)
    if kind == "all" and "sft" in settings.wheel.stages:
        yield from cold_start(work, material, guard)
    if "documents" in read:
        yield from documents(work, material, guard)
    if "again" in read:
        yield from again(work, CPT_KINDS)


def cold_start(work: Work, material: Material, guard: Guard) -> Iterator[Batch]:
    """Examples for SFT, by the sources in `sft.from`."""
    sft = work.context.config.for_turn(work.turn).sft
    for source in sft.sources:
        match source:
            case "oracle":
                yield from demonstrations(work, material, guard)
            case "own":
                yield from rejection_sampled(work)
            case "imported":
                yield from stored_runs(work, material, guard, "imported", IMPORTED, sft.imported)
            case "rollouts":
                yield from stored_runs(work, material, guard, "rollouts", "TRUE", sft.rollouts)
            case "teacher":
                yield from taught(work, material, guard)
            case "again":
                yield from again(work, SFT_KINDS)


def synthesise(context: RunContext, run: StageRun, turn: int, kind: SynthesisKind = "all") -> dict[str, Any]:
    """Run the synthesis of an iteration, or one kind of it. Return the resulting counts in the lake by kind."""
    settings = context.config.for_turn(turn).synth
    if kind == "has":
        _check_trajectories(context, turn, settings.has_count, settings.has.where)
    if kind == "toolworld" and settings.tool_worlds is None:
        raise RequestError("synth.tool_worlds describes no tool world: use --from DESCRIPTION, or set synth.tool_worlds.descriptions.")
    if kind == "bugs" and settings.bugs is None:
        raise RequestError("synth.bugs names no package: use --package PATH, or set synth.bugs.packages.")
    asked = settings.teacher_of(kind)
    if asked is not None and asked.kind == "engine":
        context.stop_engines()  # replaced by the teacher's own
        context.start_ray()
    with ExitStack() as opened:
        teacher, judge = (
            None if each is None else opened.enter_context(open_teacher(each, context.lake))
            for each in (asked, settings.judge if asked is not None else None)
        )
        work, material, guard = begin(context, turn, teacher, judge)
        work_off(run, ground(work, material, kind), needed=True)
        work_off(run, parts(work, material, guard, kind), counted=work.counted)
    splits = {"all": ("train", *context.config.evaluation.all_suites), "webshaper": ("train",)}.get(kind, ())
    counts = {f"tasks.{split}": _count(context, "tasks", "split = ?", [split]) for split in splits}
    if not run.stopped:
        _check_tasks(context, run, turn, kind, [split for split in splits if not counts[f"tasks.{split}"]])
        for stage in context.config.for_turn(turn).wheel.stages if kind == "all" else ():
            check_examples(context.lake, context.config, stage, turn)
    return {**counts, **_examples_by_kind(context, turn), "failures": dropped_by(run)}


def _check_tasks(context: RunContext, run: StageRun, turn: int, kind: SynthesisKind, empty: Sequence[str]) -> None:
    """Check that every suite has tasks, that training has some if requested, and that RL finds tasks to draw from."""
    wanted = {"train": context.config.for_turn(turn).synth.webshaper, **context.config.evaluation.all_suites}
    if "train" in empty and not context.config.corpus.trains_on_facts and context.config.for_turn(turn).synth.seeds is not None:
        raise _nothing_left(context, run, "question about the documents from the teacher", seed_proposals.STAGE)
    if kind == "toolworld" and not _count(context, "tasks", "environment = ?", ["tool_world"]):
        raise _nothing_left(context, run, "task of a tool world from the teacher", TOOL_WORLDS)
    if kind == "bugs" and not _count(context, "tasks", "provenance->>'source' = ?", [BUGS]):
        raise _nothing_left(context, run, "planted bug", BUGS)
    failed = [split for split in empty if sum(wanted[split].wanted().values())]
    if failed:
        first, config = failed[0], wanted[failed[0]]
        setting = "synth.webshaper" if first == "train" else context.config.evaluation.setting_of(first)
        deepest = max(depth for depth, count in config.wanted().items() if count)
        raise RequestError(
            f"the graph gives no task for {', '.join(failed)}: {setting}.{config.asked_by} requests up to {deepest} {config.unit}; request "
            f"fewer, or add facts and documents that state them. The reasons are in the lake: "
            f'flywheel sql "SELECT kind, count(*) FROM failures GROUP BY kind" --home {context.home.root}'
        )
    left = [split for split in empty if split != "train"]
    if left:
        raise RequestError(
            f"the suite {left[0]} has no task, and {context.config.evaluation.setting_of(left[0])}.counts requests none: raise it, or "
            f"import tasks with `flywheel import tasks PATH --split {left[0]}`."
        )
    if kind == "all" and "rl" in context.config.for_turn(turn).wheel.stages:
        choose_tasks(context.lake, context.config, turn)


def _check_trajectories(context: RunContext, turn: int, wanted: int, where: str | None) -> None:
    """Check that `flywheel synth has` has trajectories to work on."""
    if not wanted:
        raise RequestError("synth.has_count is 0: set it to the number of trajectories to turn into decision records.")
    if where is None and not _count(context, "trajectories", f"({EARLIER}) OR {IMPORTED}", [turn]):
        raise RequestError(f"{context.home.root} has no trajectory of earlier turns and none imported; import some with `flywheel import`.")


def _nothing_left(context: RunContext, run: StageRun, what: str, stage: str) -> RequestError:
    """Create the error for a stage none of whose output passed the checks, with the most frequent reason."""
    sql = (
        "SELECT reason, count(*) AS times FROM failures WHERE stage IN (?, ?) AND NOT starts_with(kind, 'retried_') AND recorded >= ? "
        "GROUP BY reason ORDER BY times DESC, reason LIMIT 1"
    )
    counted = context.lake.query(sql, [stage, asked_teacher.STAGE, run.run.started.replace(tzinfo=None)]).to_pylist()
    most = "".join(f"; most often, {row['times']} times: {row['reason']:.200}" for row in counted)
    ask = f'flywheel sql "SELECT stage, kind, reason, count(*) FROM failures GROUP BY ALL" --home {context.home.root}'
    return RequestError(f"no {what} passed the checks{most}. All reasons: {ask}")


def _count(context: RunContext, table: str, where: str, parameters: Sequence[Any]) -> int:
    return int(context.lake.query(f"SELECT count(*) AS n FROM {table} WHERE {where}", parameters).column("n")[0].as_py())


def _examples_by_kind(context: RunContext, turn: int) -> dict[str, int]:
    rows = context.lake.query("SELECT kind, count(*) AS n FROM examples WHERE wheel_turn = ? GROUP BY kind ORDER BY kind", [turn])
    return {f"examples.{row['kind']}": row["n"] for row in rows.to_pylist()}
