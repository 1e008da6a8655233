"""A live view on a wheel: what it is doing, how far it is, and whether it is well."""

from __future__ import annotations

from flows.top.live import watch

__all__ = ["watch"]
