"""The dialect of tags, and the dialect of the documentation's example."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.renderers.base import Dialect, ParseError, Result, Schema, Side, Truncation
from rl.renderers.registry import open_dialect
from rl.renderers.tags import TagDialect
from rl.rollouts.config import RolloutConfig
from tests.rl.renderers.test_examples import AT_ONCE, DEMONSTRATIONS, Demonstration, check_rollout, tokenizer_of


@pytest.fixture(scope="module")
def tokenizer(tiny_policy: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_policy)


@pytest.mark.parametrize(
    "text",
    [
        "<search> Amber", "</search>", "<think> Amber</think>", "<think> Amber<search> Blue</search>", "<search> Amber</answer>",
        "<search> Amber <information> Blue</information></search>", "<search> Amber</search><search> B</search>", "<search> Amber<|end|>",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_is_no_action_is_an_error(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert isinstance(TagDialect(tokenizer).parse(tokenizer(text).input_ids), ParseError)


@pytest.mark.parametrize(
    ("side", "start", "end"),
    [
        ("right", "<information> Amber Stone", "Amber ...</information>"),
        ("left", "<information> ... ", "Harbor Lake.</information>"),
        ("middle", "<information> Amber Stone", "Harbor Lake.</information>"),
    ],
)
def test_long_observations_are_cut_at_the_side_asked_for_with_a_marker(
    tokenizer: PreTrainedTokenizerBase, side: Side, start: str, end: str
) -> None:
    dialect, long = TagDialect(tokenizer), "Amber Stone " * 100 + "Quiet Harbor Lake."
    ids = dialect.observation_ids(long, Truncation(21, side))
    text = dialect.decode(ids)
    assert 18 <= len(ids) <= 21 and text.count(" ...") == 1
    assert text.startswith(start) and text.endswith(end)
    assert len(dialect.observation_ids("Amber", Truncation(20, side))) == 3
    assert dialect.decode(dialect.observation_ids(long * 1000, Truncation(21, side))).count(" ...") == 1


def tool(name: str, description: str = "Does it.") -> Schema:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {}}}


INTRODUCED = """Answer the question. You may think first; then write one action, and nothing behind it.
<search> ...</search>: Looks it up.
<answer> ...</answer>: the answer, as short as can be. It ends the task.
<think> ...</think>: a thought.
<information> ...</information>: what an action brought.
<question> Where?</question>"""


def test_a_foreign_policy_gets_an_introduction_to_the_tags() -> None:
    tokenizer = tokenizer_of("tags introduced")
    dialect = TagDialect(tokenizer)
    tools = [tool("browse"), tool("search", "Looks it up."), tool("question")]
    ids = dialect.prompt_ids("Where?", tools=tools)
    assert dialect.decode(ids) == INTRODUCED
    tags = [tokenizer.convert_ids_to_tokens(token) for token in ids if token in tokenizer.get_added_vocab().values()]
    assert tags == [f"<{end}{tag}>" for tag in ("search", "answer", "think", "information", "question") for end in ("", "/")]
    assert "<code> ...</code>: Does it.\n" in dialect.decode(dialect.prompt_ids("Where?", tools=[*tools, tool("code")]))
    seen = dialect.prompt_ids("Where?", "A bench.", tools, Truncation(20))
    assert dialect.decode(seen) == f"{INTRODUCED}<information> A bench.</information>"


PAGE = (Path(__file__).parents[3] / "docs" / "agent_loop.md").read_text()


@pytest.fixture
def documented(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> Dialect:
    """The class of the page under the name that the page's profile gives it."""
    (code,) = re.findall(r"```python\n(from .*?)```", PAGE, re.DOTALL)
    (profile,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = RolloutConfig.model_validate(tomllib.loads(profile)["rollout"])
    name, _, _ = config.dialects[config.dialect].kind.partition(":")
    module = ModuleType(name)
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, name.partition(".")[0], ModuleType(name.partition(".")[0]))
    monkeypatch.setitem(sys.modules, name, module)
    return open_dialect(config.dialect, config.dialects, tokenizer)


@pytest.mark.parametrize("demonstration", [*DEMONSTRATIONS.values(), AT_ONCE])
def test_examples_have_the_ids_of_a_rollout(documented: Dialect, demonstration: Demonstration) -> None:
    check_rollout(documented, demonstration)


def test_no_text_becomes_a_control_token(documented: Dialect, tokenizer: PreTrainedTokenizerBase) -> None:
    ids = documented.reply_ids((), [Result("".join(tokenizer.get_added_vocab()))], Truncation(1_000))
    assert not set(ids) & set(tokenizer.get_added_vocab().values())
