"""Collection is put off, and goes on as it was, whatever happens within."""

from __future__ import annotations

import gc
from contextlib import suppress

from warehouse.rows import gc_paused


def test_nothing_is_collected_within_and_all_is_as_before_afterwards() -> None:
    assert gc.isenabled()
    with suppress(ValueError), gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the inner one is not the last"
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    with gc_paused():
        pass
    try:
        assert not gc.isenabled()
    finally:
        gc.enable()
