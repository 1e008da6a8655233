"""The ablations: what is told of variants that are done and of those that are not, and a variant that is really run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import ablations
from benchmarks.ablations import (
    CLAIMS,
    TABLE,
    VARIANTS,
    Result,
    chosen,
    copy_home,
    done,
    keep_result,
    markdown,
    place,
    read_result,
    read_results,
    run_all,
    table,
    update,
)
from eval.statistics import Interval, student_mean
from flows.config import load_config
from warehouse import Lake, Metric, Outcome, Policy, Run, Score, StopReason, Task, Trajectory

SMALL = Path(__file__).parents[1] / "end_to_end" / "small.toml"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def finished(root: Path, name: str, seed: int, solved: int) -> None:
    """A home in which a variant solved so many of ten tasks."""
    variant = VARIANTS[name]
    sft = "t1-sft" + (f"-{variant.suffix}" if "sft" in variant.stages else "")
    runs = [Run(sft, "sft", 1, {}, "c", 1, 2, "completed", NOW, NOW, {"loss": 0.5})]
    runs.append(Run(f"eval-{variant.policy}-held_out", "eval", 1, {}, "c", 1, 2, "completed", NOW, NOW, {}))
    metrics = [Metric(variant.policy, "rl", 1, step, "success", solved / 20 * step) for step in (1, 2)]
    records: list[object] = [*runs, *metrics, Policy(variant.policy, None, "rl", "policies/x", "d", 1, 1)]
    for number in range(10):
        outcome = Outcome.SUCCESS if number < solved else Outcome.FAILURE
        task = Task(f"k{number}", "search", "?", ("x",), split="held_out", hops=1)
        attempt = Trajectory(
            id=f"{name}-{number}",
            task_key=task.key,
            policy=variant.policy,
            stage="eval",
            horizon=3,
            prompt_ids=(1,),
            turns=(),
            stop_reason=StopReason.ANSWERED,
            outcome=outcome,
            reward=float(number < solved),
            seed=1,
            started=NOW,
            seconds=0.1,
            suite="held_out",
        )
        records += [task, attempt, Score(attempt.id, "qa_em", "1", attempt.reward, outcome, None)]
    home = place(root, name, seed).root
    home.mkdir(parents=True)
    with Lake(home) as lake:
        lake.add(records)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of the reference, of which one has a variant beside it, and a home that was never judged."""
    root = tmp_path_factory.mktemp("ablations")
    for name, seed, solved in (("grpo", 0, 8), ("grpo", 1, 6), ("fixed_short", 1, 3)):
        finished(root, name, seed, solved)
    place(root, "gspo", 0).root.mkdir()
    return root


@pytest.mark.slow
def test_the_table_has_what_is_there_and_says_what_is_missing(homes: Path) -> None:
    judged = {(name, seed): read_result(place(homes, name, seed), VARIANTS[name]) for name in VARIANTS for seed in (0, 1, 2)}
    found = {key: result for key, result in judged.items() if result is not None}
    rows = {(row["claim"], row["variant"]): row for row in table(found, (0, 1, 2))}
    assert set(rows) == {(claim.name, name) for claim in CLAIMS for name in claim.variants}
    reference, short = rows["horizon", "grpo"], rows["horizon", "fixed_short"]
    assert (reference["seeds"], reference["missing"], reference["difference"]) == ([0, 1], [2], None)
    assert reference["success"] == Interval(student_mean([0.8, 0.6]).value, 0.0, 1.0), "Student's own would end at -0.57 and 1.97"
    assert short["success"].value == pytest.approx(0.3) and short["difference"].value == pytest.approx(-0.3)
    assert rows["algorithms", "gspo"]["seeds"] == [] and rows["algorithms", "gspo"]["success"] is None
    lines = markdown(list(rows.values())).splitlines()
    assert len(lines) == 2 + len(rows)
    shown = "| horizon fixed at 3 | 1; not yet 0, 2 | 30.0 | \N{MINUS SIGN}30.0 | 22.5 | \N{MINUS SIGN}22.5 |"
    assert shown in "\n".join(lines)
    assert "| GSPO | 0; not yet 0, 1, 2 |  |  |  |  |  | `gspo` |" in "\n".join(lines)
    assert read_result(place(homes, "grpo", 0), VARIANTS["grpo"]) == Result(0.8, pytest.approx(0.6), 0.5)


def test_a_result_counts_as_long_as_the_settings_are_those_that_it_was_had_under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.jsonl"
    assert read_results(results) == {}
    keep_result(results, VARIANTS["gspo"], 1, Result(0.5, 0.4, 0.25))
    keep_result(results, replace(VARIANTS["rloo"], settings=("rl.estimator=grpo",)), 1, Result(0.5, 0.4, 0.25))
    assert read_results(results) == {("gspo", 1): Result(0.5, 0.4, 0.25)}
    assert list(run_all(tmp_path, [VARIANTS["gspo"]], [1], results)) == [] and not place(tmp_path, "gspo", 1).root.exists()
    monkeypatch.setattr(ablations, "SIZES", SMALL)
    assert read_results(results) == {}


def test_the_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "claims.md"
    page.write_text(f"# Claims\n\n{TABLE}\n")
    update(page, "| a |\n| b |")
    assert page.read_text() == f"# Claims\n\n{TABLE}\n\n| a |\n| b |\n"
    page.write_text(page.read_text() + "\nWhat holds.\n\nAnd what not.\n")
    update(page, "| c |")
    assert page.read_text() == f"# Claims\n\n{TABLE}\n\n| c |\n\nWhat holds.\n\nAnd what not.\n"


def test_variants_are_asked_for_by_their_names_or_those_of_claims() -> None:
    assert [variant.name for variant in chosen("masks,gspo")] == ["grpo", "unmasked_rl", "unmasked_sft", "gspo"]
    assert chosen("") == list(VARIANTS.values())
    with pytest.raises(SystemExit, match="there is no variant 'gpo'"):
        chosen("gpo")


def test_the_settings_of_every_variant_are_settings() -> None:
    base = load_config(str(ablations.SIZES))
    for variant in VARIANTS.values():
        changed = load_config(str(ablations.SIZES), variant.settings)
        assert (changed == base) == (not variant.settings)


@pytest.mark.long
@pytest.mark.end_to_end
def test_a_variant_is_run_from_what_others_have_begun_and_not_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablations, "SIZES", SMALL)
    variant = VARIANTS["no_cpt"]
    ablations.run_variant(tmp_path, variant, 0)
    home = place(tmp_path, "no_cpt", 0)
    assert done(home, variant)
    with Lake(home.root, read_only=True) as lake:
        parents = {policy.id: policy.parent for policy in lake.policies()}
        before = lake.snapshot()
    assert parents["t1-rl-no_cpt"] == "t1-sft-no_cpt" and parents["t1-sft-no_cpt"] == "t0-init"
    assert not (place(tmp_path, "start", 0).root / "policies" / "t1-rl").exists()
    ablations.run_variant(tmp_path, variant, 0)
    with Lake(home.root, read_only=True) as lake:
        assert lake.snapshot() == before
    result = read_result(home, variant)
    assert result is not None and 0 <= result.success <= 1 and result.sft_loss > 0
    shutil.rmtree(home.root)
    copy_home(place(tmp_path, "start", 0), home, load_config(str(SMALL), ("rl.steps=2",)))
    assert home.load().rl.steps == 2 and not done(home, variant)
