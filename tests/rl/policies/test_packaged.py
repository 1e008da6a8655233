"""The policies that come with the package: which weights they are, what they can do, and what a wheel makes of them."""

from __future__ import annotations

import pytest

from benchmarks.reader import DIGEST, read_share
from rl.policies.config import PACKAGED
from warehouse.digests import digest_files

READER = PACKAGED / "reader"


def test_the_reader_is_the_one_that_its_script_made() -> None:
    assert digest_files(READER) == DIGEST
    assert sum(file.stat().st_size for file in READER.iterdir()) < 3e6


@pytest.mark.slow
def test_the_reader_answers_questions_about_texts_that_it_has_not_read() -> None:
    assert read_share(READER, 60) >= 0.6
