"""Real data that tests read: next to the repository, or where `flywheel data get` puts it."""

from __future__ import annotations

import pytest

from warehouse.public_data.catalogue import data_root

DATA = data_root()


def needs(*paths: str) -> pytest.MarkDecorator:
    """Skip unless all `paths` are under `DATA`."""
    missing = [path for path in paths if not (DATA / path).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)} in {DATA}; see `flywheel data get`")
