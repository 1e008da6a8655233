"""TRL's own tool loop on our search: `GRPOTrainer` with `environment_factory`, the same policy, documents, prompts and actions.

A policy that speaks in tags is given a chat template and a response template that say the same in TRL's terms: the question is the user's
message, a search a tool call, an observation a tool message. A chat model keeps its own template, and is read back by the response template
that TRL has for calls of that form. So TRL samples what our loop samples; only who drives the engine and the tools differs. vLLM in TRL's
colocated mode needs a GPU; on a CPU TRL generates by transformers.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.graders.answers import exact_match
from rl.renderers.registry import open_dialect
from rl.retrieval.search import SearchIndex, passages
from rl.rollouts.config import RolloutConfig
from warehouse import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from trl import GRPOTrainer  # type: ignore[attr-defined]

CHAT_TEMPLATE = (  # calls of other tools are written out only because TRL tries the template with one
    "{% for m in messages %}"
    "{% if m.role == 'user' %}<question> {{ m.content }}</question>"
    "{% elif m.role == 'tool' %}<information> {{ m.content }}</information>"
    "{% elif m.tool_calls and m.tool_calls[0].function.name == 'search' %}<search> {{ m.tool_calls[0].function.arguments.query }}</search>"
    "{% elif m.tool_calls %}{{ m.tool_calls | tojson }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor_pattern": "</question>|</information>",
    "fields": {
        "tool_calls": {
            "open": "<search>",
            "close": "</search>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "search", "arguments": {"query": "{content}"}}},
        },
        "content": {"close_pattern": "$", "content": "text"},
    },
}
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def tokenizer_of(policy: Path, dialect: str) -> PreTrainedTokenizerBase:
    """The policy's tokenizer with the two templates of its dialect, `tags` or `chat`."""
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen3_template

    tokenizer = AutoTokenizer.from_pretrained(policy, local_files_only=True, trust_remote_code=False)
    tokenizer.response_template = qwen3_template if dialect == "chat" else RESPONSE_TEMPLATE
    if dialect == "tags":
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def environment_of(index: SearchIndex, documents: int, longest: int, wait: Callable[[], None] | None = None) -> Callable[[], Any]:
    """A factory as TRL wants it: one tool, `search`. `longest` is the number of characters of an observation; `wait` a tool's latency."""

    class Search:
        def reset(self, **example: Any) -> None:
            """Nothing to see but the question."""

        def search(self, query: str) -> str:
            """Search the corpus for documents.

            Args:
                query: the title of a document, or words to look for.
            """
            if wait is not None:
                wait()
            return passages(index.find(query, documents).documents)[:longest]

    return Search


def reward_of(dialect: str) -> Callable[..., list[float]]:
    """TRL's reward function: 1 where the last message answers, and rightly. Without tags all that it says is the answer."""

    def answer(message: Mapping[str, Any]) -> str:
        said = str(message.get("content", ""))
        found = ANSWER.search(said)
        return said if dialect == "chat" else found[1] if found else ""

    def answered_rightly(completions: Sequence[Sequence[Mapping[str, Any]]], answers: Sequence[Sequence[str]], **_: Any) -> list[float]:
        return [float(exact_match(answer(completion[-1]), right)) for completion, right in zip(completions, answers, strict=True)]

    return answered_rightly


def trainer_of(
    policy: Path,
    tasks: Sequence[Task],
    environment: Callable[[], Any],
    horizon: int,
    rollout: RolloutConfig,
    callbacks: Any = (),
    **settings: Any,
) -> GRPOTrainer:
    """TRL's trainer on `tasks`, in the dialect and with the longest action of `rollout`; `settings` are those of `GRPOConfig`."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

    tokenizer = tokenizer_of(policy, rollout.dialect)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype="float32")
    model.generation_config.eos_token_id = list(open_dialect(rollout.dialect, rollout.dialects, tokenizer).stop_token_ids)
    rows = [{"prompt": [{"role": "user", "content": task.question}], "answers": list(task.answers)} for task in tasks]
    defaults = {
        "output_dir": tempfile.mkdtemp(prefix="trl-"),
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "gradient_checkpointing": False,  # as ours, which has room for it
        "max_tool_calling_iterations": horizon - 1,
        "generation_kwargs": {"max_new_tokens": rollout.limits.max_action_tokens},
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    return GRPOTrainer(
        model=model,
        args=GRPOConfig(**{**defaults, **settings}),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        reward_funcs=[reward_of(rollout.dialect)],
        environment_factory=environment,
        callbacks=list(callbacks),
    )
