"""Views and macros of the lake, stored in its catalogue for every DuckDB client."""

from __future__ import annotations

from warehouse.views import evaluation, lineage, searches, training
from warehouse.views.definitions import Macro, View

VIEWS: dict[str, View] = {view.name: view for view in (*evaluation.VIEWS, *training.VIEWS, *searches.VIEWS, *lineage.VIEWS)}
"""Views by name, each after those it is built on."""

MACROS: dict[str, Macro] = {macro.name: macro for macro in (*training.MACROS, *lineage.MACROS)}
"""Macros by name; they use the views."""
