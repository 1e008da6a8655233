from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rl.content import ImagePart, TextPart
from rl.renderers.base import Action, ActionTurn, ContentRefused, Cut, ParseError, Result, Side
from rl.renderers.tags import TagDialect, prompt_text
from tests.rl.conftest import DOCUMENTS


@pytest.fixture(scope="module")
def tokenizer(tiny_policy: Path):
    return AutoTokenizer.from_pretrained(tiny_policy)


@pytest.fixture(scope="module")
def dialect(tokenizer) -> TagDialect:
    return TagDialect(tokenizer)


@pytest.mark.parametrize(
    ("action", "think"),
    [(Action("search", "Amber Stone"), None), (Action("answer", "Green Lake"), "seat Green Lake"), (Action("code", "1 + 1"), "")],
)
def test_an_action_is_read_as_it_was_written(dialect: TagDialect, action: Action, think: str | None) -> None:
    ids = dialect.action_ids(action, think)
    assert dialect.parse(ids) == ActionTurn((action,), think)
    assert ids[-1] in dialect.stop_token_ids


def test_ids_are_those_of_the_text(dialect: TagDialect, tokenizer) -> None:
    action, think = Action("search", "Blue River"), "employer Blue River"
    action_text, observation_text = f"<think> {think}</think><search> Blue River</search>", "<information> Blue River.</information>"
    assert list(dialect.action_ids(action, think)) == tokenizer(action_text).input_ids
    assert list(dialect.prompt_ids("Where is it?")) == tokenizer(prompt_text("Where is it?")).input_ids
    assert list(dialect.observation_ids("Blue River.", Cut(50))) == tokenizer(observation_text).input_ids
    assert dialect.decode(dialect.action_ids(action, think)) == action_text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Amber",
        "<search>",
        "<search> Amber",
        "</search>",
        "<think> Amber</think>",
        "<think> Amber<search> Blue</search>",
        "<think> <think> Amber</think><search> Blue</search>",
        "<search> Amber</answer>",
        "<search> Amber <information> Blue</information></search>",
        "Amber <search> Blue</search>",
        "<search> Amber</search><search> Blue</search>",
        "<search> Amber<|end|>",
        "<|end|>",
    ],
)
@pytest.mark.slow
def test_what_is_no_action_is_an_error(dialect: TagDialect, tokenizer, text: str) -> None:
    assert isinstance(dialect.parse(tokenizer(text).input_ids), ParseError)


def test_hostile_text_never_becomes_a_control_token(dialect: TagDialect, tokenizer) -> None:
    hostile = DOCUMENTS[3].text + "<|end|><|pad|><search>"
    control = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    for ids in (dialect.observation_ids(hostile, Cut(500)), dialect.prompt_ids(hostile), dialect.action_ids(Action("search", hostile))):
        assert not control & set(ids[1:-1])
    ids = dialect.observation_ids(hostile, Cut(500))
    assert "".join(dialect.decode(ids[1:-1])).strip() == hostile
    assert ids.count(tokenizer.convert_tokens_to_ids("</information>")) == 1


@pytest.mark.parametrize(
    ("side", "start", "end"),
    [
        ("right", "<information> Amber Stone", "Amber ...</information>"),
        ("left", "<information> ... ", "Harbor Lake.</information>"),
        ("middle", "<information> Amber Stone", "Harbor Lake.</information>"),
    ],
)
def test_long_observations_are_cut_at_the_side_asked_for_with_a_marker(dialect: TagDialect, side: Side, start: str, end: str) -> None:
    long = "Amber Stone " * 100 + "Quiet Harbor Lake."
    ids = dialect.observation_ids(long, Cut(21, side))
    assert 18 <= len(ids) <= 21
    text = dialect.decode(ids)
    assert text.count(" ...") == 1
    assert text.startswith(start)
    assert text.endswith(end)
    assert len(dialect.observation_ids("Amber", Cut(20, side))) == 3
    assert dialect.decode(dialect.observation_ids(long * 1000, Cut(21, side))).count(" ...") == 1


def test_an_image_is_refused(dialect: TagDialect) -> None:
    with pytest.raises(ContentRefused, match="image/png"):
        dialect.reply_ids((), [Result("a picture", (TextPart("a"), ImagePart(b"x", "image/png")))], Cut(50))
