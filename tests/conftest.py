"""What concerns all tests: a file that is marked as a whole is not even imported where its mark is not asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WHOLE_FILE = re.compile(r"^pytestmark = (?:\[)?pytest\.mark\.(\w+)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Trainers and servers take seconds to import; unit tests have a minute in all."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    mark = WHOLE_FILE.search(collection_path.read_text())
    return True if mark and re.search(rf"\bnot {mark[1]}\b", config.option.markexpr or "") else None
