"""A version of a policy as its adapters alone: a folder in peft's form, which names the policy beneath, and what engines are sent of it.

What is trained by `lora` is a thousandth of a policy. Engines that serve adapters (`rollout.engine.adapter_rank`) have the policy beneath
already, so a step writes and sends no more than that; a policy that is left to others has its adapters merged (`rl/learner/trainers.py`).

A policy's folder for a machine that does not see it: what lies in it, and the pieces that it is sent in.

Whether a machine sees a folder is told by the names, sizes and times of its files: another policy that lies at the same place there, as a
home's copy of last week does, is not taken for this one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


PIECE_BYTES = 2**26
"""What is sent at once."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A file of a policy: its name, its size in bytes, and when it was written, in nanoseconds."""

    name: str
    size: int
    written: int


def files_in(folder: Path) -> tuple[PolicyFile, ...]:
    """The files of a policy, by name; nothing where there is no such folder."""
    found = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return tuple(PolicyFile(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in found)


def pieces(folder: Path, files: Sequence[PolicyFile]) -> Iterator[tuple[str, bytes]]:
    """What lies in the files, in their order and from front to back, each piece with the name of its file."""
    for each in files:
        with (folder / each.name).open("rb") as file:
            yield each.name, file.read(PIECE_BYTES)
            while piece := file.read(PIECE_BYTES):
                yield each.name, piece


@dataclass(slots=True)
class ReceivedPolicy:
    """The files of the policy in folder `path` of another machine, as far as they have come."""

    path: str
    files: tuple[PolicyFile, ...]
    _folder: tempfile.TemporaryDirectory[str] = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="policy-"))

    def take(self, name: str, piece: bytes) -> None:
        """Append a piece to its file. Raises ValueError where no such file was announced."""
        if name not in {each.name for each in self.files} or Path(name).name != name:
            raise ValueError(f"no file {name!r} of {self.path} was announced")
        with (Path(self._folder.name) / name).open("ab") as file:
            file.write(piece)

    @property
    def folder(self) -> Path:
        """Where they lie. Raises ValueError where one of them has not come whole."""
        came = {each.name: each.size for each in files_in(Path(self._folder.name))}
        for each in self.files:
            if came.get(each.name, 0) != each.size:
                raise ValueError(f"of {each.name} of {self.path} {came.get(each.name, 0)} of {each.size} bytes have come")
        return Path(self._folder.name)

    def drop(self) -> None:
        """Delete them."""
        self._folder.cleanup()
