"""Fine-tuning learns the decisions and not the observations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.policies.policy import load_policy
from rl.renderers.examples import IGNORED_LABEL, EncodedExample, encode_examples
from rl.renderers.tags import TagDialect
from rl.supervised.config import SftConfig
from rl.supervised.training import PackingCollator, pack_examples, train_sft
from warehouse.records import Example, Part, PartKind

pytestmark = pytest.mark.engine

QUESTION, SEARCH, INFORMATION = "<question> Who?</question>", "<search> Amber</search>", "<information> Blue River.</information>"
PARTS = (Part(PartKind.QUESTION, "Who?"), Part(PartKind.CALL, "Amber", True, "search"), Part(PartKind.RESULT, "Blue River."))


@pytest.fixture(scope="module")
def examples(policy: Path) -> list[EncodedExample]:
    return encode_examples([Example(str(number), "trajectory", PARTS, ()) for number in range(24)], TagDialect(load_policy(policy)[1]))[0]


def mean_logprob(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, before: str, after: str) -> float:
    """Mean log-probability of the tokens of `after`, given `before`."""
    prompt, completion = tokenizer.encode(before), tokenizer.encode(after)
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion)[:, None]).mean().item()


def test_only_tokens_that_are_trained_on_have_labels(policy: Path, examples: list[EncodedExample]) -> None:
    _, tokenizer = load_policy(policy)
    rows = pack_examples(examples[:3], 200, masked=True)
    labels = PackingCollator(0)(list(rows))["labels"]
    assert labels[labels != IGNORED_LABEL].tolist() == tokenizer.encode(SEARCH) * 3


def test_decisions_are_learnt_and_observations_are_not(policy: Path, examples: list[EncodedExample], tmp_path: Path) -> None:
    config = SftConfig(learning_rate=3e-3, row_tokens=64, rows_per_step=4, rows_per_pass=4, epochs=15, warmup_steps=1)
    result = train_sft(policy, examples, tmp_path, config, 1, lambda step, figures: None)
    (model, tokenizer), (trained, _) = load_policy(policy), load_policy(result.path)
    searches = [mean_logprob(each, tokenizer, QUESTION, SEARCH) for each in (model, trained)]
    observations = [mean_logprob(each, tokenizer, QUESTION + SEARCH, INFORMATION) for each in (model, trained)]
    assert searches[1] > searches[0] + 3
    assert observations[1] < observations[0] + 1
    assert result.metrics["trained_tokens"] == len(examples) * len(tokenizer.encode(SEARCH))
