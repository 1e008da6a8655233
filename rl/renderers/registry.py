"""Open dialects by name for a policy's tokenizer and check that they fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from rl.policies.vision import Vision
from rl.renderers.base import Dialect, DialectConfig
from rl.renderers.chat import ChatDialect, prove
from rl.renderers.chat_template import ChatTemplate
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
"""Packaged chat templates by name."""
DialectFactory = Callable[[PreTrainedTokenizerBase, Mapping[str, Any]], Dialect]


def open_dialect(
    name: str, configured: Mapping[str, DialectConfig], tokenizer: PreTrainedTokenizerBase, vision: Vision | None = None
) -> Dialect:
    """Open the configured or built-in dialect `name` for a tokenizer; `vision` is set if the policy takes images.

    Raises:
        RequestError: no such dialect, or it does not fit the tokenizer.
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
    """Configuration of dialect `name`. Raises RequestError if there is none."""
    known = {**BUILT_IN, **configured}
    if name not in known:
        raise RequestError(f"there is no dialect {name!r}; choose one of {', '.join(known)}, or configure it under rollout.dialects.")
    return known[name]


def template_text(name: str, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Text of a chat template: None for the tokenizer's `own`, TRL's `training` variant, a packaged one, or a file. Raises RequestError."""
    if name == "own":
        return None
    if name == "training":
        from trl.chat_template_utils import get_training_chat_template

        try:
            return get_training_chat_template(tokenizer)
        except ValueError as error:
            raise RequestError(f"TRL ships no training variant of this policy's chat template: {error}") from error
    path = TEMPLATES.get(name) or Path(name)
    if not path.is_file():
        raise RequestError(f"there is no chat template {name}; choose own, training, {', '.join(TEMPLATES)}, or a file.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"the chat template {path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
