"""The claims: what a criterion says of differences, what is told of variants that are done and of those that are not, one really run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import ablations, claims
from benchmarks.ablations import (
    END,
    TABLE,
    Result,
    algorithms,
    chosen,
    compare,
    deepest_fall,
    has_all,
    keep_result,
    markdown,
    read_result,
    read_results,
    report,
    run_all,
    table,
    update,
)
from benchmarks.claims import CLAIMS, SEEDS, STARTS, VARIANTS, Claim, Measure, Variant, Verdict, sizes_of, verdict
from benchmarks.homes import place
from flows.config import load_config
from rl.rollouts.rollout import Rollouts
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


def test_the_difference_that_is_named_as_the_smallest_is_what_the_interval_makes_of_it() -> None:
    _, mean = verdict([0.0, 0.06, 0.0, 0.06, 0.03], 0.0)
    spread = 0.03  # the standard deviation of these five
    assert mean is not None and (mean.high - mean.value) / spread == pytest.approx(1.24, abs=0.01)
    assert "1.24 standard deviations" in " ".join((claims.__doc__ or "").split())


def test_a_measure_is_read_off_a_result() -> None:
    rising = result(8, [0.2, 0.4, 0.6], beside=((0, 0.1), (100, 0.79), (200, 0.8)))
    assert rising.of(Measure.SUCCESS, "held_out") == 0.8 and rising.of(Measure.SUCCESS, "nowhere") is None
    assert rising.of(Measure.KEPT, "") == 1.0
    assert rising.of(Measure.SOONER, "") == pytest.approx(1 - 200 / 300)
    assert replace(rising, beside=()).of(Measure.SOONER, "") == 0.0
    halted = replace(rising, halted="grad_norm")
    assert halted.of(Measure.KEPT, "") == 0.0 and halted.of(Measure.SUCCESS, "held_out") is None
    several = replace(rising, successes={"a": (1, 10), "b": (3, 4), "c": (0, 0)})
    assert several.of(Measure.SUCCESS, "*") == pytest.approx((0.1 + 0.75) / 2), "a suite without a valid attempt says nothing"


def test_the_deepest_fall_is_of_means_below_what_was_had_before() -> None:
    assert deepest_fall([0.1, 0.2, 0.3], 1) == 0.0
    assert deepest_fall([0.2, 0.8, 0.3, 0.9, 0.7], 1) == pytest.approx(0.5)
    assert deepest_fall([0.8, 0.0, 0.8, 0.0], 2) == pytest.approx(0.0), "one bad step is no collapse"
    assert deepest_fall([0.5], 5) == 0.0


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


def test_a_variant_that_was_halted_is_told_and_has_kept_nothing() -> None:
    found = {("grpo_4_tis", seed): result(8, [0.5] * 6) for seed in SEEDS} | {("grpo_4", seed): result(0, halted="loss") for seed in SEEDS}
    row = compare(found, CLAIM["stability"], "grpo_4_tis", "grpo_4", SEEDS)
    assert row["halted"] == 5 and row["difference"].value == 1.0 and "5 runs halted" in markdown([row])


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


def test_the_algorithms_stand_beside_each_other_by_how_late_they_learn() -> None:
    found = {("grpo", 100): result(5), ("grpo", 101): result(0), ("rloo_8_tis", 100): result(7)}
    lines = algorithms(found, SEEDS).splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["25.0 (0.0 to 50.0)", "", "", ""], "none solved is no missing figure"
    assert lines[4].endswith("| 70.0 (70.0 to 70.0) |")


def test_the_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "claims.md"
    page.write_text(f"# Claims\n\n{TABLE}\n{END}\n\nWhat holds.\n")
    for text in ("| a |\n| b |", "| c |\n\nNot run yet."):
        update(page, text)
        assert page.read_text() == f"# Claims\n\n{TABLE}\n\n{text}\n\n{END}\n\nWhat holds.\n"


def test_the_page_has_the_table_of_the_committed_lines() -> None:
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
    assert report(read_results(ablations.RESULTS), SEEDS) in page


def test_variants_are_asked_for_by_their_names_or_those_of_claims() -> None:
    assert [variant.name for variant in chosen("masks,gspo")] == ["foreign", "unmasked_rl", "unmasked_sft", "gspo"]
    assert chosen("") == list(VARIANTS.values())
    with pytest.raises(SystemExit, match="there is no variant 'gpo'"):
        chosen("gpo")


def test_every_variant_is_in_question_has_a_name_of_its_own_and_settings_that_are_settings() -> None:
    asked = {name for claim in CLAIMS for name in claim.variants}
    assert asked == set(VARIANTS) and len({variant.name for variant in VARIANTS.values()}) == len(VARIANTS)
    bases = {variant.base: load_config(str(variant.sizes)) for variant in VARIANTS.values()}
    for variant in VARIANTS.values():
        changed = load_config(str(variant.sizes), variant.settings)
        assert (changed == bases[variant.base]) == (not variant.settings)
        assert changed.policy.path == "reader", "pre-training is continual"


def test_a_base_that_begins_in_the_home_of_another_differs_from_it_in_reinforcement_and_what_is_judged_alone() -> None:
    for base, start in STARTS.items():
        own, others = (load_config(str(sizes_of(name))).model_dump() for name in (base, start))
        assert {name for name in own if own[name] != others[name]} == {"rl", "evaluation"}
        assert own["evaluation"]["suites"] == others["evaluation"]["suites"]
    assert VARIANTS["gspo"].start == "reader" and VARIANTS["foreign"].start == "foreign"


def test_a_cold_start_is_judged_where_it_ends_and_all_of_them_begin_alike() -> None:
    ways = [VARIANTS[name] for name in CLAIM["cpt"].variants]
    assert {variant.ends for variant in ways} == {"sft"} and all(variant.stages[-1] == "sft" for variant in ways)
    assert VARIANTS["fas_has"].stages == ("cpt", "sft") and VARIANTS["unmasked_sft"].stages == ("sft", "rl")
    assert VARIANTS["layerwise"].stages == ("rl",)


def test_what_a_claim_compares_is_there_to_be_compared() -> None:
    for claim in CLAIMS:
        for name in claim.variants:
            config = load_config(str(VARIANTS[name].sizes), VARIANTS[name].settings)
            assert claim.suite in (*config.evaluation.suites, "*")
            assert claim.measure is not Measure.SOONER or config.rl.evaluate is not None


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


@pytest.mark.long
@pytest.mark.end_to_end
def test_variants_of_a_base_share_a_home_and_its_engines_and_none_is_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variant, "sizes", SMALL)
    monkeypatch.setattr(ablations, "sizes_of", lambda base: SMALL)
    monkeypatch.setitem(ablations.TOKENS, "reader", 1)
    results, starts = tmp_path / "results.jsonl", list[object]()
    monkeypatch.setattr(Rollouts, "begin", lambda *given, begin=Rollouts.begin: starts.append(given) or begin(*given))
    variants = [replace(VARIANTS["no_cpt"], ends="rl"), replace(VARIANTS["uniform"], settings=("rl.horizon.frontier=0",))]
    for variant in variants:
        monkeypatch.setitem(VARIANTS, variant.name, variant)
    assert list(run_all(tmp_path, variants, [0], results)) == []
    home = place(tmp_path, "reader", 0)
    with Lake(home.root, read_only=True) as lake:
        parents = {policy.id: policy.parent for policy in lake.policies()}
        before = lake.snapshot()
        steps = lake.query("SELECT policy, count(DISTINCT step) AS n FROM trajectories WHERE stage = 'rl' GROUP BY policy").to_pylist()
    assert parents["t1-rl-no_cpt"] == "t1-sft-no_cpt" and parents["t1-sft-no_cpt"] == "t0-init"
    assert parents["t1-rl-uniform"] == "t1-sft" and "t1-rl" not in parents
    assert {row["policy"]: row["n"] for row in steps} == {"t1-rl-no_cpt": 1, "t1-rl-uniform": 1}, (
        "a budget ends RL behind the step that spends it"
    )
    assert len(starts) == 1
    assert home.load().rl.horizon.frontier == 0.9, "a home is its base's, whatever its variants change"
    found = read_results(results)
    assert set(found) == {("no_cpt", 0), ("uniform", 0)} and all(each.sft_loss > 0 for each in found.values())
    results.unlink()
    assert list(run_all(tmp_path, variants, [0], results)) == []
    with Lake(home.root, read_only=True) as lake:
        assert lake.snapshot() == before and read_results(results) == found


def test_a_claim_names_no_variant_twice() -> None:
    assert Claim("x", "", {"a": ("b", "c"), "c": ("a",)}).variants == ("a", "b", "c")
