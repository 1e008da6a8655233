"""Create, load and save policies: folders with weights (safetensors), configuration and tokenizer.

The default is a Qwen3 with about a million parameters, from scratch. Any causal or image-text language model that transformers loads may
replace it; it keeps its tokenizer, extended by the tags if the dialect `tags` is used.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils.logging import disable_progress_bar

from rl.policies.config import PolicyConfig
from rl.policies.tokenization import add_tags, build_tokenizer, set_padding
from rl.policies.vision import has_vision
from warehouse.errors import RequestError

INITIALIZER_RANGE = 0.06
"""Standard deviation of initial weights; with the usual 0.02 a model of a million parameters does not learn to copy in time."""
ROPE_THETA = 1000.0
"""Base of the rotary positions; 10,000 wastes half of a small head on distances beyond short contexts."""
PROCESSOR = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Files that may configure the image processor of a policy."""

disable_progress_bar()  # type: ignore[no-untyped-call]


def create_policy(config: PolicyConfig, texts: Iterable[str], words: Sequence[str], folder: Path, seed: int, tags: bool = True) -> Path:
    """Create the initial policy in `folder`: from scratch (seeded), or a copy of `config.path`.

    Args:
        texts: training data of the tokenizer, for a policy from scratch.
        words: words that must be single tokens after a space, for a policy from scratch.
        tags: whether a copy gets the tokens of the dialect `tags`.

    Raises:
        RequestError: the path holds no model, or the vocabulary is too small for the words.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, tokenizer = _from_pretrained(config.folder, tags) if config.folder else _from_scratch(config, texts, words)
    save_policy(model, tokenizer, folder)
    return folder


def load_policy(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model (on the CPU, in evaluation mode) and tokenizer. Trainers need the default float32 weights, also to compute in bfloat16."""
    if not (folder / "config.json").is_file():
        raise RequestError(f"{folder} does not contain a policy: there is no config.json in it.")
    kind = AutoModelForImageTextToText if has_vision(folder) else AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=dtype, local_files_only=True, trust_remote_code=False)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def parameters_of(folder: Path) -> int:
    """Number of parameters in `folder`, read from file headers."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return total


def save_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Mapping[str, torch.Tensor] | None = None,
    dtype: str | None = None,
) -> None:
    """Write weights, configuration, tokenizer and image processor to `folder`.

    Args:
        weights: weights by name, instead of the model's own.
        dtype: dtype of stored floating-point weights; None: unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = dict(model.state_dict() if weights is None else weights)
    model.save_pretrained(folder, state_dict=written if dtype is None else in_dtype(written, dtype))
    if dtype is not None:
        _say_dtype(folder / "config.json", dtype)
    tokenizer.save_pretrained(folder)
    if has_vision(folder):
        source = Path(str(model.name_or_path))
        for name in PROCESSOR:
            if (source / name).is_file() and source.resolve() != folder.resolve():
                shutil.copy(source / name, folder)


def in_dtype(weights: Mapping[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    """Convert floating-point weights to `dtype`; tied weights stay tied."""
    wanted: torch.dtype = getattr(torch, dtype)
    return _changed(weights, lambda weight: weight.to(wanted) if weight.is_floating_point() else weight)


def copied(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy the weights to host memory; tied weights stay tied."""
    return _changed(weights, lambda weight: weight.detach().to("cpu", copy=True))


def _changed(weights: Mapping[str, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    found: dict[tuple[int, torch.Size], torch.Tensor] = {}
    for weight in weights.values():
        place = weight.data_ptr(), weight.shape
        if place not in found:
            found[place] = change(weight)
    return {name: found[weight.data_ptr(), weight.shape] for name, weight in weights.items()}


def _say_dtype(file: Path, dtype: str) -> None:
    """Record the dtype of the stored weights, since transformers records the compute dtype."""
    config = json.loads(file.read_text())
    if config.get("dtype") != dtype:
        file.write_text(json.dumps({**config, "dtype": dtype}, indent=2, sort_keys=True) + "\n")


def as_saved(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by the names and shapes that `save_policy` writes: tied weights once, without transformers' load-time fusions."""
    own = {name: weight for name, weight in weights.items() if name not in model.all_tied_weights_keys}
    return dict(revert_weight_conversion(model, own))


def _from_scratch(config: PolicyConfig, texts: Iterable[str], words: Sequence[str]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    tokenizer = build_tokenizer(texts, config.vocabulary_size, words)
    architecture = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.width,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.head_size,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        max_position_embeddings=config.max_position_embeddings,
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(architecture), tokenizer  # type: ignore[no-untyped-call]


def _from_pretrained(path: Path, tags: bool) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model, tokenizer = load_policy(path)
    if tags:
        add_tags(tokenizer)
    set_padding(tokenizer)
    if len(tokenizer) > model.config.get_text_config().vocab_size:
        model.resize_token_embeddings(len(tokenizer))
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer
