"""A repository of two modules with one fault, and what mends it."""

from __future__ import annotations

from eval.graders.repository import RepositoryTask, make_patch

FILES = {
    "shop/__init__.py": b"",
    "shop/prices.py": b"def total(prices):\n    return sum(prices[1:])\n\n\ndef mean(prices):\n    return total(prices) / len(prices)\n",
    "tests/test_prices.py": b"from shop.prices import total\n\n\ndef test_nothing_costs_nothing():\n    assert total([]) == 0\n",
    "README.md": b"A shop.",
}
HIDDEN = {
    "tests/test_totals.py": b"from shop.prices import mean, total\n\n\ndef test_all_are_counted():\n    assert total([1, 2, 3]) == 6\n\n\n"
    b"def test_mean():\n    assert mean([2, 4]) == 3\n",
}
MENDED = {**FILES, "shop/prices.py": FILES["shop/prices.py"].replace(b"prices[1:]", b"prices")}
GOLD = make_patch(FILES, MENDED)
TASK = RepositoryTask(
    FILES,
    ("tests/test_totals.py::test_all_are_counted", "tests/test_totals.py::test_mean"),
    ("tests/test_prices.py::test_nothing_costs_nothing",),
    HIDDEN,
)
