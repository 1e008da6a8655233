"""Diffs are made and applied without loss, and strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.graders.repository import PatchError, apply_patch, make_patch
from tests.eval.graders.small_repository import FILES, GOLD

CONTENTS = st.lists(
    st.sampled_from(["a\n", "b\n", "\n", "--- x\n", "+++ y\n", "@@ -1 +1 @@\n", "\\ z\n", "c", "\r\n", "ü\u2028\n"]), max_size=6
)
FOLDERS = st.dictionaries(st.sampled_from(["a.py", "b/c.py", "d"]), CONTENTS.map(lambda lines: "".join(lines).encode()), max_size=3)


@given(FOLDERS, FOLDERS)
def test_a_diff_leads_from_one_state_to_the_other(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    assert apply_patch(before, make_patch(before, after)) == after


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        (GOLD.replace("prices[1:]", "prices[2:]"), "is not what the patch expects"),
        (GOLD.replace("shop/prices.py", "shop/absent.py"), "which is not there"),
        (GOLD.replace("b/shop/prices.py", "b/../../etc/passwd"), "outside of the repository"),
        (GOLD.replace("b/shop/prices.py", "/etc/passwd"), "outside of the repository"),
        (GOLD.replace("@@ -1,", "@@ -4,"), "is not what the patch expects"),
        ("\n".join(GOLD.splitlines()[:-2]), "not as long as it says"),
    ],
)
def test_a_diff_that_does_not_fit_is_refused(patch: str, told: str) -> None:
    with pytest.raises(PatchError, match=told):
        apply_patch(FILES, patch)


def test_bytes_that_are_no_text_cannot_be_told() -> None:
    with pytest.raises(PatchError, match="UTF-8"):
        make_patch({"a": b"\xff"}, {"a": b"b"})
