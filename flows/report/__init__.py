"""The report on a lake: one self-contained HTML page with figures, curves, lineage and trajectories."""

from __future__ import annotations

from flows.report.page import build_report

__all__ = ["build_report"]
