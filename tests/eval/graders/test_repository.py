"""Repairs are judged by tests that a patch cannot change, and tasks are admitted by proof."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.graders.repository import PatchError, apply_patch, make_patch, read_snapshot, read_task, verify_patch
from eval.sandbox.sandbox import isolation
from tests.eval.graders.small_repository import FILES, GOLD, HIDDEN, TASK
from warehouse.errors import RequestError

pytestmark = [pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")]


def test_the_gold_patch_resolves() -> None:
    assert verify_patch(TASK, GOLD).resolved


WRONG = {
    "nothing": {},
    "breaks what passed": {
        "shop/prices.py": b"def total(prices): return sum(prices) or None\ndef mean(prices): return total(prices) / 2\n"
    },
    "syntax": {"shop/prices.py": b"def total(prices) return"},
    "exits at import": {"shop/prices.py": b"import os\nos._exit(0)\n"},
    "skips at import": {"shop/prices.py": b"import pytest\npytest.skip('no', allow_module_level=True)\n"},
    "skips in the function": {"shop/prices.py": b"import pytest\ndef total(prices): pytest.skip('no')\nmean = total\n"},
    "expected failure": {"shop/prices.py": b"import pytest\ndef total(prices): pytest.xfail('no')\nmean = total\n"},
    "prints outcomes": {"shop/prices.py": b"print('2 passed')\nimport os\nos._exit(0)\n"},
    "changes the tests": {"tests/test_totals.py": b"def test_all_are_counted(): pass\n\n\ndef test_mean(): pass\n"},
    "configures the tests away": {
        "conftest.py": b"def pytest_runtest_call(item):\n    item.runtest = lambda: None\n    item.obj = lambda: None\n",
        "tests/conftest.py": b"import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        b"    outcome = yield\n    outcome.get_result().outcome = 'passed'\n",
    },
    "brings its own pytest": {"pytest.py": b"def main(*_, plugins): plugins[0].found.update({'x': 'passed'})\n"},
    "brings configuration": {"pytest.ini": b"[pytest]\naddopts = --collect-only\n"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_patch_does_not_resolve(name: str) -> None:
    verdict = verify_patch(TASK, make_patch(FILES, {**FILES, **WRONG[name]}))
    assert not verdict.resolved and verdict.not_passed


MANY = b"""import pytest
from shop.prices import total


@pytest.mark.parametrize("price", range(900), ids=lambda price: "what one price alone comes to is that price: " + str(price))
def test_one_price_is_its_total(price):
    assert total([price]) == price
"""
LOUD = HIDDEN["tests/test_totals.py"] + b"\n\ndef test_of_no_interest():\n    print('x' * 100_000)\n    assert False\n"


@pytest.mark.slow
def test_neither_many_tests_nor_loud_ones_hide_that_a_right_patch_resolves() -> None:
    names = [f"tests/test_many.py::test_one_price_is_its_total[what one price alone comes to is that price: {n}]" for n in range(900)]
    assert verify_patch(replace(TASK, test_files={"tests/test_totals.py": LOUD}), GOLD).resolved
    assert verify_patch(replace(TASK, fail_to_pass=tuple(names), test_files={"tests/test_many.py": MANY}), GOLD).resolved


def test_snapshots_are_read_from_folders_and_tars(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to("/etc/passwd")
    with tarfile.open(tmp_path / "shop.tar.gz", "w:gz") as archive:
        for name in FILES:
            archive.add(folder / name, name)
        archive.add(folder / "link", "link")
    assert read_snapshot(folder) == read_snapshot(tmp_path / "shop.tar.gz") == FILES
    assert read_task(tmp_path, {"snapshot": "shop", "fail_to_pass": ["a"]}).files == FILES


def test_snapshots_stay_in_their_folder(tmp_path: Path) -> None:
    for snapshot in ("../other", "/etc", "shop/../../other"):
        with pytest.raises(RequestError, match="is outside"):
            read_task(tmp_path, {"snapshot": snapshot, "fail_to_pass": []})
    for row, told in (({"snapshot": "x"}, "fail_to_pass"), ({"snapshot": "absent", "fail_to_pass": []}, "no snapshot")):
        with pytest.raises(RequestError, match=told):
            read_task(tmp_path, row)


def test_a_task_without_a_failing_test_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    with pytest.raises(RequestError, match="names no test"):
        read_task(tmp_path, {"snapshot": "shop", "fail_to_pass": [], "pass_to_pass": ["a"]})


LINES = st.sampled_from(["a\n", "b\n", "\n", "--- x\n", "+++ y\n", "@@ -1 +1 @@\n", "\\ z\n", "c", "\r\n", "ü\u2028\n"])
CONTENTS = st.lists(LINES, max_size=6)
FOLDERS = st.dictionaries(st.sampled_from(["a.py", "b/c.py", "d"]), CONTENTS.map(lambda lines: "".join(lines).encode()), max_size=3)


@given(FOLDERS, FOLDERS)
def test_a_diff_leads_from_one_state_to_the_other(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    assert apply_patch(before, make_patch(before, after)) == after


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        (GOLD.replace("prices[1:]", "prices[2:]"), "expects"),
        (GOLD.replace("@@ -1,", "@@ -4,"), "expects"),
        (GOLD.replace("shop/prices.py", "shop/absent.py"), "absent.py"),
        (GOLD.replace("b/shop/prices.py", "b/../../etc/passwd"), "outside"),
        (GOLD.replace("b/shop/prices.py", "/etc/passwd"), "outside"),
        ("\n".join(GOLD.splitlines()[:-2]), "length in its header"),
    ],
)
def test_a_diff_that_does_not_fit_is_refused(patch: str, told: str) -> None:
    with pytest.raises(PatchError, match=told):
        apply_patch(FILES, patch)
