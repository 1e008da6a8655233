"""A row of each format that is imported, and the paths of its texts, which tests replace one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": ["q"]}}\n</tool_call>'
SPOKEN = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Amber"}]
EVALUATED = {"task": "t", "model": "m", "created": "2026-01-01T00:00:00+00:00", "dataset": {"name": "d"}, "config": {}}
SAMPLED = {"id": 1, "epoch": 1, "input": "Who?", "target": "Amber", "messages": SPOKEN}
SAMPLES: dict[str, Any] = {
    "webshaper": {"id": "1", "question": "Who?", "answer": "Ann", "formalization": [["V@X", "r", "?"], ["V@X", "s", "C@a"]], "urls": ["u"]},
    "webdancer": {"messages": [SPOKEN[0], {"role": "assistant", "content": CALL}], "answer": [["Amber"]], "tag": "t", "tool_calls": []},
    "fireact": {"7": {"reward": True, "em": True, "f1": 1.0, "gt": "a", "pred": "a", "prompt": [], "traj": SPOKEN}},
    "openai": {"messages": SPOKEN, "reward": 1, "answer": ["Amber"], "model": "m", "tools": []},
    "inspect": {"version": 2, "eval": EVALUATED, "samples": [SAMPLED]},
    "search-r1": {"input": "Question: Who?\n", "output": "<answer> A </answer>", "gts": {"target": ["A"]}, "score": 1.0, "step": 1},
    "tau-bench": {"task_id": 3, "reward": 1.0, "info": {"task": {"instruction": "Book."}}, "traj": SPOKEN, "trial": 0},
    "verifiers": {"example_id": 0, "prompt": SPOKEN[:1], "completion": SPOKEN[1:], "answer": "A", "info": {}, "reward": 1.0, "metrics": {}},
}
"""A row of each format that `flywheel import` reads."""


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of the texts of a row."""
    if isinstance(value, str):
        yield before
    elif isinstance(value, Mapping | list):
        for step, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from paths(inner, (*before, step))
