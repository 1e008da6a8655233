"""The claims: what a criterion says of differences, what is told of variants that are done and of those that are not, one really run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import ablations
from benchmarks.ablations import (
    Result,
    compare,
    has_all,
    keep_result,
    markdown,
    read_result,
    read_results,
    report,
    run_all,
    table,
)
from benchmarks.claims import CLAIMS, SEEDS, VARIANTS, Variant, Verdict, verdict
from benchmarks.homes import place
from flows.config import load_config
from warehouse import Lake, Metric, Outcome, Policy, Run, Score, StopReason, Task, Trajectory

SMALL = Path(__file__).parents[1] / "end_to_end" / "small.toml"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
CLAIM = {claim.name: claim for claim in CLAIMS}


def result(won: int, curve: Sequence[float] = (0.5,), **more: object) -> Result:
    """Of a variant that solved so many of ten tasks; each of its steps sampled 100 tokens."""
    return Result({"held_out": (won, 10)}, 0.5, tuple((100 * step, value) for step, value in enumerate(curve, start=1)), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([0.10, 0.12, 0.09, 0.11, 0.10], Verdict.HOLDS),
        ([0.01, -0.01, 0.0, 0.005, -0.005], Verdict.DOES_NOT_HOLD),
        ([-0.10, -0.12, -0.09, -0.11, -0.10], Verdict.DOES_NOT_HOLD),
        ([0.2, -0.2, 0.1, -0.1, 0.15], Verdict.NOT_DECIDED),
        ([0.10, 0.12, 0.09, 0.11], Verdict.NOT_DECIDED),
        ([], Verdict.NOT_DECIDED),
    ],
)
def test_a_verdict_wants_five_seeds_and_an_interval_that_says_so(differences: list[float], expected: Verdict) -> None:
    assert verdict(differences, 0.03)[0] is expected


def test_the_table_has_what_is_there_and_says_what_is_missing() -> None:
    found = {("fas", seed): result(8) for seed in SEEDS} | {("no_cpt", seed): result(2 + seed % 2) for seed in SEEDS[:4]}
    rows = {(row["claim"], row["better"], row["other"]): row for row in table(found, SEEDS)}
    assert set(rows) == {(each.name, better, other) for each in CLAIMS for better, others in each.claimed.items() for other in others}
    partly = rows["cpt", "fas", "no_cpt"]
    assert partly["seeds"] == list(SEEDS[:4]) and partly["verdict"] == "not decided" and partly["difference"].value == pytest.approx(0.55)
    found["no_cpt", SEEDS[4]] = result(2)
    whole = compare(found, CLAIM["cpt"], "fas", "no_cpt", SEEDS)
    assert whole["verdict"] == "holds" and whole["figures"]["no_cpt"] == [0.2, 0.3, 0.2, 0.3, 0.2]
    lines = markdown(list(rows.values())).splitlines()
    assert lines[3:6] == ["", "Not run yet, or not all of it:", ""], "what no seed was run for is no row"
    assert len(lines) == 6 + len(CLAIMS)
    assert (
        "| CPT on FAS | no CPT | 80.0, 80.0, 80.0, 80.0, 80.0 | 20.0, 30.0, 20.0, 30.0, – | +55.0 (+45.8 to +64.2) | not decided |"
        in lines[2]
    )


def test_a_result_counts_as_long_as_the_settings_are_those_that_it_was_had_under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.jsonl"
    assert read_results(results) == {}
    mine = result(5, [0.25, 0.5], beside=((0, 0.1),), halted="why")
    keep_result(results, VARIANTS["gspo"], 1, mine)
    keep_result(results, replace(VARIANTS["rloo"], settings=("rl.estimator=grpo",)), 1, mine)
    assert read_results(results) == {("gspo", 1): mine}
    assert list(run_all(tmp_path, [VARIANTS["gspo"]], [1], results)) == [] and not place(tmp_path, "reader", 1).root.exists()
    monkeypatch.setattr(Variant, "sizes", SMALL)
    assert read_results(results) == {}


def test_the_page_has_the_table_of_the_committed_lines() -> None:
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
    assert report(read_results(ablations.RESULTS), SEEDS) in page


def test_every_variant_is_in_question_has_a_name_of_its_own_and_settings_that_are_settings() -> None:
    asked = {name for claim in CLAIMS for name in claim.variants}
    assert asked == set(VARIANTS) and len({variant.name for variant in VARIANTS.values()}) == len(VARIANTS)
    bases = {variant.base: load_config(str(variant.sizes)) for variant in VARIANTS.values()}
    for variant in VARIANTS.values():
        changed = load_config(str(variant.sizes), variant.settings)
        assert (changed == bases[variant.base]) == (not variant.settings)
        assert changed.policy.path == "reader", "pre-training is continual"


def finished(root: Path, variant: Variant, solved: int) -> Path:
    """A home in which a variant solved so many of ten tasks."""
    policy, sft = f"t1-rl-{variant.suffix}", "t1-sft" + (f"-{variant.suffix}" if variant.begins != "rl" else "")
    runs = [Run(sft, "sft", 1, {}, "c", 1, 2, "completed", NOW, NOW, {"loss": 0.5})]
    runs += [Run(f"eval-{policy}-held_out", "eval", 1, {}, "c", 1, 2, "completed", NOW, NOW, {})]
    beside = [
        Metric(policy, "rl", 1, 2, f"beside/held_out/{name}", value)
        for name, value in (("tasks", 10.0), ("valid", 10.0), ("invalid", 0.0), ("successes", 8.0), ("success", 0.8))
    ]
    records: list[object] = [*runs, *beside, Policy(policy, None, "rl", "policies/x", "d", 1, 1)]
    for number in range(10):
        task = Task(f"k{number}", "search", "?", ("x",), split="held_out", hops=1)
        outcome = Outcome.SUCCESS if number < solved else Outcome.FAILURE
        for stage, step in (("eval", None), ("rl", 1 + number % 2)):
            attempt = Trajectory(
                id=f"{stage}-{number}", task_key=task.key, policy=policy, stage=stage, horizon=3, prompt_ids=(1,), turns=(),
                stop_reason=StopReason.ANSWERED, outcome=outcome, reward=float(number < solved), seed=1, started=NOW, seconds=0.1,
                step=step, suite="held_out" if stage == "eval" else None,
            )  # fmt: skip
            records += [attempt, Score(attempt.id, "qa_em", "1", attempt.reward, outcome, None)]
        records.append(task)
    with Lake(root) as lake:
        lake.add(records)  # type: ignore[arg-type]
    return root


@pytest.mark.slow
def test_what_a_variant_came_to_is_read_out_of_its_lake(tmp_path: Path) -> None:
    variant = replace(VARIANTS["no_cpt"], ends="rl")
    with Lake(finished(tmp_path, variant, 7), read_only=True) as lake:
        found = read_result(lake, variant, ["held_out"])
        assert has_all(lake, "t1-rl-no_cpt", ["held_out"]) and found is not None
        assert found.successes["held_out"] == (7, 10) and found.sft_loss == 0.5
        assert [success for _, success in found.steps] == [pytest.approx(0.8), pytest.approx(0.6)]
        assert found.beside == ((found.steps[1][0], 0.8),)
        assert read_result(lake, variant, ["held_out", "deep"]) is None, "it is not judged on every suite"
        assert read_result(lake, VARIANTS["no_cpt"], ["held_out"]) is None, "its cold start is not judged"
