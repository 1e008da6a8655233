"""One call of `rollout` with tasks of several environments, dialects and tools, on a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken

from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy, save_policy
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import AgentLoops, Rollouts
from tests.rl.conftest import DOCUMENTS, TASKS, WORDS
from tests.rl.policies.logprob_check import max_logprob_difference
from tests.rl.renderers.templates_of_trl import tokenizer_for
from warehouse.errors import RequestError
from warehouse.records import Outcome, StopReason, Task, Trajectory

CHAT = {"rollout": {"dialect": "chat"}}


@pytest.fixture(scope="module")
def chat_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy that has the tags, and the tokens and the chat template of Qwen2.5 as well."""
    config = PolicyConfig(
        layers=2, width=64, heads=2, key_value_heads=2, intermediate_size=128, vocabulary_size=400, max_position_embeddings=2048
    )
    folder = create_policy(config, [document.text for document in DOCUMENTS[:3]], WORDS, tmp_path_factory.mktemp("chat") / "p", seed=0)
    model, tokenizer = load_policy(folder)
    tokenizer.add_tokens([AddedToken(f"<|im_{side}|>", special=True, normalized=False) for side in ("start", "end")], special_tokens=True)
    tokenizer.chat_template = tokenizer_for("qwen2_5").chat_template
    model.resize_token_embeddings(len(tokenizer))
    save_policy(model, tokenizer, folder)
    return folder


def test_a_policy_that_was_saved_and_loaded_keeps_its_template(chat_policy: Path) -> None:
    dialect = AgentLoops(RolloutConfig(), load_policy(chat_policy)[1]).dialect("chat")
    assert dialect.decode(dialect.prompt_ids("Where?")).endswith("Where?<|im_end|>\n<|im_start|>assistant\n")


def request(name: str, task: Task) -> RolloutRequest:
    return RolloutRequest(name, task, "tiny", 3, seed=len(name))


@pytest.mark.long
@pytest.mark.engine
def test_a_mixture_of_environments_and_dialects_runs_side_by_side(chat_policy: Path) -> None:
    config = RolloutConfig.model_validate(
        {
            "limits": {"max_action_tokens": 8, "max_observation_tokens": 48, "max_context_tokens": 2000},
            "engine": {"kv_cache_gib": 0.1},
            "environments": {"kinds": {"tests.rl.faulty:create": {"options": {"seconds": 30}}}},
        }
    )
    tasks = {
        "tags-search": TASKS[0],
        "tags-calculator": Task("sum", "calculator", "1 + 1?", ("2",)),
        "chat-search": Task("chat", "search", "Where is Amber Stone?", ("Green Lake",), provenance=CHAT),
        "chat-calculator": Task("chat-sum", "calculator", "1 + 1?", ("2",), provenance={"rollout": {"dialect": "chat", "tools": []}}),
        "chat-broken": Task("broken", "tests.rl.faulty:create", "raise", (), provenance=CHAT),
    }
    with Rollouts.start(config, chat_policy, DOCUMENTS) as rollouts:
        done = {each.id: each for each in rollouts.rollout([request(name, task) for name, task in tasks.items()])}
        with pytest.raises(RequestError, match="there is no dialect 'chess'"):
            rollouts.rollout([request("x", Task("x", "search", "?", (), provenance={"rollout": {"dialect": "chess"}}))])
    model, tokenizer = load_policy(chat_policy)
    broken = done.pop("chat-broken")
    assert (broken.stop_reason, broken.outcome, broken.turns) == (StopReason.FAULT, Outcome.INVALID, ())
    assert all(each.error is None and each.turns for each in done.values())
    assert max_logprob_difference(model, list(done.values())) < 1e-3

    def prompt(trajectory: Trajectory) -> str:
        return str(tokenizer.decode(trajectory.prompt_ids))

    assert all(prompt(each).startswith("<question>" if name.startswith("tags") else "<|im_start|>system") for name, each in done.items())
    assert '"name": "search"' in prompt(done["chat-search"])
    assert "<tools>" not in prompt(done["chat-calculator"])
    assert all("<|im_start|>assistant" in turn.observation for turn in done["chat-search"].turns[:-1])
