"""Answers known to be right or wrong, `vectors/KIND.jsonl`, each with its reason, and what holds for every answer of a kind.

`qa_f1` is held by the vectors of `qa_em`, whose verdict it has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.graders.answers import join_items, read_set
from eval.graders.mathematics import final_expression, last_expression
from eval.graders.numbers import close_number, final_number, measure
from eval.graders.rows import ROW_VERIFIERS, verify_rows
from eval.sandbox.sandbox import isolation
from warehouse.records import Outcome

Row = dict[str, Any]
FOLDER = Path(__file__).with_name("vectors")
VECTORS: dict[str, list[Row]] = {
    path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(FOLDER.glob("*.jsonl"))
}
VECTORS["qa_f1"] = VECTORS["qa_em"]
OF_TEXTS = [(kind, 1) for kind in VECTORS if kind not in ("code", "math")]
OF_TEXTS += [pytest.param("math", 16, marks=pytest.mark.slow), pytest.param("math", 1, marks=pytest.mark.long)]
"""Kinds, and how many vectors one of them stands for."""
DOCS = Path(__file__).parents[3] / "docs" / "verifiers.md"
EXPECTED = {True: Outcome.SUCCESS, False: Outcome.FAILURE}


def verdict(kind: str, gold: Any, pred: Any, options: Row | None = None) -> Outcome:
    (judgement,) = verify_rows(kind, [{"id": 0, "gold": gold, "pred": pred, "options": options or {}}])
    return judgement.verdict


def padded(answer: Any) -> Any:
    """An answer with blanks around it, a list with blanks around its items."""
    if isinstance(answer, list):
        return [padded(item) for item in answer]
    return f" \n\t{answer}\u00a0\n " if isinstance(answer, str) else answer


def test_each_kind_has_sixty_of_each_sort_and_the_documented_counts_are_those_of_the_data() -> None:
    assert set(VECTORS) == set(ROW_VERIFIERS)
    right = {kind: sum(row["right"] for row in rows) for kind, rows in VECTORS.items()}
    wrong = {kind: len(rows) - right[kind] for kind, rows in VECTORS.items()}
    assert min(*right.values(), *wrong.values()) >= 60
    found = re.search(r"([\d,]+) right and ([\d,]+) wrong answers", DOCS.read_text())
    assert found is not None
    documented = [int(count.replace(",", "")) for count in found.groups()]
    assert documented == [sum(counts.values()) - counts["qa_f1"] for counts in (right, wrong)]


@pytest.mark.parametrize(("kind", "every"), OF_TEXTS)
def test_right_answers_pass_and_wrong_ones_fail_with_blanks_around_them_too(kind: str, every: int) -> None:
    for row in VECTORS[kind][::every]:
        for gold, pred in ((row["gold"], row["pred"]), (padded(row["gold"]), padded(row["pred"]))):
            assert verdict(kind, gold, pred, row.get("options")) is EXPECTED[row["right"]], row


@pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")
@pytest.mark.parametrize("every", [pytest.param(10, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("right", [True, False])
def test_right_programs_pass_and_wrong_ones_fail(right: bool, every: int) -> None:
    rows = [row for row in VECTORS["code"] if row["right"] is right][::every]
    with ThreadPoolExecutor(2) as pool:
        judged = list(pool.map(lambda row: verdict("code", row["gold"], row["pred"], row.get("options")), rows))
    assert [(row["pred"], found) for row, found in zip(rows, judged, strict=True) if found is not EXPECTED[right]] == []


@pytest.mark.parametrize("kind", ["qa_em", "qa_f1", "squad_em", "gsm8k", pytest.param("math", marks=pytest.mark.long)])
def test_right_and_given_may_change_places(kind: str) -> None:
    """But for a choice and for doubt, which an answer may hold only where the right one does."""
    sure = [row for row in VECTORS[kind] if " or " not in str(row["pred"]) and "in doubt" not in row["why"]]
    texts = [row for row in sure if isinstance(row["gold"], str) and isinstance(row["pred"], str)]
    swapped = [(row, verdict(kind, row["pred"], row["gold"], row.get("options"))) for row in texts]
    assert [row for row, judged in swapped if judged not in (EXPECTED[row["right"]], Outcome.INVALID)] == []
    assert sum(judged is not Outcome.INVALID for _, judged in swapped) >= 60


@given(st.lists(st.text("ab;|, [\n", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=4))
def test_a_joined_list_is_read_back_where_no_item_holds_what_separates(items: list[str]) -> None:
    plain = [item.translate(str.maketrans(";|[\n", "cdef")) for item in items]
    assert read_set(join_items(plain), plain) == plain


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12))
def test_a_number_is_itself_in_every_notation(number: Decimal) -> None:
    texts = [f"{number:f}", f"{number:,f}", f"{number:,f}".replace(",", " "), f"{number:f}".replace("-", "minus "), f"${number:f}"]
    assert all(final_number(text) == number for text in texts)
    assert all(close_number(text, f"${number:f}") for text in texts)
    assert final_number(f"{final_number(texts[1]):f}") == number
    measured = measure(texts[1])
    assert measured is not None
    assert measure(str(measured[0])) == measured


@pytest.mark.parametrize("extract", [final_expression, last_expression])
def test_an_expression_is_its_own(extract: Callable[[str], str | None]) -> None:
    found = {extract(text) for row in VECTORS["math"] for text in (row["gold"], row["pred"])} - {None}
    assert {expression for expression in found if extract(str(expression)) != expression} == set()
