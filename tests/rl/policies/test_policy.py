"""The first policy: reproducible, stored and loaded as it was made, sent in pieces, and the packaged reader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Tokenizer

from benchmarks.reader import DIGEST, read_share
from rl.policies import transfer as sending
from rl.policies.config import PACKAGED, PolicyConfig
from rl.policies.policy import create_policy, load_policy, save_policy
from rl.policies.tokenization import END_TOKEN, PAD_TOKEN, SPECIAL_TOKENS, TAG_TOKENS, build_tokenizer, multi_token_words
from rl.policies.transfer import ReceivedPolicy, files_in, pieces
from warehouse.digests import digest_files

WORDS = ["Amber", "Stone", "Blue", "River", "Green", "Lake", "employer", "seat"]
TEXTS = ["<question> Who is the employer of Amber Stone?</question>", "<information> Blue River, seat Green Lake, 1987.</information>"] * 5
SMALL = PolicyConfig(layers=1, width=32, heads=2, key_value_heads=2, intermediate_size=48, vocabulary_size=320)


@pytest.mark.slow
def test_equal_seeds_give_equal_policies_and_others_do_not(tmp_path: Path) -> None:
    first, again, other = (create_policy(SMALL, TEXTS, WORDS, tmp_path / str(index), seed) for index, seed in enumerate((1, 1, 2)))
    assert digest_files(first) == digest_files(again) != digest_files(other)
    assert digest_files(first, "tokenizer*.json") == digest_files(again, "tokenizer*.json")


def test_words_and_tags_are_single_tokens_any_text_comes_back_and_a_saved_tokenizer_encodes_the_same(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(TEXTS, 320, WORDS)
    assert multi_token_words(tokenizer, WORDS) == []
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert [len(tokenizer.encode(tag)) for tag in TAG_TOKENS] == [1] * len(TAG_TOKENS)
    assert (tokenizer.pad_token, tokenizer.eos_token) == (PAD_TOKEN, END_TOKEN)
    text = "<search> Amber (naïve) 東京 1987\n\tStone's</search>"
    save_policy(load_policy(create_policy(SMALL, TEXTS, WORDS, tmp_path, 1))[0], tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.encode(text) == tokenizer.encode(text)
    assert len(loaded) == len(tokenizer)


def test_a_policy_from_elsewhere_keeps_its_weights_and_gains_the_tags(tmp_path: Path) -> None:
    model, ours = load_policy(create_policy(SMALL, TEXTS, WORDS, tmp_path / "ours", 1))
    vocabulary = {token: index for token, index in ours.get_vocab().items() if token not in SPECIAL_TOKENS}
    renumbered = {token: number for number, token in enumerate(sorted(vocabulary, key=vocabulary.__getitem__))}
    foreign = Qwen2Tokenizer(vocab=renumbered, merges=[])
    model.resize_token_embeddings(len(foreign))
    save_policy(model, foreign, tmp_path / "foreign")
    adopted, tokenizer = load_policy(create_policy(PolicyConfig(path=str(tmp_path / "foreign")), [], [], tmp_path / "adopted", 1))
    assert [len(tokenizer.encode(tag)) for tag in TAG_TOKENS] == [1] * len(TAG_TOKENS)
    assert adopted.get_input_embeddings().num_embeddings == len(tokenizer) == len(foreign) + len(TAG_TOKENS)
    kept = adopted.get_input_embeddings().weight[: len(foreign)]
    assert torch.equal(kept, model.get_input_embeddings().weight)


READER = PACKAGED / "reader"


def test_the_packaged_reader_has_the_expected_digest() -> None:
    assert digest_files(READER) == DIGEST
    assert sum(file.stat().st_size for file in READER.iterdir()) < 3e6


@pytest.mark.slow
def test_the_reader_answers_questions_about_texts_that_it_has_not_read() -> None:
    assert read_share(READER, 60) >= 0.6


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    (folder / "more").mkdir(parents=True)
    for name, content in {"config.json": b"{}", "model.safetensors": bytes(range(100)), "empty": b""}.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_policy_sent_in_pieces_is_complete(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PIECE_BYTES", 33)
    received = ReceivedPolicy(str(policy), files_in(policy))
    sent = list(pieces(policy, received.files))
    assert [name for name, _ in sent] == ["config.json", "empty", *["model.safetensors"] * 4], "no piece is larger than it may be"
    for name, piece in sent:
        received.take(name, piece)
    came = {path.name: path.read_bytes() for path in received.folder.iterdir()}
    assert came == {path.name: path.read_bytes() for path in policy.iterdir() if path.is_file()}
    folder = received.folder
    received.drop()
    assert not folder.exists()


def test_incomplete_and_unannounced_files_are_refused(policy: Path) -> None:
    received = ReceivedPolicy(str(policy), files_in(policy))
    received.take("config.json", b"{}")
    received.take("model.safetensors", bytes(99))
    with pytest.raises(ValueError, match=r"99 of 100 .*model\.safetensors"):
        _ = received.folder
    for name in ("other.json", "../config.json"):
        with pytest.raises(ValueError, match="was not announced"):
            received.take(name, b"")
    received.drop()
