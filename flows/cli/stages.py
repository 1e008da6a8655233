"""`flywheel run` for the whole pipeline, and a command per stage that calls the same functions on an existing home."""

from __future__ import annotations

import json
import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.options import HomeOption, JsonOption, ProfileOption, SetOption, print_json
from flows.variants import Variant
from rl.terminal import say

BudgetOption = Annotated[
    float | None, typer.Option(help="US dollars that teachers may cost per iteration (budget.usd), by their usd_per_million.")
]


def run(
    home: HomeOption = Path("runs/default"),
    profile: ProfileOption = None,
    turns: Annotated[int, typer.Option(min=1, help="Total number of iterations; finished ones are skipped.")] = 1,
    set_: SetOption = None,
    budget_usd: BudgetOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything that can be checked, and print what would run.")] = False,
    json_: JsonOption = False,
) -> None:
    """Run the pipeline for --turns iterations: synthesis, CPT, SFT, RL and evaluation. Running it again resumes.

    Example: flywheel run --profile quickstart --home runs/demo --turns 2
    """
    from flows.home import Home, check_place, choose_config

    place = Home(home)
    config = choose_config(place, profile, [*(set_ or []), *([] if budget_usd is None else [f"budget.usd={budget_usd}"])])
    from flows.inputs import describe_counts

    check_place(place.root)
    logging.getLogger("flywheel").info("checking the configuration and its inputs for %s", place.root)
    from flows.inputs import check_inputs
    from flows.lakes import reading
    from flows.plan import completed_in, has_begun, is_done, missing_policies, plan, turns_to_synthesise
    from flows.preflight import preflight

    if dry_run:
        place.check_claim(config)
    reads: dict[str, dict[str, int | None]] = {}
    with reading(place.root) as lake:
        done = completed_in(lake)
        if not is_done(done, turns):
            preflight(config, place.root, has_begun(done), turns_to_synthesise(done, turns), missing_policies(done, config))
            reads = check_inputs(config, place.root, lake, done)
    if dry_run:
        would_run, would_train_on = plan(done, config, turns), describe_counts(reads)
        if json_:
            resolved = {"home": str(home), "config": config.model_dump(mode="json")}
            print_json({**resolved, "would_run": would_run, "would_train_on": would_train_on})
        else:
            _print_dry_run(home, would_run, would_train_on)
        return
    place.claim(config)
    logging.getLogger("flywheel").info("checked; starting Prefect, and loading torch, TRL and Ray")
    from flows.pipeline import run_pipeline
    from flows.results import evaluation_rows, print_table, sentences
    from warehouse import Lake

    run_pipeline(place, turns)
    with Lake(place.root, read_only=True) as lake:
        rows = evaluation_rows(lake)
        if json_:
            print_json(rows)
        else:
            print_table(rows, sentences(lake))


def _print_dry_run(home: Path, would_run: list[dict[str, str]], would_train_on: dict[str, dict[str, Any]]) -> None:
    from flows.cli.output import print_rows

    left = list(would_train_on)
    rows = []
    for row in would_run:
        stage = next((stage for stage in left if row["state"] == "to do" and row["stage"].endswith(f"-{stage}")), None)
        if stage is not None:
            left.remove(stage)
        counts = would_train_on.get(stage or "", {})
        rows.append({**row, "examples": ", ".join(f"{name} {count}" for name, count in counts.items() if count)})
    print_rows(rows)
    say(f"nothing was started in {home}; --json prints the resolved configuration too")


def init(
    home: HomeOption,
    profile: ProfileOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Create a home's first policy, t0-init, for rollouts and evaluation: from scratch, or from the model in policy.path.

    From scratch, the tokenizer is trained on the training text, which is synthesized first. A later `flywheel run` starts from this policy.

    Example: flywheel init --profile smollm2 --home runs/mine --set policy.path=models/smollm2
    """
    from flows.home import Home, choose_config

    place = Home(home)
    config = choose_config(place, profile, set_ or [])
    from flows.inputs import check_inputs
    from flows.lakes import reading
    from flows.plan import completed_in, has_begun, turns_to_synthesise
    from flows.preflight import preflight

    with reading(place.root) as lake:
        done = completed_in(lake)
        if not has_begun(done):  # a policy from an existing model needs no questions
            preflight(config, place.root, synthesis=turns_to_synthesise(done, 1) if config.policy.path is None else (), stages=["init"])
            check_inputs(config, place.root, lake, done, whole=False)
    place.claim(config)
    from flows.pipeline import make_first_policy

    policy = make_first_policy(place)
    folder = place.policies / policy
    if json_:
        print_json({"home": str(home), "policy": policy, "path": str(folder)})
    else:
        say(f"{policy} in {folder}; flywheel eval --home {home} --policy {policy} --suite NAME")


PolicyOption = Annotated[str, typer.Option(help='Id of a policy; `flywheel sql "SELECT id FROM policies"` lists them.')]
TurnOption = Annotated[int, typer.Option(min=1, help="The iteration.")]


class SynthKind(StrEnum):
    all = "all"
    webshaper = "webshaper"
    fas = "fas"
    has = "has"
    toolworld = "toolworld"
    bugs = "bugs"


class TrainStage(StrEnum):
    cpt = "cpt"
    sft = "sft"
    rl = "rl"


def synth(
    home: HomeOption,
    kind: Annotated[SynthKind, typer.Argument(help="One kind only; by default everything of an iteration.")] = SynthKind.all,
    turn: TurnOption = 1,
    profile: ProfileOption = None,
    set_: SetOption = None,
    from_: Annotated[
        list[Path] | None, typer.Option("--from", metavar="DESCRIPTION", help="A text file that describes a tool world; repeatable.")
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(help="bugs: a folder, source distribution, wheel or installed package whose tests find bugs; repeatable."),
    ] = None,
) -> None:
    """Synthesize the questions and training examples of an iteration, or one kind of them. Running it again resumes.

    Example: flywheel synth webshaper --profile movies --home runs/questions --set synth.webshaper.count=2000

    With a teacher (synth.teacher), synth.expander deepens questions over documents, and synth.direct_attempts drops questions that the
    teacher answers without tools: --set synth.expander.count=200 --set synth.direct_attempts.attempts=3

    From a folder of Markdown and text, a teacher writes questions; the share that passes each check is printed:

    Example: flywheel synth webshaper --home runs/notes --set corpus.kind=pages --set corpus.path=notes --set synth.seeds.count=200
    --set synth.teacher.kind=openai --set synth.teacher.model=Qwen/Qwen3-8B --set synth.teacher.base_url=http://localhost:8000/v1

    From a description of a domain, the teacher writes a tool world (tables, tools, records and tasks), kept if it passes the checks:

    Example: flywheel synth toolworld --from library.md --profile tool_world --home runs/library

    From packages with tests, mutations that some tests notice become tasks of repository repair; no teacher is needed:

    Example: flywheel synth bugs --package toolz-1.1.0.tar.gz --home runs/bugs --set synth.bugs.count=20
    """
    from flows.home import Home, choose_config

    place = Home(home)
    config = choose_config(place, profile, [*(set_ or []), *_described(kind, from_), *_packages(kind, package)], new=profile is not None)
    from flows.plan import completed, synthesis_id
    from flows.preflight import check_teacher

    if synthesis_id(turn, kind.value) not in completed(place):
        check_teacher(config, turn, kind.value)
    place.claim(config)
    from flows.pipeline import run_flow, synthesis_flow

    try:
        run_flow(home, synthesis_flow, turn=turn, kind=kind.value)
    finally:
        if (home / "lake").is_dir():  # also if every proposal was dropped
            _show_survival(home, turn, kind)


def _described(kind: SynthKind, descriptions: list[Path] | None) -> list[str]:
    """Return the setting that names tool world descriptions. Raise RequestError if one is missing or the kind makes no tool world."""
    from warehouse.errors import RequestError

    if not descriptions:
        return []
    if kind not in (SynthKind.toolworld, SynthKind.all):
        raise RequestError(f"--from describes a tool world, and `flywheel synth {kind.value}` does not make one: use toolworld.")
    missing = [path for path in descriptions if not path.is_file()]
    if missing:
        raise RequestError(f"--from: {missing[0]} is not a file; choose a text or Markdown file.")
    return [f"synth.tool_worlds.descriptions={json.dumps([str(path.resolve()) for path in descriptions])}"]


def _packages(kind: SynthKind, packages: list[str] | None) -> list[str]:
    """Return the setting that names packages. Raise RequestError if one is missing or the kind plants no bugs."""
    from warehouse.errors import RequestError

    if not packages:
        return []
    if kind not in (SynthKind.bugs, SynthKind.all):
        raise RequestError(f"--package names a package to plant bugs in, and `flywheel synth {kind.value}` plants none: use bugs.")
    from synth.bugs.packages import check_package

    for package in packages:
        check_package(package)
    placed = [str(Path(package).resolve()) if Path(package).exists() else package for package in packages]
    return [f"synth.bugs.packages={json.dumps(placed)}"]


def _show_survival(home: Path, turn: int, kind: SynthKind) -> None:
    """Print the share of proposed seed questions and tool worlds that survived, if any were requested."""
    from flows.cli.output import print_rows
    from flows.lakes import open_lake
    from flows.plan import synthesis_id
    from flows.report.yields import read_yields, survival, worlds_kept

    with open_lake(home) as lake:
        found = [part.figures for part in read_yields(lake) if part.run == synthesis_id(turn, kind.value)]
    for rows in filter(None, [*map(survival, found), *map(worlds_kept, found)]):
        print_rows(rows)


def train(
    stage: TrainStage,
    home: HomeOption,
    turn: TurnOption = 1,
    variant: Annotated[Variant | None, typer.Option(help="RL with a fixed horizon, or SFT and RL without CPT.")] = None,
) -> None:
    """Train one stage of an iteration whose earlier stages are completed.

    Example: flywheel train rl --home runs/demo --turn 1 --variant fixed_first
    """
    from flows.variants import check_variant

    if variant is not None:
        check_variant(stage.value, variant.value)
    from flows.home import Home
    from flows.inputs import check_before, check_inputs
    from flows.lakes import open_lake
    from flows.plan import completed_in, has_begun
    from flows.preflight import preflight

    config, chosen = Home(home).load(), variant.value if variant else ""
    with open_lake(home) as lake:
        done = completed_in(lake)
        preflight(config, home, begun=has_begun(done), synthesis=(), stages=[stage.value])
        check_inputs(config, home, lake, done, whole=False)
        check_before(lake, config, stage.value, turn, chosen)
    from flows.pipeline import run_flow, training_flow

    run_flow(home, training_flow, stage=stage.value, turn=turn, variant=chosen)


def _as_sampled(temperature: float) -> float:
    from rl.engines.config import as_sampled

    try:
        return as_sampled(temperature)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


TemperatureOption = Annotated[float, typer.Option(callback=_as_sampled, help="0 is greedy.")]


def rollout(
    home: HomeOption,
    policy: PolicyOption,
    suite: Annotated[str | None, typer.Option(help="Tasks of this split, such as a held-out suite or train.")] = None,
    tasks: Annotated[str | None, typer.Option(metavar="SQL", help="SQL condition on the table tasks.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Trajectories per task.")] = 1,
    temperature: TemperatureOption = 1.0,
    horizon: Annotated[int | None, typer.Option(min=1, help="Maximum turns; by default that of evaluations.")] = None,
    json_: JsonOption = False,
) -> None:
    """Sample trajectories of a policy, store them under the stage `rollout`, and print their outcomes. Running it again resumes.

    The policy `teacher` is the home's teacher (synth.teacher); its trajectories are stored under the stage `demonstration`.

    Example: flywheel rollout --home runs/demo --policy t1-rl --tasks "split = 'train' AND hops = 2" --samples 4
    """
    from warehouse.errors import RequestError

    if (suite is None) == (tasks is None):
        raise RequestError("set either --suite NAME or --tasks SQL.")
    from flows.config import TEACHER, playing_teacher
    from flows.home import Home
    from flows.inputs import tasks_with
    from flows.lakes import open_lake, policy_of

    config = Home(home).load()  # report configuration errors before a flow server is started
    condition = tasks if tasks is not None else f"split = '{str(suite).replace(chr(39), chr(39) * 2)}'"
    with open_lake(home) as lake:
        if policy == TEACHER:
            playing_teacher(config)
        else:
            policy_of(lake, policy)
        tasks_with(lake, condition)
    config.evaluation.open_verifiers()
    from flows.pipeline import run_flow, sampling_flow

    _show(
        run_flow(home, sampling_flow, policy=policy, condition=condition, samples=samples, temperature=temperature, horizon=horizon), json_
    )


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
    else:
        from flows.cli.output import print_rows

        print_rows(rows)
