"""A version of a policy as its adapters alone: a folder in peft's form, which names the policy beneath, and what engines are sent of it.

What is trained by `lora` is a thousandth of a policy. Engines that serve adapters (`rollout.engine.adapter_rank`) have the policy beneath
already, so a step writes and sends no more than that; a policy that is left to others has its adapters merged (`rl/training/base.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor, nn

from warehouse.errors import RequestError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of such a folder, by peft's names."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """A folder of adapters as it is sent: the folder of the policy beneath, and the bytes of its files by their names."""

    base: str
    files: Mapping[str, bytes]


def is_adapters(folder: Path) -> bool:
    """Whether a folder holds adapters alone, and not a whole policy."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """The adapters of a model that peft has put them into, by the names of its files."""
    return {name.replace(".default.", "."): weight.detach() for name, weight in model.named_parameters() if ".lora_" in name}


def save_adapters(config: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write adapters into a new folder.

    Args:
        config: peft's, which names the policy beneath. What tells other modules to be trained whole is left out: they are no part of the
            policy.
        weights: by the names of peft's files, in the dtype that they are to be stored in.
    """
    said = {**config.to_dict(), "modules_to_save": None, "exclude_modules": None, "target_modules": sorted(config.target_modules)}
    said["base_model_name_or_path"] = str(Path(config.base_model_name_or_path).resolve())
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps({**said, "inference_mode": True}, indent=2, sort_keys=True, default=str) + "\n")
    save_file({name: weight.detach().cpu().contiguous() for name, weight in weights.items()}, folder / WEIGHTS)


def read_adapters(folder: Path) -> Adapters:
    """The adapters in a folder, whole.

    Raises:
        RequestError: a file is missing or not whole, or the policy beneath is not there.
    """
    return Adapters(base_of(folder), {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)})


def base_of(folder: Path) -> str:
    """The folder of the policy beneath the adapters in a folder, which are whole. Raises RequestError as `read_adapters` does."""
    try:
        with safe_open(folder / WEIGHTS, framework="numpy"):
            pass
        base = str(json.loads((folder / CONFIG).read_text())["base_model_name_or_path"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise RequestError(f"{folder} holds no whole adapters: {type(error).__name__}: {error}.") from error
    if not (Path(base) / "config.json").is_file():
        raise RequestError(f"{folder} holds adapters over {base}, and there is no policy in it.")
    return base


def no_adapters(base: str) -> Adapters:
    """Adapters that change nothing: what a whole policy is served with, where adapters are served.

    vLLM (0.32) wants one layer at the least, of a kind that it knows; where the policy has none of that name, nobody looks for it.
    """
    said = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["o_proj"], "bias": "none", "inference_mode": True}
    zeros = {f"base_model.model.none.o_proj.lora_{part}.weight": torch.zeros(1, 1) for part in "AB"}
    return Adapters(base, {CONFIG: json.dumps(said).encode(), WEIGHTS: save(zeros)})
