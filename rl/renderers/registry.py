"""Dialects by their names, made for a policy's tokenizer and proven to go with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from rl.policies.vision import Vision
from rl.renderers.base import Dialect
from rl.renderers.chat import ChatDialect, prove
from rl.renderers.chat_template import ChatTemplate
from rl.renderers.config import DialectConfig
from rl.renderers.tags import TagDialect
from warehouse.errors import RequestError
from warehouse.plugins import Registry

BUILT_IN = {"tags": DialectConfig(kind="tags"), "chat": DialectConfig(kind="chat")}
DIALECTS = Registry(
    "kind of dialect",
    {"tags": "rl.renderers.tags:TagDialect", "chat": "rl.renderers.chat:ChatDialect"},
    "agent_flywheel.dialects",
    arguments=("tokenizer", "options"),
)
TEMPLATES = {file.stem: file for file in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
"""The chat templates that come with the project, by name."""
DialectFactory = Callable[[PreTrainedTokenizerBase, Mapping[str, Any]], Dialect]


def open_dialect(
    name: str, configured: Mapping[str, DialectConfig], tokenizer: PreTrainedTokenizerBase, vision: Vision | None = None
) -> Dialect:
    """The dialect called `name`, of those `configured` and those built in, for a tokenizer; `vision` is there where the policy sees.

    Raises:
        RequestError: where there is none of that name, or where it does not go with the tokenizer.
    """
    config = dialect_config(name, configured)
    if config.kind == "tags":
        return TagDialect(tokenizer, config.introduce)
    if config.kind == "chat":
        template = ChatTemplate(tokenizer, template_text(config.template, tokenizer), config.variables, config.today)
        dialect = ChatDialect(template, config.system, vision)
        prove(dialect)
        return dialect
    return cast(DialectFactory, DIALECTS.load(config.kind))(tokenizer, config.options)


def dialect_config(name: str, configured: Mapping[str, DialectConfig]) -> DialectConfig:
    """The configuration of the dialect called `name`. Raises RequestError where there is none of that name."""
    known = {**BUILT_IN, **configured}
    if name not in known:
        raise RequestError(f"there is no dialect {name!r}; name one of {', '.join(known)}, or configure it under rollout.dialects.")
    return known[name]


def template_text(name: str, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The text of the chat template `name`: None for the tokenizer's `own`, TRL's for `training` beside it, one of ours, or a file.

    Raises:
        RequestError: where there is no such template.
    """
    if name == "own":
        return None
    if name == "training":
        from trl.chat_template_utils import get_training_chat_template

        try:
            return get_training_chat_template(tokenizer)
        except ValueError as error:
            raise RequestError(f"TRL has no template for training beside this policy's own: {error}") from error
    path = TEMPLATES.get(name) or Path(name)
    if not path.is_file():
        raise RequestError(f"there is no chat template {name}; give own, training, {', '.join(TEMPLATES)}, or a file.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"the chat template {path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
