"""The report on a real lake: what it says, that it is safe, and that a real browser shows it."""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from eval.statistics import mcnemar
from flows.report import build_report
from flows.report.data import ReportData, read_report_data
from flows.report.figures import curriculum_plots, health_plots, hops_plots, loss_plots, reinforcement_plots
from flows.report.summary import summarize
from flows.report.trajectories import Reading, read_trajectories
from warehouse import Lake
from warehouse.records import Call, Example, Failure, Metric, Outcome, Policy, Run, Score, StopReason, Task, Trajectory, Turn

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
START = datetime(2030, 1, 1, tzinfo=UTC)
HOSTILE = "</script><script>document.title='broken'</script><img src='https://example.org/x.png' onerror=\"document.title='broken'\">"
STAGES = ("init", "cpt", "sft", "rl")
SOLVED = {
    1: {"init": (0, 0, 0, 0), "cpt": (0.62, 0.31, 0.12, 0.04), "sft": (0.71, 0.44, 0.3, 0.12), "rl": (0.97, 0.93, 0.82, 0.48)},
    2: {"cpt": (0.93, 0.85, 0.7, 0.4), "sft": (0.95, 0.9, 0.79, 0.52), "rl": (0.99, 0.97, 0.95, 0.83)},
}


def wheel_records(tasks_per_hop: int = 20, steps: int = 60) -> list[Any]:
    """Everything that two turns of the wheel leave in the lake, at a small size."""
    chance = random.Random(7)
    tasks = [_task(hops, place) for hops in (1, 2, 3, 4) for place in range(tasks_per_hop)]
    records: list[Any] = [*tasks, *_policies(), *_runs(), *_failures(), Example("e1", "fas_plan", (("plan", True),), ("t1",))]
    for wheel_turn, shares in SOLVED.items():
        for stage, by_hops in shares.items():
            policy = f"turn{wheel_turn}-{stage}"
            records += [record for task in tasks for record in _evaluated(task, policy, wheel_turn, by_hops[task.hops - 1], chance)]
        records += _training(wheel_turn, steps, chance)
        records += [
            _attempt(chance.choice(tasks), f"turn{wheel_turn}-rl", wheel_turn, "rl", chance.random() < 0.7, chance, step)
            for step in range(30)
        ]
    for variant in ("fixed_first", "fixed_last"):
        records += [record for task in tasks for record in _evaluated(task, f"turn1-rl-{variant}", 1, 0.6, chance)]
        records += _rl_metrics(f"run-1-rl-{variant}", 1, steps, chance, variant)
    return records


def _task(hops: int, place: int) -> Task:
    question = f"Which city is the seat of the employer of person {place}?" if place else f"Who wrote {HOSTILE}?"
    return Task(f"h{hops}-{place:03}", "search", question, ("Green Lake", "the Green Lake"), split="heldout", hops=hops)


def _evaluated(task: Task, policy: str, wheel_turn: int, share: float, chance: random.Random) -> Iterator[Any]:
    attempt = _attempt(task, policy, wheel_turn, "eval", chance.random() < share, chance)
    yield attempt
    assert attempt.outcome is not None
    yield Score(attempt.id, "qa_em", "1", attempt.reward, attempt.outcome, attempt.error)


def _attempt(
    task: Task,
    policy: str,
    wheel_turn: int,
    stage: str,
    solved: bool,
    chance: random.Random,
    step: int | None = None,
    invalid: bool | None = None,
) -> Trajectory:
    invalid = chance.random() < 0.01 if invalid is None else invalid
    outcome = Outcome.INVALID if invalid else Outcome.SUCCESS if solved else Outcome.FAILURE
    turns = [_search(index, chance) for index in range(task.hops)] + ([] if invalid else [_answer(task.hops, solved)])
    return Trajectory(
        id=f"{policy}/{stage}/{task.key}/{step}",
        task_key=task.key,
        policy=policy,
        stage=stage,
        horizon=task.hops + 2,
        prompt_ids=tuple(range(14)),
        turns=tuple(turns),
        stop_reason=StopReason.FAULT if invalid else StopReason.ANSWERED,
        outcome=outcome,
        reward=None if invalid else float(solved),
        seed=1,
        started=START,
        seconds=0.4,
        wheel_turn=wheel_turn,
        step=step,
        suite="heldout" if stage == "eval" else None,
        error="the search tool did not answer within 10 s" if invalid else None,
    )


def _search(index: int, chance: random.Random) -> Turn:
    found = chance.random() < 0.95
    rest = HOSTILE if index == 0 else "Blue River has its seat in Green Lake."
    text = f"<information> Amber Stone works at Blue River. {rest}</information>"
    observation = text if found else "<information> Error: no such document.</information>"
    action = "<think> employer Blue River</think><search> Blue River</search>"
    ids = tuple(range(9))
    return Turn(
        index, ids, (-0.1,) * 9, action, "search", "Blue River", tuple(range(31)), observation, None, "ok" if found else "error", 0.01, 3,
        calls=(Call("search", "Blue River", "ok" if found else "error", rest, 0.01),),
    )  # fmt: skip


def _answer(index: int, solved: bool) -> Turn:
    answer = "Green Lake" if solved else "Red Hill"
    action = f"<think> seat {answer}</think><answer> {answer}</answer>"
    calls = (Call("answer", answer, "ok"),)
    return Turn(index, tuple(range(8)), (-0.05,) * 8, action, "answer", answer, (), "", None, "ok", 0.0, 3, calls=calls)


def _policies() -> Iterator[Policy]:
    parent: str | None = None
    for wheel_turn, shares in SOLVED.items():
        for stage in STAGES:
            if stage in shares:
                name = f"turn{wheel_turn}-{stage}"
                yield Policy(name, parent, stage, f"/policies/{name}", "d1", 10 * wheel_turn, wheel_turn, promoted=stage == "rl")
                parent = name
    for variant in ("fixed_first", "fixed_last"):
        yield Policy(f"turn1-rl-{variant}", "turn1-sft", "rl", "/policies/x", "d1", 10, 1)


def _runs() -> Iterator[Run]:
    for wheel_turn in SOLVED:
        for stage in ("cpt", "sft", "rl"):
            config: dict[str, Any] = {"horizon": {"rounds": [2, 4, 6], "every": 20}, "variant": "scaling"} if stage == "rl" else {}
            yield _run(f"run-{wheel_turn}-{stage}", stage, wheel_turn, config, f"turn{wheel_turn}-{stage}")
    for variant in ("fixed_first", "fixed_last"):
        config = {"reinforce": {"horizon": {"rounds": [2, 4, 6], "every": 20}}, "variant": variant}
        yield _run(f"run-1-rl-{variant}", "rl", 1, config, f"turn1-rl-{variant}")


def _run(name: str, stage: str, wheel_turn: int, config: dict[str, Any], policy: str) -> Run:
    return Run(name, stage, wheel_turn, config, "c1", 1, 2, "completed", START, START + timedelta(minutes=2), {"policy": policy})


def _failures() -> Iterator[Failure]:
    for place in range(12):
        yield Failure("synth", "ambiguous_answer", f"the graph proves {place + 2} answers, more than the 8 accepted")
    yield Failure("rollout", "tool_timeout", HOSTILE)


def _training(wheel_turn: int, steps: int, chance: random.Random) -> list[Metric]:
    metrics = _rl_metrics(f"run-{wheel_turn}-rl", wheel_turn, steps, chance, "scaling")
    for stage, start, length in (("cpt", 7.0, 900), ("sft", 1.2, 120)):
        for step in range(1, length + 1):
            loss = start / wheel_turn * math.exp(-4 * step / length) + 0.4 + chance.gauss(0, 0.04)
            metrics.append(Metric(f"run-{wheel_turn}-{stage}", stage, wheel_turn, step, "loss", loss))
    return metrics


def _rl_metrics(run: str, wheel_turn: int, steps: int, chance: random.Random, variant: str) -> list[Metric]:
    speed, ceiling = {"scaling": (4.0, 0.9), "fixed_first": (6.0, 0.62), "fixed_last": (2.0, 0.85)}[variant]
    metrics: list[Metric] = []
    for step in range(1, steps + 1):
        horizon = {"scaling": (2, 4, 6)[min((step - 1) * 3 // steps, 2)], "fixed_first": 2, "fixed_last": 6}[variant]
        success = min(1.0, max(0.0, 0.4 + (ceiling - 0.4) * (1 - math.exp(-speed * step / steps)) + chance.gauss(0, 0.04)))
        values = {
            "loss": chance.gauss(0, 0.02),
            "reward": success,
            "success": success,
            "horizon": horizon,
            "turns": min(horizon, 2.4 + step / steps),
            "tool_calls": min(horizon, 1.6 + step / steps),
            "grad_norm": 0.4 + abs(chance.gauss(0, 0.1)),
            "entropy": 0.7 * math.exp(-step / steps),
            "zero_variance": 0.2 + 0.4 * step / steps,
            "logprob_difference": abs(chance.gauss(8e-6, 2e-6)),
            "valid": 1.0 - (step == 17) * 0.05,
        }
        metrics += [Metric(run, "rl", wheel_turn, step, name, value) for name, value in values.items()]
    return metrics


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    with Lake(folder) as lake:
        lake.add(wheel_records())
    return folder


@pytest.fixture(scope="module")
def lake(home: Path) -> Iterator[Lake]:
    with Lake(home, read_only=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def data(lake: Lake) -> ReportData:
    return read_report_data(lake)


@pytest.fixture(scope="module")
def readings(lake: Lake) -> tuple[Reading, ...]:
    return read_trajectories(lake)


@pytest.fixture(scope="module")
def elements(page: Path) -> list[tuple[str, dict[str, str | None]]]:
    return Elements(page.read_text()).found


@pytest.fixture(scope="module")
def page(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_report(lake, tmp_path_factory.mktemp("report") / "inner" / "report.html")


class Elements(HTMLParser):
    """The elements of a page with their attributes, as a browser's parser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.slow
def test_the_summary_has_a_line_for_each_stage_of_each_turn(data: ReportData) -> None:
    summary = summarize(data)
    places = [(row.turn, row.stage) for row in summary.rows]
    assert places == [(1, "init"), (1, "cpt"), (1, "sft"), (1, "rl"), (2, "cpt"), (2, "sft"), (2, "rl")]
    assert "of unseen tasks solved after reinforcement learning" in summary.headline
    assert "Turn 2" in summary.detail
    assert "McNemar" in summary.detail


def test_policies_of_other_curricula_are_kept_out_of_the_wheel(data: ReportData) -> None:
    assert "turn1-rl-fixed_first" in {evaluation.policy for evaluation in data.evaluations}
    assert {row.policy for row in summarize(data).rows if row.stage == "rl"} == {"turn1-rl", "turn2-rl"}


@pytest.mark.slow
def test_the_change_is_tested_on_the_tasks_that_both_were_judged_on(lake: Lake, data: ReportData) -> None:
    row = next(row for row in summarize(data).rows if (row.turn, row.stage) == (1, "rl"))
    valid = {
        policy: {
            t.task_key: t.outcome is Outcome.SUCCESS
            for t in lake.trajectories("policy = ? AND stage = 'eval'", [policy])
            if t.reward is not None
        }
        for policy in ("turn1-sft", "turn1-rl")
    }
    keys = sorted(valid["turn1-sft"].keys() & valid["turn1-rl"].keys())
    assert row.change is not None
    assert row.change.test == mcnemar([valid["turn1-sft"][key] for key in keys], [valid["turn1-rl"][key] for key in keys])


@pytest.mark.slow
def test_too_many_invalid_trajectories_are_no_result(tmp_path: Path) -> None:
    chance = random.Random(1)
    tasks = [_task(1, place) for place in range(30)]
    with Lake(tmp_path) as lake:
        lake.add(
            [*tasks, *_policies(), *(_attempt(task, "turn1-cpt", 1, "eval", True, chance, invalid=task.key < "h1-002") for task in tasks)]
        )
        summary = summarize(read_report_data(lake))
    assert summary.unreliable == ("turn 1, cpt, suite heldout: 2 of 30",)


@pytest.mark.slow
def test_bars_carry_the_intervals_of_the_view(data: ReportData) -> None:
    first = hops_plots(data).panels[0]
    bars = first.figure["data"][-1]
    expected = [e for e in data.evaluations if (e.turn, e.policy) == (1, "turn1-rl") and e.hops is not None]
    assert list(bars["y"]) == [e.success for e in expected]
    assert [y + up for y, up in zip(bars["y"], bars["error_y"]["array"], strict=True)] == pytest.approx([e.high for e in expected])
    assert [y - down for y, down in zip(bars["y"], bars["error_y"]["arrayminus"], strict=True)] == pytest.approx([e.low for e in expected])


@pytest.mark.slow
def test_every_curve_has_its_panel_and_every_turn_its_line(data: ReportData) -> None:
    assert [panel.title for panel in loss_plots(data).panels] == ["Loss of pre-training", "Loss of the cold start", "Loss of RL"]
    learning = reinforcement_plots(data)
    assert [panel.title for panel in learning.panels][:5] == ["Reward", "Success in training", "Horizon", "Turns taken", "Tool calls"]
    assert [entry.label for entry in learning.legend] == ["turn 1", "turn 2"]
    assert len({(entry.colour, entry.dash) for entry in learning.legend}) == 2
    assert [panel.title for panel in health_plots(data).panels][-2:] == ["Invalid trajectories", "Tool calls that worked"]


def test_curricula_are_laid_over_each_other(data: ReportData) -> None:
    plots = curriculum_plots(data)
    assert [entry.label for entry in plots.legend] == [
        "ScalingInter (2, 4, 6)",
        "fixed at the first horizon (2)",
        "fixed at the last horizon (6)",
    ]
    horizon = plots.panels[-1].figure["data"]
    assert sorted({max(trace["y"]) for trace in horizon}) == [2, 6]


def test_lineage_puts_each_policy_after_its_parent(data: ReportData) -> None:
    lineage = data.lineage
    places = {policy.id: place for place, policy in enumerate(lineage)}
    assert len(lineage) == 9
    assert all(places[policy.parent] < places[policy.id] for policy in lineage if policy.parent)
    assert next(policy.depth for policy in lineage if policy.id == "turn2-rl") == 6


def test_trajectories_to_read_are_few_fixed_and_of_every_kind(lake: Lake, readings: tuple[Reading, ...]) -> None:
    assert len(readings) == 60
    assert readings == read_trajectories(lake)
    kinds = {(reading.wheel_turn, reading.stage, reading.outcome) for reading in readings}
    assert {(2, "rl", "success"), (2, "rl", "failure"), (1, "eval after sft", "success"), (1, "eval after init", "failure")} <= kinds
    assert len(read_trajectories(lake, at_most=5)) == 5


def test_parts_of_a_trajectory_are_told_apart_with_their_tokens(readings: tuple[Reading, ...]) -> None:
    reading = next(reading for reading in readings if reading.hops == 2 and reading.outcome == "success")
    assert [part.kind for part in reading.parts] == ["prompt", "action", "observation", "action", "observation", "action"]
    assert [part.tokens for part in reading.parts] == [14, 9, 31, 9, 31, 8]


def test_hostile_text_becomes_no_element(page: Path, elements: list[tuple[str, dict[str, str | None]]]) -> None:
    assert [attributes.get("type") for tag, attributes in elements if tag == "script"] == ["application/json", "text/plain", None]
    assert not [tag for tag, _ in elements if tag in ("img", "iframe", "object", "embed")]
    assert "&lt;/script&gt;" in page.read_text()
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]


def test_the_page_refers_to_nothing_outside_itself(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    references = [attributes.get("src") or attributes.get("href") for _, attributes in elements]
    assert all(reference.startswith(("#", "data:,")) for reference in references if reference)


def test_figures_travel_as_json(page: Path) -> None:
    text = page.read_text()
    figures = json.loads(text.split('id="figures">')[1].split("</script>")[0])
    assert {name.split("-")[0] for name in figures} == {"hops", "learning", "curriculum", "loss", "health"}


@pytest.mark.slow
def test_the_same_lake_gives_the_same_page(lake: Lake, page: Path, tmp_path: Path) -> None:
    assert build_report(lake, tmp_path / "again.html").read_bytes() == page.read_bytes()


@pytest.mark.slow
def test_an_empty_lake_has_a_page_too(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        text = build_report(lake, tmp_path / "report.html").read_text()
    assert "Nothing has been evaluated yet" in text
    assert len(text) < 100_000


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium with chromedriver on this machine")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    for flag in ("disable-component-update", "disable-sync", f"user-data-dir={tmp_path / 'profile'}", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.end_to_end
def test_a_browser_shows_it_all(browser: Any, page: Path) -> None:
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get(page.as_uri())
    assert browser.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd") < 2_000
    _read_to_the_end(browser)
    drawn, places = browser.execute_script("return ['.plot.js-plotly-plot', '.plot'].map((s) => document.querySelectorAll(s).length)")
    assert drawn == places >= 15
    assert browser.title == "Flywheel report"
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert _requested(browser) == {page.as_uri()}


@pytest.mark.end_to_end
def test_trajectories_are_filtered(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    select = (
        "const s = document.querySelector('[name=outcome]'); s.value = 'failure'; s.dispatchEvent(new Event('change', {bubbles: true}));"
    )
    browser.execute_script(select)
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.trajectory')].filter((t) => t.checkVisibility()).map((t) => t.dataset.outcome)"
    )
    assert set(shown) == {"failure"}
    assert browser.find_element("id", "shown").text == f"{len(shown)} of 60 shown"


@pytest.mark.end_to_end
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(browser: Any, page: Path, width: int) -> None:
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    browser.execute_script("document.querySelectorAll('.trajectory').forEach((t) => { t.open = true; })")
    _read_to_the_end(browser)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def _read_to_the_end(browser: Any) -> None:
    """Scrolls down until every plot is drawn, for at most 20 s."""
    until = time.monotonic() + 20
    unread = "return [...document.querySelectorAll('.plot:not(.js-plotly-plot)')].map((p) => p.scrollIntoView()).length"
    while browser.execute_script(unread) and time.monotonic() < until:
        time.sleep(0.1)


def _requested(browser: Any) -> set[str]:
    """Everything that the page asked for, pictures within itself left out."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return {url for url in sent if not url.startswith("data:")}
