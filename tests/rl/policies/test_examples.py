"""Examples become the ids of their text, or the ids that were sampled, with a mask."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerBase

from rl.policies.tokenization import IGNORED_LABEL, build_tokenizer, encode_examples
from warehouse.records import Example

SEGMENTS = (
    ("<question> Who is it?</question>", False),
    ("<search> Amber Stone</search>", True),
    ("<information> Amber Stone: x.</information>", False),
    ("<answer> Blue</answer>", True),
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer([text for text, _ in SEGMENTS], 300, ["Amber"])


def test_segments_give_the_ids_of_the_whole_text(tokenizer: PreTrainedTokenizerBase) -> None:
    example = Example("a", "trajectory", SEGMENTS, ())
    (encoded,) = encode_examples([example], tokenizer)
    assert list(encoded.token_ids) == tokenizer.encode(example.text)


def test_mask_follows_the_segments(tokenizer: PreTrainedTokenizerBase) -> None:
    (encoded,) = encode_examples([Example("a", "trajectory", SEGMENTS, ())], tokenizer)
    trained = tokenizer.decode([token for token, flag in zip(encoded.token_ids, encoded.trained, strict=True) if flag])
    assert trained == SEGMENTS[1][0] + SEGMENTS[3][0]
    assert [label for label in encoded.labels() if label != IGNORED_LABEL] == tokenizer.encode(trained)


def test_sampled_ids_win_over_text_and_order_is_kept(tokenizer: PreTrainedTokenizerBase) -> None:
    text = Example("a", "document", SEGMENTS[:1], ())
    sampled = Example("b", "trajectory", SEGMENTS, (), token_ids=(7, 8, 9), loss_mask=(0, 1, 1))
    first, second, third = encode_examples([text, sampled, text], tokenizer)
    assert second.token_ids == (7, 8, 9)
    assert second.labels() == [IGNORED_LABEL, 8, 9]
    assert first == third


def test_sampled_ids_without_a_mask_are_all_trained_on(tokenizer: PreTrainedTokenizerBase) -> None:
    (encoded,) = encode_examples([Example("a", "trajectory", (), (), token_ids=(7, 8))], tokenizer)
    assert encoded.trained == (True, True)


def test_a_mask_of_another_length_is_an_error(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="example a"):
        encode_examples([Example("a", "trajectory", (), (), token_ids=(7, 8), loss_mask=(1,))], tokenizer)
