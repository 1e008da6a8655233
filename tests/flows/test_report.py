"""The report on a real lake: what it says, and that it is safe. What a real browser makes of it: test_report_browser.py."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from eval.statistics import mcnemar
from flows.report import build_report
from flows.report.data import ReportData, read_report_data
from flows.report.plots import (
    curriculum_plots,
    frontier_plots,
    health_plots,
    hops_plots,
    iteration_plots,
    loss_plots,
    pretraining_plots,
    reinforcement_plots,
    reward_plots,
    tool_plots,
)
from flows.report.summary import monitored_metrics, summarize
from flows.report.tables import iterations_table, line_table, metrics_table
from flows.report.trajectories import Reading, TokenTexts, read_trajectories
from flows.results import HARD_SPACE
from tests.flows.wheel_records import TOKENIZER, attempt, policies, task, write_wheel
from warehouse import Lake
from warehouse.records import Outcome

pytestmark = pytest.mark.slow


def unpack(packed: str) -> str:
    """The text that `pack` took."""
    return zlib.decompress(base64.b64decode(packed)).decode("utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_wheel(folder)
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


def test_the_summary_has_a_line_for_each_stage_of_each_turn(data: ReportData) -> None:
    summary = summarize(data)
    places = [(row.turn, row.stage) for row in summary.rows]
    assert places == [(1, "init"), (1, "cpt"), (1, "sft"), (1, "rl"), (2, "cpt"), (2, "sft"), (2, "rl")]
    assert summary.headline.replace(HARD_SPACE, " ") == "93.7 % of unseen tasks solved, 15.2 points more than by any policy before"
    assert "after turn 2" in summary.detail and "that of reinforcement learning of turn" in summary.detail
    assert "McNemar" in summary.detail


def test_the_change_is_tested_on_the_tasks_that_both_were_judged_on(lake: Lake, data: ReportData) -> None:
    row = next(row for row in summarize(data).rows if (row.turn, row.stage) == (1, "rl"))
    valid = {
        policy: {
            t.task_key: t.outcome is Outcome.SUCCESS
            for t in lake.trajectories("policy = ? AND stage = 'eval'", [policy])
            if t.reward is not None
        }
        for policy in ("t1-sft", "t1-rl")
    }
    keys = sorted(valid["t1-sft"].keys() & valid["t1-rl"].keys())
    assert row.standing is not None and row.standing.stage is not None
    assert row.standing.stage.test == mcnemar([valid["t1-sft"][key] for key in keys], [valid["t1-rl"][key] for key in keys])


def test_too_many_invalid_trajectories_are_no_result(tmp_path: Path) -> None:
    chance = random.Random(1)
    tasks = [task(1, place) for place in range(30)]
    with Lake(tmp_path) as lake:
        lake.add([*tasks, *policies(), *(attempt(one, "t1-cpt", 1, "eval", True, chance, invalid=one.key < "h1-002") for one in tasks)])
        summary = summarize(read_report_data(lake))
    assert summary.unreliable == ("turn 1, cpt, suite heldout: 2 of 30",)


def test_bars_carry_the_intervals_of_the_view(data: ReportData) -> None:
    first = hops_plots(data).panels[0]
    bars = first.figure["data"][-1]
    expected = [e for e in data.evaluations if (e.turn, e.policy) == (1, "t1-rl") and e.hops is not None]
    assert list(bars["y"]) == [e.success for e in expected]
    assert [y + up for y, up in zip(bars["y"], bars["error_y"]["array"], strict=True)] == pytest.approx([e.high for e in expected])
    assert [y - down for y, down in zip(bars["y"], bars["error_y"]["arrayminus"], strict=True)] == pytest.approx([e.low for e in expected])


def test_every_curve_has_its_panel_and_every_turn_its_line(data: ReportData) -> None:
    assert [panel.title for panel in loss_plots(data).panels] == ["Loss of pre-training", "Loss of the cold start", "Loss of RL"]
    learning = reinforcement_plots(data)
    assert [panel.title for panel in learning.panels] == ["Reward", "Success in training", "Horizon", "Turns taken"]
    assert [entry.label for entry in learning.legend] == ["turn 1", "turn 2"]
    assert len({(entry.colour, entry.dash) for entry in learning.legend}) == 2
    assert [panel.title for panel in tool_plots(data).panels] == ["Tool calls in RL", "Calls per trajectory", "Calls that worked"]


def test_turns_stand_side_by_side(data: ReportData) -> None:
    (panel,) = iteration_plots(data).panels
    assert {trace["hovertemplate"].split("<extra>")[1]: len(trace["x"]) for trace in panel.figure["data"]} == {
        "after init</extra>": 1,
        "after cpt</extra>": 2,
        "after sft</extra>": 2,
        "after rl</extra>": 2,
    }
    table = iterations_table(data)
    assert table is not None
    rows = {cells[0].text: [cell.text for cell in cells[1:]] for cells in table.rows}
    assert table.head == ("", "turn 1", "turn 2")
    assert rows["gate"] == ["promoted", "kept back"]
    assert rows["horizon"] == ["2 → 4 → 6", "2 → 4 → 6"]
    assert rows["trajectories of RL"] == ["40", "40"]
    assert rows["time, rl"][0] == "6 min"  # two minutes of the wheel's own run and of each that it is compared with


def test_each_part_of_the_reward_has_its_curve(data: ReportData) -> None:
    panels = reward_plots(data).panels
    assert [panel.title for panel in panels] == ["evidence", "outcome"]
    assert [value for trace in panels[0].figure["data"] for value in trace["y"]] == pytest.approx([0.1] * 40), "half of 0.2"


def test_the_frontier_counts_what_was_solved_in_some_attempts_and_not_in_others(data: ReportData) -> None:
    assert sum(depth["sometimes"] for depth in data.frontier) == sum(depth["tasks"] for depth in data.frontier) > 0, "each group has both"
    assert [panel.title for panel in frontier_plots(data).panels] == ["Turn 1", "Turn 2"]


def test_signs_of_health_stand_against_their_limits(data: ReportData) -> None:
    metrics = monitored_metrics(data)
    broken = [metric for metric in metrics if metric.alerts]
    assert [(metric.run.id, metric.limit.sign, metric.alerts[0].step) for metric in broken] == [("t2-rl", "zero_variance", 56)]
    table = metrics_table(metrics)
    assert table is not None
    states = {(cells[0].text, cells[1].text): cells[-1].text for cells in table.rows}
    assert states["zero_variance", "2"] == "broken 1×"
    assert states["zero_variance", "1"] == states["valid", "2"] == "kept"
    panel = next(panel for panel in health_plots(data, metrics).panels if panel.title == "Groups without variance")
    assert "Limit: at most 0.95, warn after 5 steps." in panel.note
    assert [shape["y0"] for shape in panel.figure["layout"]["shapes"]] == [0.95]
    assert [trace["x"] for trace in panel.figure["data"] if trace.get("mode") == "markers"] == [[56]]


def test_a_limit_that_lies_far_off_does_not_flatten_its_curve(data: ReportData) -> None:
    panel = next(panel for panel in health_plots(data, monitored_metrics(data)).panels if panel.title == "Gradient norm")
    assert "at most 10000" in panel.note
    assert panel.figure["layout"]["shapes"] == []


def test_curricula_are_laid_over_each_other(data: ReportData) -> None:
    plots = curriculum_plots(data)
    assert [entry.label for entry in plots.legend] == [
        "ScalingInter (2, 4, 6)",
        "fixed at the first horizon (2)",
        "fixed at the last horizon (6)",
    ]
    horizon = plots.panels[-1].figure["data"]
    assert sorted({max(trace["y"]) for trace in horizon}) == [2, 6]


def test_the_cold_start_of_a_policy_that_skipped_pre_training_stands_beside_the_others(data: ReportData) -> None:
    plots = pretraining_plots(data)
    assert [entry.label for entry in plots.legend] == ["with pre-training", "without pre-training"]
    (panel,) = plots.panels
    ours, skipped = (min(panel.figure["data"][line]["y"]) for line in (1, 3))
    assert panel.title == "Loss of the cold start, turn 1" and ours < 0.6 < 0.9 < skipped
    assert not [line for line in loss_plots(data).panels[1].figure["data"] if max(line["y"]) > 3]
    assert "t1-sft-without_cpt" not in {row.policy for row in summarize(data).rows}


def test_lineage_puts_each_policy_after_its_parent(data: ReportData) -> None:
    lineage = data.lineage.policies
    places = {policy.id: place for place, policy in enumerate(lineage)}
    assert len(lineage) == 10
    assert all(places[policy.parent] < places[policy.id] for policy in lineage if policy.parent)
    assert next(policy.depth for policy in lineage if policy.id == "t2-rl") == 6


def test_the_promoted_policy_stands_with_its_ancestors_and_what_they_were_trained_on(data: ReportData) -> None:
    assert [policy.id for policy in data.lineage.line] == ["t1-init", "t1-cpt", "t1-sft", "t1-rl"]
    table = line_table(data)
    assert table is not None
    assert [cells[1].text for cells in table.rows] == ["–", "1 fas_plan", "–", "40 rollout"]
    assert [(d["wheel_turn"], d["promoted"], d["reason"]) for d in data.lineage.decisions] == [
        (1, True, "t1-rl is promoted: there is no champion to beat"),
        (2, False, "t2-rl is not promoted: it falls on held_out by 5.0 points"),
    ]


def test_all_trajectories_can_be_read_and_a_sample_where_there_are_too_many(lake: Lake, readings: tuple[Reading, ...]) -> None:
    assert len(readings) == lake.query("SELECT count(*) AS n FROM trajectories").to_pylist()[0]["n"] == 880
    sample = read_trajectories(lake, at_most=100)
    assert 90 < len(sample) <= 100
    assert sample == read_trajectories(lake, at_most=100)
    tried = Counter((one.policy, one.task, one.step) for one in sample)
    everything = Counter((one.policy, one.task, one.step) for one in readings)
    assert tried.items() <= everything.items() and max(tried.values()) > 1, "all attempts of a step at a task, or none"
    kinds = {(reading.wheel_turn, reading.stage, reading.outcome) for reading in sample}
    assert {(2, "rl", "success"), (2, "rl", "failure"), (1, "eval after sft", "success"), (1, "eval after init", "failure")} <= kinds


def test_long_trajectories_make_the_sample_smaller(lake: Lake, readings: tuple[Reading, ...]) -> None:
    limit = sum(reading.tokens for reading in readings) // 4
    few = read_trajectories(lake, tokens_at_most=limit)
    assert limit / 2 < sum(reading.tokens for reading in few) <= limit


def test_parts_of_a_trajectory_are_told_apart_with_their_tokens(readings: tuple[Reading, ...], lake: Lake) -> None:
    reading = next(reading for reading in readings if reading.hops == 2 and reading.outcome == "success")
    stored = lake.trajectories("id = ?", [reading.id])[0]
    assert [part.kind for part in reading.parts] == ["prompt", "action", "observation", "action", "observation", "action"]
    assert [part.turn for part in reading.parts] == [0, 1, 1, 2, 2, 3]
    assert [part.tokens for part in reading.parts if part.kind == "action"] == [len(turn.action_ids) for turn in stored.turns]
    assert reading.parts[0].text == f"<question> {reading.question}</question>", "the prompt as it stood in tokens"


def test_the_pieces_of_an_action_are_its_tokens_with_their_probabilities(readings: tuple[Reading, ...], lake: Lake) -> None:
    reading = next(reading for reading in readings if reading.stage == "rl")
    turn = lake.trajectories("id = ?", [reading.id])[0].turns[0]
    pieces = reading.parts[1].pieces
    assert "".join(text for text, _ in pieces) == turn.action
    assert [value for _, value in pieces] == pytest.approx(turn.action_logprobs, rel=5e-3)


def test_pieces_of_unknown_tokens_are_their_numbers_and_no_file_outside_of_the_home_is_read(tmp_path: Path) -> None:
    outside, home = tmp_path / "outside", tmp_path / "home"
    outside.mkdir()
    TOKENIZER.save(str(outside / "tokenizer.json"))
    policy = next(iter(policies()))
    with Lake(home) as lake:
        lake.add([replace(policy, id="away", path="../outside"), replace(policy, id="gone", path="policies/gone")])
        pieces = TokenTexts(lake)
        assert pieces.of("away", [5, 6]) == pieces.of("gone", [5, 6]) == pieces.of("never", [5, 6]) == ["[5]", "[6]"]
        assert pieces.text("away", [5]) is None


def test_a_character_of_several_tokens_stands_with_the_last_of_them(home: Path, lake: Lake) -> None:
    ids = TOKENIZER.encode("é!").ids
    assert len(ids) == 3
    assert TokenTexts(lake).of("t1-rl", ids) == ["", "é", "!"]


def test_hostile_text_becomes_no_element(page: Path, elements: list[tuple[str, dict[str, str | None]]]) -> None:
    kinds = [attributes.get("type") for tag, attributes in elements if tag == "script"]
    assert kinds[-1] is None and set(kinds[:-1]) == {"text/plain"}
    assert not [tag for tag, _ in elements if tag in ("img", "iframe", "object", "embed")]
    assert "&lt;/script&gt;" in page.read_text()
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]


def test_the_page_refers_to_nothing_outside_itself(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    references = [attributes.get("src") or attributes.get("href") for _, attributes in elements]
    assert all(reference.startswith(("#", "data:,")) for reference in references if reference)


def test_what_scripts_read_travels_packed(page: Path, readings: tuple[Reading, ...]) -> None:
    def packed(name: str) -> Any:
        return json.loads(unpack(page.read_text().split(f'id="packed-{name}">')[1].split("</script>")[0]))

    sections = {name.split("-")[0] for name in packed("figures")}
    assert sections == {"turns", "hops", "learning", "rewards", "curriculum", "pretraining", "frontier", "loss", "health", "tools"}
    assert [one["id"] for one in packed("readings")["trajectories"]] == [reading.id for reading in readings]
    assert packed("readings-0")[0]["parts"][1]["pieces"]


def test_the_same_lake_gives_the_same_page(lake: Lake, page: Path, tmp_path: Path) -> None:
    assert build_report(lake, tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_an_empty_lake_has_a_page_too(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        text = build_report(lake, tmp_path / "report.html").read_text()
    assert "Nothing has been evaluated yet" in text
    assert len(text) < 100_000
