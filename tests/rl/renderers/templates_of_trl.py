"""The chat templates that TRL ships, each with a small byte-level tokenizer trained here that has the template's control tokens."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

TEXTS = ["Where is Amber Stone? Found Blue River.", '{"name": "lookup", "arguments": {"query": "Green Lake"}}'] * 50
_CONTROL = re.compile(r"<\|[^|<>\s]{1,40}\|>|<｜[^<>\s]{1,40}｜>|<(?:start_of_turn|end_of_turn|turn\||\|turn|\|tool_call|tool_call\|)>")
_SYNTAX = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def names() -> list[str]:
    """Every template that TRL ships."""
    return sorted(path.stem for path in _folder().glob("*.jinja"))


@cache
def tokenizer_for(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer with template `name`; the template's control tokens are special, its syntax for calls and thoughts is added."""
    text = (_folder() / f"{name}.jinja").read_text()
    special = sorted({"<|end_of_text|>", "<|begin|>", *_CONTROL.findall(text)})
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    tokenizer.decoder = Qwen2Tokenizer().backend_tokenizer.decoder
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _SYNTAX if token in text])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin|>",
        eos_token="<|end_of_text|>",
        extra_special_tokens=[token for token in special if token not in ("<|begin|>", "<|end_of_text|>")],
        chat_template=text,
    )


def _folder() -> Path:
    import trl

    return Path(trl.__file__).parent / "chat_templates"
