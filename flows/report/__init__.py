"""One self-contained HTML page on what a lake holds: figures, curves, lineage, and trajectories to read."""

from __future__ import annotations

from flows.report.page import build_report

__all__ = ["build_report"]
