"""The claims: what a criterion says of differences, what is told of variants that are done and of those that are not, one really run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import ablations
from benchmarks.ablations import (
    Result,
    compare,
    markdown,
    read_results,
    report,
    table,
)
from benchmarks.claims import CLAIMS, SEEDS, Verdict, verdict

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


def test_the_page_has_the_table_of_the_committed_lines() -> None:
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
    assert report(read_results(ablations.RESULTS), SEEDS) in page
