"""The dialect that the documentation writes as its example, run as it stands there."""

from __future__ import annotations

import asyncio
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.envs.search import SearchEnvironment
from rl.renderers.base import Dialect, Result, Truncation
from rl.renderers.registry import open_dialect
from rl.retrieval.search import SearchIndex
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from rl.rollouts.config import Limits, RolloutConfig
from tests.rl.conftest import DOCUMENTS, TASKS
from tests.rl.renderers.test_examples import AT_ONCE, DEMONSTRATIONS, Demonstration, check_rollout
from tests.rl.rollouts.test_agent_loop import WrittenActions
from warehouse.records import StopReason

PAGE = (Path(__file__).parents[3] / "docs" / "agent_loop.md").read_text()


@pytest.fixture(scope="module")
def tokenizer(tiny_policy: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_policy)


@pytest.fixture
def dialect(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> Dialect:
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


def test_it_rolls_out(dialect: Dialect, tokenizer: PreTrainedTokenizerBase) -> None:
    def written(text: str) -> tuple[int, ...]:
        return (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)

    engine = WrittenActions([written("search: Amber Stone\nsearch: Blue River"), written("what?"), written("answer: Green Lake")])
    limits = Limits(max_action_tokens=60, max_observation_tokens=48, max_context_tokens=500)
    loop = AgentLoop(engine, dialect, limits)
    trajectory = asyncio.run(loop.run(RolloutRequest("t", TASKS[0], "p", 4, seed=1), SearchEnvironment(SearchIndex(DOCUMENTS))))
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWERED, "Green Lake")
    assert [len(turn.calls) for turn in trajectory.turns] == [2, 0, 1]
    assert trajectory.turns[0].observation == "".join(f"\n> {document.text}\n" for document in DOCUMENTS[:2])


@pytest.mark.parametrize("demonstration", [*DEMONSTRATIONS.values(), AT_ONCE])
def test_examples_have_the_ids_of_a_rollout(dialect: Dialect, demonstration: Demonstration) -> None:
    check_rollout(dialect, demonstration)


def test_no_text_becomes_a_control_token(dialect: Dialect, tokenizer: PreTrainedTokenizerBase) -> None:
    ids = dialect.reply_ids((), [Result("".join(tokenizer.get_added_vocab()))], Truncation(1_000))
    assert not set(ids) & set(tokenizer.get_added_vocab().values())
