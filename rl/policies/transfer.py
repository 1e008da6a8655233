"""Transfer of policies and adapters: adapter folders in peft's format, and policy folders sent in pieces to machines that do not have them.

Adapters are about a thousandth of a policy, so with `rollout.engine.adapter_rank` a step writes and sends only these. Whether a machine has
a folder is decided by names, sizes and modification times of its files, so that another policy at the same path is not mistaken for it.
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
"""Files of an adapter folder, by peft's names."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Contents of adapter files by name, and the folder of the base policy."""

    base: str
    files: Mapping[str, bytes]


def is_adapters(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's adapter weights, by peft's file names."""
    return {name.replace(".default.", "."): weight.detach() for name, weight in model.named_parameters() if ".lora_" in name}


def save_adapters(config: Any, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write adapters to a new folder; `config` is peft's. Modules trained in full (the value head) are left out."""
    said = {**config.to_dict(), "modules_to_save": None, "exclude_modules": None, "target_modules": sorted(config.target_modules)}
    said["base_model_name_or_path"] = str(Path(config.base_model_name_or_path).resolve())
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps({**said, "inference_mode": True}, indent=2, sort_keys=True, default=str) + "\n")
    save_file({name: weight.detach().cpu().contiguous() for name, weight in weights.items()}, folder / WEIGHTS)


def read_adapters(folder: Path) -> Adapters:
    """Read the adapters in a folder. Raises RequestError if a file is incomplete or the base policy is missing."""
    return Adapters(base_of(folder), {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)})


def base_of(folder: Path) -> str:
    """Folder of the base policy. Raises RequestError as `read_adapters` does."""
    try:
        with safe_open(folder / WEIGHTS, framework="numpy"):
            pass
        base = str(json.loads((folder / CONFIG).read_text())["base_model_name_or_path"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise RequestError(f"{folder} does not contain complete adapters: {type(error).__name__}: {error}.") from error
    if not (Path(base) / "config.json").is_file():
        raise RequestError(f"{folder} contains adapters for {base}, which does not contain a policy.")
    return base


def no_adapters(base: str) -> Adapters:
    """Adapters without effect, for an adapter-serving engine to serve a full policy. vLLM (0.32) requires one known layer."""
    said = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["o_proj"], "bias": "none", "inference_mode": True}
    zeros = {f"base_model.model.none.o_proj.lora_{part}.weight": torch.zeros(1, 1) for part in "AB"}
    return Adapters(base, {CONFIG: json.dumps(said).encode(), WEIGHTS: save(zeros)})


PIECE_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A file's name, size in bytes, and modification time in nanoseconds."""

    name: str
    size: int
    written: int


def files_in(folder: Path) -> tuple[PolicyFile, ...]:
    """Files of a folder, sorted by name; empty if it does not exist."""
    found = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return tuple(PolicyFile(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in found)


def pieces(folder: Path, files: Sequence[PolicyFile]) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of the files in order, in pieces with the file's name."""
    for each in files:
        with (folder / each.name).open("rb") as file:
            yield each.name, file.read(PIECE_BYTES)
            while piece := file.read(PIECE_BYTES):
                yield each.name, piece


@dataclass(slots=True)
class ReceivedPolicy:
    """Received files of the policy at `path` on another machine."""

    path: str
    files: tuple[PolicyFile, ...]
    _folder: tempfile.TemporaryDirectory[str] = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="policy-"))

    def take(self, name: str, piece: bytes) -> None:
        """Append a piece. Raises ValueError for a file that was not announced."""
        if name not in {each.name for each in self.files} or Path(name).name != name:
            raise ValueError(f"the file {name!r} of {self.path} was not announced")
        with (Path(self._folder.name) / name).open("ab") as file:
            file.write(piece)

    @property
    def folder(self) -> Path:
        """Folder of the received files. Raises ValueError if one is incomplete."""
        came = {each.name: each.size for each in files_in(Path(self._folder.name))}
        for each in self.files:
            if came.get(each.name, 0) != each.size:
                raise ValueError(f"received {came.get(each.name, 0)} of {each.size} bytes of {each.name} of {self.path}")
        return Path(self._folder.name)

    def drop(self) -> None:
        self._folder.cleanup()
