"""What can be known of a configuration before anything starts: whether all that it names is there, can be imported, and fits together.

Synthesis and pre-training take minutes; a reward function with a typing error, or a chat template without tools, is found out in seconds.
Nothing is started and nothing is written here. What only a machine can say (memory, a sandbox, GPUs) is `flywheel doctor`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from flows.config import FlywheelConfig
from warehouse.errors import RequestError

REACH_SECONDS = 5.0
"""How long a teacher's server may take to answer anything at all."""


def preflight(config: FlywheelConfig, begun: bool = False) -> None:
    """Check a configuration; of a home that has `begun`, and so has its first policy, the model that this was made from is not needed.

    Raises:
        RequestError: the first thing that is wrong: its key, why, and what to do.
    """
    for check in (_files, _rewards, _environments, *(() if begun else (_policy,)), _teacher):
        check(config)


def _files(config: FlywheelConfig) -> None:
    """Folders and files that a stage reads long after the run began."""
    general = config.cpt.general
    wanted: list[tuple[str, Path | str | None, Callable[[Path], bool]]] = [
        ("rollout.search.encoder", config.rollout.search.encoder, Path.is_dir),
        ("cpt.general.path", None if general is None else general.path, Path.exists),
        ("synth.teacher.path", None if config.synth.teacher is None else config.synth.teacher.path, Path.is_dir),
    ]
    for key, path, is_there in wanted:
        if path is not None and not is_there(Path(path)):
            raise RequestError(f"{key}: there is no {path}; put it there or name another place.")


def _rewards(config: FlywheelConfig) -> None:
    from rl.rewards.reward import find_functions

    for iteration in (1, 2) if config.later else (1,):
        find_functions(config.for_turn(iteration).rl.rewards)


def _environments(config: FlywheelConfig) -> None:
    """Every kind of environment, with its file of tools where it has one, and the one that questions are asked in."""
    from rl.envs.base import ENVIRONMENTS, find_environment
    from rl.envs.tool_use import ToolsOptions
    from rl.rollouts.rollout import LOOPS
    from rl.tools.file import read_tools_file
    from warehouse.settings import read_options

    pool = config.rollout.environments
    for name, kind in pool.kinds.items():
        find_environment(kind.factory or name)
        if (kind.factory or name) == "tools":
            read_tools_file(read_options(ToolsOptions, kind.options, f"rollout.environments.kinds.{name}").file)
    ENVIRONMENTS.resolve_recorded(config.synth.webshaper.environment, pool.listed)
    for loop in (config.rollout.loops.get(config.rollout.loop, config.rollout.loop), *config.rollout.loops.values()):
        LOOPS.load(loop)


def _policy(config: FlywheelConfig) -> None:
    """The first policy's folder, its context, and the proof that its dialect can be appended to."""
    rollout = config.rollout
    if config.policy.path is None:
        own = rollout.dialects.get(rollout.dialect)
        if own is None and rollout.dialect not in ("tags", "chat"):
            raise RequestError(f"there is no dialect {rollout.dialect!r}; name tags, chat, or one of rollout.dialects.")
        if rollout.dialect == "chat" or (own is not None and own.kind == "chat" and own.template == "own"):
            raise RequestError(
                f"rollout.dialect = {rollout.dialect} needs a chat template, and a policy from scratch has none: name a model in "
                "policy.path, a template in rollout.dialects, or take tags."
            )
        return
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    from rl.policies.tokenization import add_tags
    from rl.renderers.registry import open_dialect
    from rl.rollouts.rollout import check_context

    folder = Path(config.policy.path)
    check_context(rollout, folder)
    try:
        tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError) as error:
        raise RequestError(f"policy.path: {folder} has no tokenizer that can be read: {str(error).splitlines()[0][:200]}") from error
    if not str(tokenizer.decode(tokenizer("A river of 1999.", add_special_tokens=False)["input_ids"])).strip():
        raise RequestError(f"policy.path: {folder} has no tokenizer that can write a sentence: is tokenizer.json missing?")
    if not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir()):
        raise RequestError(f"policy.path: {folder} holds no weights: no file that ends in .safetensors or .bin.")
    add_tags(tokenizer)
    open_dialect(rollout.dialect, rollout.dialects, tokenizer)


def _teacher(config: FlywheelConfig) -> None:
    """Whether the teacher's server answers; what it answers does not matter here."""
    teacher = config.synth.teacher
    if teacher is None or teacher.kind != "openai" or teacher.base_url is None:
        return
    import httpx

    try:
        httpx.get(f"{teacher.base_url.rstrip('/')}/models", timeout=REACH_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RequestError(
            f"synth.teacher.base_url: nothing answers at {teacher.base_url} ({type(error).__name__}); start the server, or name another."
        ) from error
