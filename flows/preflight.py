"""Check a configuration before anything starts: that everything it names exists, can be imported, and fits together.

Finds errors such as a misspelled reward function or a chat template without tools in seconds instead of after minutes of synthesis. Starts
and writes nothing. Reservations are checked against Ray's machines; `flywheel doctor` checks memory and sandbox.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

from flows.config import FlywheelConfig
from flows.home import check_place
from flows.inputs import check_conditions
from flows.placement import check_placement
from rl.hardware import FLOAT32, GIB, Architecture, bytes_of
from rl.policies.config import PolicyConfig
from synth.teachers.config import TeacherConfig
from warehouse.corpora.files import read_wordings
from warehouse.errors import RequestError, first_line

REACH_SECONDS = 5.0
"""Timeout of a request to a model server."""
OPTIMISER_STATES = 2
"""AdamW states per parameter."""
CHECKPOINTS = 2
"""Checkpoints of a stage on disk at the same time (`save_total_limit`)."""
WEIGHTS_PUBLISHED = 3
"""Published weight versions on disk, including the one being written: one per step, or per checkpoint if weights are sent."""


def preflight(
    config: FlywheelConfig,
    home: Path | None = None,
    begun: bool = False,
    synthesis: Iterable[int] = (1,),
    stages: Sequence[str] | None = None,
) -> None:
    """Check a configuration.

    Args:
        home: Folder for policies and checkpoints.
        begun: Whether the home has its first policy; its source model is then not needed.
        synthesis: Iterations whose questions and examples are still to be made.
        stages: Stages that will write a policy, including `init`; None: all of an iteration.

    Raises:
        RequestError: The first problem, with its key, reason and remedy.
    """
    if home is not None:
        check_place(home)
    if config.corpus.wordings is not None:
        read_wordings(config.corpus.wordings)
    if not begun:
        _folder_of_policy(config)
    for check in (_files, _verifiers, _rewards, _trackers, _environments, check_placement, *(() if begun else (_policy,)), _judge):
        check(config)
    for turn in synthesis:
        check_teacher(config, turn)
    if not begun:
        _suites_of_pages(config)
    check_conditions(config)
    if home is not None:
        _room(config, home, stages)


def _suites_of_pages(config: FlywheelConfig) -> None:
    """Reject generated suites over pages, since suites are drawn from a graph."""
    wanted = [name for name, suite in config.evaluation.all_suites.items() if sum(suite.wanted().values())]
    if config.corpus.kind == "pages" and wanted:
        raise RequestError(
            f"corpus.kind = pages has no graph to draw {config.evaluation.setting_of(wanted[0])} from: set its counts to {{}} "
            "and import its tasks, extract a graph with `flywheel extract`, or make questions with `flywheel synth webshaper`."
        )


def _room(config: FlywheelConfig, home: Path, stages: Sequence[str] | None) -> None:
    parts = disk_needed(config, stages=stages)
    needed = sum(parts.values())
    there = next(folder for folder in (home, *home.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed:
        each = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size)
        raise RequestError(
            f"{home} is on a disk with {free / GIB:.1f} GiB free, and about {needed / GIB:.1f} GiB will be written ({each}): choose "
            "another --home, or free some space."
        )


def disk_needed(config: FlywheelConfig, parameters: int | None = None, stages: Sequence[str] | None = None) -> dict[str, int]:
    """Peak bytes on disk in the first iteration, by purpose: a policy per stage, and one stage's checkpoints and published weights.

    The first policy and checkpoints are float32; published weights have the engines' dtype.

    Args:
        parameters: Number of policy parameters; None: counted from its folder.
        stages: Stages that will run, including `init`; None: all of an iteration.
    """
    numbers = _parameters(config.policy) if parameters is None else parameters
    settings = config.for_turn(1)
    written = ("init", *config.wheel.stages) if stages is None else stages
    trained = [stage for stage in written if stage != "init"]
    return {
        "first policy": numbers * FLOAT32 * ("init" in written),
        "trained policies": numbers * sum(bytes_of(getattr(settings, stage).policy_dtype) for stage in trained),
        "checkpoints with optimizer": numbers * CHECKPOINTS * FLOAT32 * (1 + OPTIMISER_STATES) * bool(trained),
        "weights for engines": numbers * WEIGHTS_PUBLISHED * bytes_of(config.rollout.engine.own_dtype) * ("rl" in trained),
    }


def _parameters(policy: PolicyConfig) -> int:
    """Number of parameters of the first policy; approximate for one from scratch."""
    folder = policy.folder
    if folder is None:
        return Architecture.of_policy(policy).parameters
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    exact = sum(_numbers(file) for file in files if file.suffix == ".safetensors")
    return exact or sum(file.stat().st_size for file in files if file.suffix == ".bin") // 2  # at least two bytes each


def _numbers(file: Path) -> int:
    """Count the parameters in a safetensors file from its header. Raise RequestError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as weights:
            return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise RequestError(f"policy.path: {file} cannot be read ({error}); copy it again.") from error


def _files(config: FlywheelConfig) -> None:
    general = config.cpt.general
    wanted: list[tuple[str, Path | str | None, Callable[[Path], bool]]] = [
        ("corpus.path", None if config.corpus.kind == "generated" else config.corpus.folder, Path.is_dir),
        ("rollout.search.encoder", config.rollout.search.encoder, Path.is_dir),
        ("cpt.general.path", None if general is None else general.path, Path.exists),
        ("synth.teacher.path", None if config.synth.teacher is None else config.synth.teacher.path, Path.is_dir),
    ]
    for turn in (1, 2) if config.later else (1,):
        described = config.for_turn(turn).synth.tool_worlds
        wanted += [("synth.tool_worlds.descriptions", path, Path.is_file) for path in (described.descriptions if described else ())]
    for key, path, is_there in wanted:
        if path is not None and not is_there(Path(path)):
            raise RequestError(f"{key}: there is no {path}; create it or choose another path.")


def _folder_of_policy(config: FlywheelConfig) -> None:
    """Check the policy's folder without loading torch."""
    folder = config.policy.folder
    if folder is not None and not (folder / "config.json").is_file():
        raise RequestError(
            f"policy.path: {folder} is not a model: it has no config.json; choose the folder of a model, or write one there with "
            f"`flywheel model smollm2 --to {folder}`."
        )


def _rewards(config: FlywheelConfig) -> None:
    from rl.rewards.reward import find_functions

    for iteration in (1, 2) if config.later else (1,):
        find_functions(config.for_turn(iteration).rl.rewards)


def _verifiers(config: FlywheelConfig) -> None:
    for iteration in (1, 2) if config.later else (1,):
        config.evaluation.open_verifiers(config.for_turn(iteration).rl.rewards.verifier)


def _trackers(config: FlywheelConfig) -> None:
    from rl.learner.config import check_trackers

    for iteration in (1, 2) if config.later else (1,):
        settings = config.for_turn(iteration)
        for stage in (settings.cpt, settings.sft, settings.rl):
            check_trackers(stage.trackers)


def _environments(config: FlywheelConfig) -> None:
    """Check all environments and agent loops that the configuration names."""
    from rl.envs.base import check_environment
    from rl.rollouts.rollout import LOOPS

    for name in dict.fromkeys((*config.rollout.environments.kinds, config.synth.webshaper.environment)):
        check_environment(name, config.rollout.environments)
    for loop in (config.rollout.loops.get(config.rollout.loop, config.rollout.loop), *config.rollout.loops.values()):
        LOOPS.load(loop)


def _policy(config: FlywheelConfig) -> None:
    rollout, folder = config.rollout, config.policy.folder
    if folder is None:
        from rl.renderers.registry import DIALECTS, dialect_config
        from rl.rollouts.rollout import check_positions

        check_positions(rollout, config.policy.max_position_embeddings, "a policy from scratch (policy.max_position_embeddings)")
        own = dialect_config(rollout.dialect, rollout.dialects)
        if own.kind == "chat" and own.template in ("own", "training"):  # TRL's training template replaces a model's own
            raise RequestError(
                f"rollout.dialect = {rollout.dialect} needs a chat template, and a policy from scratch has none: set a model in "
                "policy.path, or a template in rollout.dialects, or use tags."
            )
        DIALECTS.load(own.kind)
        return
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    from rl.policies.tokenization import add_tags
    from rl.renderers.registry import open_dialect
    from rl.rollouts.rollout import check_context

    check_context(rollout, folder)
    try:
        tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    except (OSError, ValueError) as error:
        raise RequestError(f"policy.path: the tokenizer in {folder} cannot be read: {first_line(error)[:200]}") from error
    if not str(tokenizer.decode(tokenizer("A river of 1999.", add_special_tokens=False)["input_ids"])).strip():
        raise RequestError(f"policy.path: the tokenizer in {folder} cannot write a sentence: check that tokenizer.json is there.")
    if not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir()):
        raise RequestError(f"policy.path: {folder} has no weights: no file ends in .safetensors or .bin.")
    if rollout.speaks_tags:
        _check_new_tags(config, add_tags(tokenizer))
    open_dialect(rollout.dialect, rollout.dialects, tokenizer)


def _check_new_tags(config: FlywheelConfig, new: int) -> None:
    """Reject new tags with adapters, which do not train embeddings."""
    first = config.wheel.stages[0]
    if new and getattr(config.for_turn(1), first).lora is not None:
        raise RequestError(
            f"{first}.lora does not train embeddings, and the dialect tags adds {new} tokens that are new to the model in "
            f"policy.path: use rollout.dialect = chat, or train all weights in {first}."
        )


def check_teacher(config: FlywheelConfig, turn: int, kind: str = "all") -> None:
    """Raise RequestError if the server of the teacher or judge of an iteration's synthesis does not answer."""
    teacher = config.for_turn(turn).synth.teacher_of(kind)
    _reach("synth.teacher" if teacher == config.synth.teacher else "later.synth.teacher", teacher)
    _reach("synth.judge", config.for_turn(turn).synth.judge if teacher is not None else None)


def _judge(config: FlywheelConfig) -> None:
    _reach("evaluation.judge", config.evaluation.judge if config.asks_judge else None)


def _reach(setting: str, teacher: TeacherConfig | None) -> None:
    """Check that the model's server answers, with any status."""
    if teacher is None or teacher.kind != "openai" or teacher.base_url is None:
        return
    import httpx

    url = teacher.base_url
    try:
        httpx.get(f"{url.rstrip('/')}/models", timeout=REACH_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RequestError(
            f"{setting}.base_url: nothing answers at {url} ({type(error).__name__}); start the server, or choose another."
        ) from error
