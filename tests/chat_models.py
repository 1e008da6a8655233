"""A tiny chat model: random weights, its own tokenizer, the tokens and the chat template of Qwen2.5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken

from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy, save_policy
from tests.rl.renderers.templates_of_trl import tokenizer_for

TEXTS = ("Amber Stone is employed by Blue River.", "Blue River has its seat in Green Lake.", "Where is Amber Stone?")


def create_chat_model(folder: Path, positions: int = 8192, texts: Sequence[str] = TEXTS, **sizes: int) -> Path:
    """One in `folder`, of 2 layers if `sizes` say nothing else, that takes a context of so many tokens; its tokenizer is of `texts`."""
    small = {"layers": 2, "width": 64, "heads": 2, "key_value_heads": 2, "intermediate_size": 128, "vocabulary_size": 500}
    config = PolicyConfig.model_validate({**small, **sizes, "max_position_embeddings": positions})
    create_policy(config, texts, (), folder, seed=0, tags=False)
    model, tokenizer = load_policy(folder)
    tokenizer.add_tokens([AddedToken(f"<|im_{side}|>", special=True, normalized=False) for side in ("start", "end")], special_tokens=True)
    tokenizer.chat_template = tokenizer_for("qwen2_5").chat_template
    model.resize_token_embeddings(len(tokenizer))
    save_policy(model, tokenizer, folder)
    return folder
