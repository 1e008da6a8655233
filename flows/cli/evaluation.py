"""Commands that judge: `eval` a policy, `verify` rows, `validate` a task set, `reverify` stored trajectories."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import HomeOption, JsonOption, SetOption, print_json
from rl.terminal import say

if TYPE_CHECKING:
    from eval.graders.choice import Verifiers
    from eval.suites.validation import Validation
    from flows.suites.config import SuiteConfig
    from warehouse import Lake

SuiteOption = Annotated[
    str | None, typer.Option(help="A suite of the home, one of profiles/suites, or the path of a TOML file; by default the home's first.")
]


def evaluate(
    home: HomeOption,
    policy: Annotated[str | None, typer.Option(help="Id of a policy; by default the home's champion.")] = None,
    suite: SuiteOption = None,
    against: Annotated[str | None, typer.Option(help="Another policy, already evaluated on the suite, to compare with.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the suite and its contamination; run nothing.")] = False,
    retry_invalid: Annotated[bool, typer.Option("--retry-invalid", help="Repeat attempts that a fault made invalid.")] = False,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Evaluate a policy on a suite and print the results with 95 % intervals. Exit status 1 if too few attempts were judged for a result.

    Running it again resumes an unfinished evaluation and only prints a finished one.

    Example: flywheel eval --home runs/demo --policy t1-rl --suite held_out --json
    """
    from eval.graders.choice import JUDGE
    from flows.home import Home
    from flows.judges import check_judge
    from flows.lakes import open_lake, policy_of
    from flows.plan import evaluation_id
    from flows.suites.config import HomeSource, TaskSource, check_data, check_limits, find_suite
    from flows.suites.results import check_same, read_coverage, read_trials
    from flows.suites.tasks import check_environment, draw_tasks

    config = Home(home).load()
    suite = suite or next(iter(config.evaluation.all_suites), "held_out")
    chosen = find_suite(suite, config.evaluation, set_ or [])
    check_data(chosen)
    verifiers = config.evaluation.open_verifiers(listed=chosen.own_verifier)  # report configuration errors before a server is started
    if chosen.verifier == JUDGE:
        check_judge(config.evaluation.judge)
    check_environment(chosen, config)
    with open_lake(home) as lake:
        named = policy or _champion(lake)
        for each in filter(None, (named, against)):
            policy_of(lake, each)
        check_same(lake, chosen)
        ended = bool(lake.runs("id = ? AND state = 'completed'", [evaluation_id(named, chosen.name)]))
        trials = read_trials(lake, named, chosen.name, verifiers)
        done = ended and read_coverage(lake, chosen, trials).missing <= 0  # tasks may have been added since
        if not done:
            check_limits(chosen, config)
            if isinstance(chosen.source, HomeSource | TaskSource):
                draw_tasks(chosen, config, lake)
    if check:
        options = "".join(f" --set {text}" for text in set_ or [])
        _check_suite(home, chosen, named, f"flywheel eval --home {home} --policy {named} --suite {suite}{options}", json_)
    else:
        if retry_invalid:
            done = not _forget_invalid(home, chosen, named) and done
        if not done:
            _run_suite(home, chosen, named)
        _report_suite(home, chosen, verifiers, named, against, json_)


def _forget_invalid(home: Path, suite: SuiteConfig, policy: str) -> int:
    from flows.context import open_context
    from flows.suites.results import forget_invalid

    with open_context(home) as context:
        return forget_invalid(context.lake, policy, suite.name)


def _run_suite(home: Path, suite: SuiteConfig, policy: str) -> None:
    from flows.context import open_context
    from flows.pipeline import evaluation_flow, run_flow
    from flows.plan import evaluation_id, reopen
    from flows.suites.config import is_own

    with open_context(home) as context:
        reopen(context.lake, evaluation_id(policy, suite.name))
    if is_own(suite):
        run_flow(home, evaluation_flow, policy=policy, suite=suite.name)
    else:
        from flows.suites.evaluation import suite_flow

        run_flow(home, suite_flow, policy=policy, suite=suite)


def _report_suite(home: Path, suite: SuiteConfig, verifiers: Verifiers, policy: str, against: str | None, as_json: bool) -> None:
    from flows.lakes import open_lake
    from flows.suites.results import read_report

    with open_lake(home) as lake:
        report = read_report(lake, suite, policy, verifiers, against)
    if as_json:
        print_json(report.record())
    else:
        from flows.suites.results import print_report

        print_report(report)
    if report.objection is not None:
        raise typer.Exit(1)


def _check_suite(home: Path, suite: SuiteConfig, policy: str, command: str, as_json: bool) -> None:
    from eval.suites.validation import TraitState
    from flows.home import Home
    from flows.lakes import open_lake
    from flows.suites.contamination import contamination
    from flows.suites.results import check_suite
    from flows.suites.tasks import draw_tasks

    config = Home(home).load()
    with open_lake(home) as lake:
        drawn = draw_tasks(suite, config, lake)
        traits = check_suite(lake, suite, drawn, config.evaluation.open_verifiers(listed=suite.own_verifier), command)
        trained = contamination(lake, policy, suite.name, drawn)
    if as_json:
        record = asdict(trained) | {"counts": trained.counts, "tasks_asked": trained.tasks_asked}
        print_json({"suite": suite.name, "traits": [asdict(trait) for trait in traits], "policy": policy, "contamination": record})
    else:
        from flows.suites.contamination import print_contamination
        from flows.suites.results import print_traits

        print_traits(suite.name, traits)
        print_contamination(policy, trained)
    if any(trait.state is TraitState.NOT_KEPT for trait in traits if trait.name in ("label quality", "grading checked")):
        raise typer.Exit(1)


def _champion(lake: Lake) -> str:
    from flows.lakes import champion_of
    from warehouse.errors import RequestError

    champion = champion_of(lake)
    if champion is None:
        home, known = lake.place.home, ", ".join(policy.id for policy in lake.policies())
        todo = f"choose a policy with --policy (it has {known})" if known else f"it has no policy: run `flywheel init --home {home}` first"
        raise RequestError(f"{home} has no champion; {todo}.")
    return champion.id


def verify(
    kind: Annotated[str, typer.Argument(help="qa_em, qa_f1, set, gsm8k, number, date, math, …; a wrong name lists all.")],
    input_: Annotated[Path, typer.Option("--input", help="JSON lines {id, gold, pred, options?}, or a table (.csv, .parquet).")],
    output: Annotated[Path, typer.Option("--output", help="JSON lines {id, value, verdict, error}.")],
) -> None:
    """Judge rows with a verifier. A row that cannot be judged gets an error instead of a value.

    Example: flywheel verify qa_em --input rows.jsonl --output scored.jsonl
    """
    from eval.graders.rows import read_rows, verify_rows
    from warehouse.drafts import drafted

    judged = invalid = 0
    rows = verify_rows(kind, read_rows(input_))
    with drafted(output) as draft, draft.open("w") as file:
        for row in rows:
            judged, invalid = judged + 1, invalid + (row.value is None)
            file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
    say(f"{judged} rows judged by {kind}, {invalid} of them invalid, written to {output}")


def validate(
    kind: Annotated[str | None, typer.Argument(help="The verifier to validate; for a home, by default its own.")] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="JSON lines {id, gold, options?, question?}, or a table.")] = None,
    home: Annotated[Path | None, typer.Option("--home", help="A run's folder, instead of --input.")] = None,
    suite: Annotated[str | None, typer.Option(help="One split of the home's tasks; by default all.")] = None,
    json_: JsonOption = False,
) -> None:
    """Validate a task set: every right answer must pass and every known wrong answer must fail. Exit status 1 otherwise.

    Example: flywheel validate gsm8k --input test.jsonl
    """
    from flows.verification import validate_home, validate_rows
    from warehouse.errors import RequestError

    if input_ is not None and home is None and kind is not None:
        found = validate_rows(kind, input_)
    elif home is not None and input_ is None:
        found = validate_home(home, suite, kind)
    else:
        raise RequestError("flywheel validate needs KIND and --input FILE, or --home DIR with or without KIND.")
    if json_:
        print_json({**asdict(found), "proven": found.proven})
    else:
        _print_validation(found)
    if not found.proven:
        raise typer.Exit(1)


def _print_validation(found: Validation) -> None:
    say(f"{'answers':24} {'tried':>7} {'mistaken':>9}")
    for name, tally in {"right": found.gold, **{f"wrong: {sort}": tally for sort, tally in found.negatives.items()}}.items():
        say(f"{name:24} {tally.tried:7} {tally.mistaken:9}")
    say(f"{'rows without a verdict':24} {found.unjudged.mistaken:14}")
    for tally in (found.gold, *found.negatives.values(), found.unjudged):
        for example in tally.examples:
            say(f"  {example}")
    say("proven" if found.proven else "not proven")


def reverify(
    home: HomeOption,
    where: Annotated[str, typer.Option(help="SQL condition on `trajectories`.")] = "TRUE",
    verifier: Annotated[
        str | None, typer.Option(help="A kind of `verify`, state, environment, judge, …; the home's own by default.")
    ] = None,
    failed_only: Annotated[
        bool, typer.Option("--failed-only", help="Only trajectories that this verifier could not judge before.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Re-verify stored trajectories without generating anything. Scores of other verifiers and versions stay in the lake.

    Example: flywheel reverify --home runs/demo --where "stage = 'eval'" --verifier qa_f1
    """
    from flows.verification import reverify_home

    found = asdict(reverify_home(home, where, verifier, failed_only))
    if json_:
        print_json(found)
    else:
        say(", ".join(f"{count} {name}" for name, count in found.items()))
