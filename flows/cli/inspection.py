"""Read-only commands: SQL, a trajectory or task, a knowledge graph, traces, the report, a live view, and machine checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import SHOWN_ROWS, Format, HomeOption, JsonOption, ProfileOption, SetOption, print_json
from rl.terminal import say


def sql(
    home: HomeOption,
    query: Annotated[str | None, typer.Argument(help="A SELECT.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print the rows.")] = Format.table,
    at: Annotated[str | None, typer.Option(help="Snapshot of the lake to read, or the name of a pin; by default the current one.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print every table, view and macro with its description.")] = False,
    how: Annotated[bool, typer.Option("--how", help="Print how to attach this lake in a plain DuckDB client.")] = False,
    rows: Annotated[int, typer.Option(min=0, help="Rows of a table to show, 0 for all; the other formats always have all.")] = SHOWN_ROWS,
    timeout: Annotated[float, typer.Option(min=0.001, help="Timeout of the query in seconds.")] = 300.0,
) -> None:
    """Run read-only SQL on the lake, even while a run is writing.

    Tables show control characters in foreign text as escapes; the other formats keep them.

    Example: flywheel sql "SELECT * FROM learning_curve LIMIT 5" --home runs/demo --format json
    """
    from flows.cli.output import print_result
    from flows.lakes import open_lake
    from warehouse.errors import RequestError
    from warehouse.queries import bounded_process
    from warehouse.upkeep import snapshot_of

    if how:
        from warehouse.connections import how_to_attach

        open_lake(home).close()
        say(how_to_attach(home))
        return
    if schema:
        from flows.cli.output import print_schema
        from warehouse.lake import describe

        with open_lake(home) as lake:
            print_schema(describe(lake), format_.value)
        return
    if query is None:
        raise RequestError('flywheel sql needs a query, for example: flywheel sql "SELECT count(*) FROM trajectories" --home ' + str(home))
    with open_lake(home) as lake, bounded_process():
        found = lake.query(query, at=None if at is None else snapshot_of(lake, at), timeout_seconds=timeout)
    print_result(found, format_.value, rows)


def show(
    identity: Annotated[str, typer.Argument(metavar="ID", help="Id of a trajectory, or key of a task.")],
    home: HomeOption,
    tokens: Annotated[bool, typer.Option("--tokens", help="Token ids and log-probabilities of every action.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show a trajectory turn by turn, or a task with its formula and expansions drawn as graphs.

    Example: flywheel show t1-rl-held_out-0123456789abcdef --home runs/demo
    """
    from flows.cli.output import find_task, plain_task, plain_trajectory, print_task, print_trajectory
    from flows.lakes import open_lake
    from warehouse.errors import RequestError

    with open_lake(home) as lake:
        found = lake.trajectories("id = ?", [identity])
        task = None if found else find_task(lake, identity)
        if not found and task is None:
            raise RequestError(
                f"{home} has no trajectory and no task {identity!r}; "
                f'`flywheel sql "SELECT id FROM trajectories" --home {home}` lists trajectories, "SELECT key FROM tasks" tasks.'
            )
        if task is not None:
            if json_:
                print_json(plain_task(task, lake))
            else:
                print_task(task, lake)
        elif json_:
            print_json(plain_trajectory(found[0]))
        else:
            print_trajectory(found[0], lake, tokens)


def graph(
    home: Annotated[
        Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="The run's folder: shows its graph, and what its tasks ask about.")
    ] = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    around: Annotated[str | None, typer.Option(help="Draw the facts of this entity instead.")] = None,
    json_: JsonOption = False,
) -> None:
    """Show a knowledge graph's components, degrees, hubs and dead ends, and the share that questions can reach. Starts nothing.

    Example: flywheel graph --profile movies
    """
    from flows.config import load_config
    from flows.graphs import draw_around, facts_around, graph_figures, print_figures
    from flows.home import Home
    from flows.lakes import open_lake
    from warehouse.errors import RequestError

    if profile is not None or home is None:
        if profile is None:
            raise RequestError("flywheel graph needs --home DIR, or --profile NAME for a graph that no home has yet.")
        config, lake = load_config(profile, set_ or []), None
    else:
        if set_:
            raise RequestError("--set needs --profile: a home's graph depends on its own configuration only.")
        config, lake = Home(home).load(), open_lake(home) if (home / "lake").is_dir() else None
    if around is not None:
        facts = facts_around(config, around)
        if json_:
            print_json([dict(zip(("subject", "relation", "object"), fact, strict=True)) for fact in facts])
        else:
            draw_around(around, facts)
        return
    try:
        figures = graph_figures(config, lake)
    finally:
        if lake is not None:
            lake.close()
    if json_:
        print_json([one.record() for one in figures])
    else:
        for one in figures:
            print_figures(one)


def traces(
    home: HomeOption,
    to: Annotated[str, typer.Option(help="A collector, http://host:port/v1/traces, or a .jsonl file.")],
    where: Annotated[str, typer.Option(help="SQL condition on the table trajectories.")] = "true",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of trajectories, by id; with --follow, at a time.")] = 1000,
    follow: Annotated[bool, typer.Option("--follow", help="Keep sending what a run writes, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between looks at the lake with --follow.")] = 5.0,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Header of each request; repeatable.")] = None,
) -> None:
    """Send trajectories as OpenTelemetry traces to a viewer such as Phoenix or MLflow. Sending a trace twice is harmless.

    OTEL_EXPORTER_OTLP_HEADERS adds headers as well, such as an API key. MLflow's experiment is 0 without --header x-mlflow-experiment-id=1.

    Example: flywheel traces --home runs/demo --where "outcome = 'failure'" --to http://localhost:6006/v1/traces --follow
    """
    from flows.data.spans import follow_traces, headers_of, send_traces
    from flows.lakes import open_lake

    headers = headers_of(header or ())
    with open_lake(home) as lake:
        sent = follow_traces(lake, to, where, limit, headers, every, say) if follow else send_traces(lake, to, where, limit, headers)
    say(f"{sent}, to {to}")


def report(
    home: HomeOption, output: Annotated[Path | None, typer.Option(help="Where to write the page; by default HOME/report.html.")] = None
) -> None:
    """Write the report, a self-contained HTML page.

    Example: flywheel report --home runs/demo
    """
    from flows.home import Home
    from flows.lakes import open_lake
    from flows.report import build_report

    with open_lake(home) as lake:
        say(build_report(lake, output or Home(home).report))


def top(
    home: HomeOption,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between updates.")] = 2.0,
) -> None:
    """Watch a run: stage, step, metrics, engines, environments, tools, invalid share, time left. Ctrl-C ends the view, not the run.

    Example: flywheel top --home runs/demo
    """
    from flows.top import watch

    watch(home, once, every)


def doctor(
    home: Annotated[Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="A home whose configuration is checked.")] = None,
    profile: ProfileOption = None,
    model: Annotated[Path | None, typer.Option(help="Folder of a model to load and to check with the dialect.")] = None,
    json_: JsonOption = False,
) -> None:
    """Check the machine: report what it has, what is missing, and how to fix it. Exit status 1 if something is missing.

    Example: flywheel doctor --profile quickstart
    """
    from dataclasses import asdict

    from flows.doctor import diagnose

    checks = diagnose(home, profile, model)
    if json_:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            say(f"{check.state:8} {check.name:22} {check.detail}" + (f"  → {check.advice}" if check.advice else ""))
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)
