from __future__ import annotations

import math
from typing import Any

import pytest

from rl.content import TextPart
from rl.tools.config import CallLimits
from rl.tools.tool import CUT_MARK, ToolResult, to_response
from tests.rl.tools.examples import give

LIMITS = CallLimits(max_characters=100, max_image_bytes=2000)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("text", "plain"),
        ("nothing", ""),
        ("json", '{"found": ["a", 1, null]}'),
        ("set", '["a", "b"]'),
        ("parts", "see:\n[image/png, 69 bytes]"),
    ],
)
def test_results_of_every_kind_are_shown(what: str, text: str) -> None:
    assert to_response(give(what), LIMITS).text == text


def test_what_is_too_long_is_cut_at_the_right_with_a_mark() -> None:
    shown = to_response("x" * 250, LIMITS)
    assert shown.text == "x" * 96 + CUT_MARK
    assert shown.cut == 150
    assert len(to_response(give("much json"), LIMITS).text) == 100
    parts = to_response([TextPart("x" * 70), TextPart("y" * 70), TextPart("z")], LIMITS)
    assert parts.parts == (TextPart("x" * 70), TextPart("y" * 26 + CUT_MARK), TextPart(CUT_MARK))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("cyclic", "Circular"),
        ("no image", "are not image/png"),
        ("large image", "larger than max_image_bytes"),
        ("image of many pixels", "larger than the 16,777,216 pixels"),
        ("many images", "holds 17 images, and 16 are the most"),
    ],
)
def test_what_cannot_be_shown_is_refused(what: str, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        to_response(give(what), LIMITS)


@pytest.mark.parametrize(
    "wrong",
    [{"text": "a", "json": 1}, {"reward": math.nan}, {"reward": "high"}, {"figures": {"a": math.inf}}, {"figures": {"a": None}}],
)
def test_a_result_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ToolResult"):
        ToolResult(**wrong)
