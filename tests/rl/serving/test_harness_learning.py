"""RL on a harness: a tiny real policy samples for a command, and the learner scores the recorded tokens as the sampler did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from eval.graders.choice import SHORT_ANSWERS
from rl.advantages import grpo
from rl.engines.base import Generation, GenerationStop, Sampling
from rl.hardware import torch_threads
from rl.learner.batches import Row, parts_of_means, rows_of
from rl.learner.config import ReinforceConfig
from rl.learner.metrics import describe
from rl.rewards.reward import reward_trajectories
from tests.rl.renderers.templates_of_trl import tokenizer_for
from tests.rl.serving.test_harness_loop import TASK, run
from warehouse.records import Outcome, Trajectory

SCRIPT = """
m = user(question)
first = ask(m)
m += [first.to_dict(), {"role": "user", "content": "Once more."}]
left, right = ask(m), ask(m)
helped = ask(user("Say anything: " + (right.content or "nothing")))
print(42 if len((left.content or "") + (helped.content or "")) % 2 else 41)
"""


class TinyPolicy:
    """A random model of 2 layers as an engine: at most 12 tokens a reply. It notes the contexts and replies."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        vocabulary = len(tokenizer_for("qwen3_training"))
        self.model: PreTrainedModel = Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, max_position_embeddings=4096, **sizes)).eval()
        self.seen: list[tuple[int, ...]] = []

    @torch.no_grad()
    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Any = ()) -> Generation:
        generator = torch.Generator().manual_seed((sampling.seed or 0) % 2**63)
        ids, logprobs = list(prompt_ids), list[float]()
        while len(logprobs) < min(12, sampling.max_tokens) and ids[-1] not in sampling.stop_token_ids:
            scores = self.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(scores.exp(), 1, generator=generator)))
            logprobs.append(scores[ids[-1]].item())
        self.seen.append(tuple(ids))
        stop = GenerationStop.STOP if ids[-1] in sampling.stop_token_ids else GenerationStop.LENGTH
        return Generation(tuple(ids[len(prompt_ids) :]), tuple(logprobs), stop, (0,) * len(logprobs))


@pytest.fixture(scope="module")
def policy() -> TinyPolicy:
    return TinyPolicy()


@pytest.fixture(scope="module")
def attempts(policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """Four attempts of one task, graded by their answers, right and wrong ones among them."""
    with torch_threads(1):
        folder = tmp_path_factory.mktemp("harness")
        made = [run(folder, policy, SCRIPT, name=f"t{seed}", seed=seed) for seed in range(4)]
    graded = reward_trajectories([TASK] * 4, made, SHORT_ANSWERS).trajectories
    assert [each.error for each in graded] == [None] * 4
    assert {each.outcome for each in graded} == {Outcome.SUCCESS, Outcome.FAILURE}
    return graded


@pytest.mark.slow
def test_no_token_of_any_context_differs_and_there_is_a_gradient(policy: TinyPolicy, attempts: list[Trajectory]) -> None:
    for attempt in attempts:
        assert attempt.provenance["contexts"] == ["first", "branch", "does_not_extend"]
        assert [len(turns) for _, turns in attempt.segments] == [2, 1, 1], "the branch does not repeat what it continues"
        sampled = [(*attempt.context_of(turn.index), *turn.action_ids) for turn in attempt.turns]
        assert all(ids in policy.seen for ids in sampled)
    rows = rows_of(attempts, grpo)
    assert len(rows) == 12 and sum(row.action_tokens for row in rows) == sum(len(t.action_ids) for each in attempts for t in each.turns)
    scored = [_logprobs(policy.model, row) for row in rows]
    acted = [torch.tensor(row.action_mask).bool() for row in rows]
    pairs = [(ours[mask], torch.tensor(row.logprobs)[mask]) for row, ours, mask in zip(rows, scored, acted, strict=True)]
    assert sum(int(((ours - theirs).abs() > 1e-3).sum()) for ours, theirs in pairs) == 0
    loss = -sum((torch.tensor(row.advantages) * ours).sum() for row, ours in zip(rows, scored, strict=True))
    loss.backward()  # type: ignore[union-attr]
    assert sum(weight.grad.norm() for weight in policy.model.parameters() if weight.grad is not None) > 0
    assert describe(attempts)["contexts"] == 3


@pytest.mark.slow
def test_an_attempt_of_several_contexts_counts_once_in_a_mean_over_trajectories(attempts: list[Trajectory]) -> None:
    rows = rows_of(attempts, grpo)
    means = {attempt.id: 0.0 for attempt in attempts}
    for row in parts_of_means(rows):
        means[row.trajectory_id] += sum(row.advantages) / row.action_tokens
    assert means == pytest.approx({row.trajectory_id: max(row.advantages, key=abs) for row in rows})


def _logprobs(model: PreTrainedModel, row: Row) -> torch.Tensor:
    ids = torch.tensor([(*row.prompt_ids, *row.completion_ids)])
    scores = model(ids).logits[0, len(row.prompt_ids) - 1 : -1].log_softmax(-1)
    return scores.gather(1, torch.tensor(row.completion_ids).unsqueeze(1)).squeeze(1)


@pytest.mark.engine
def test_a_step_of_the_learner_is_on_policy_and_moves_weights(policy: TinyPolicy, attempts: list[Trajectory], tmp_path: Path) -> None:
    from rl.learner.local import LocalLearner

    config = ReinforceConfig(steps=1, tasks_per_step=1, samples_per_task=4, trajectories_per_pass=4)
    with torch_threads(1):
        learner = LocalLearner(policy.model, tokenizer_for("qwen3_training"), config, tmp_path, 1)
        update = learner.update(rows_of(attempts, grpo), 1)
    assert update.differences.abs().max() < 1e-3
    assert update.metrics["grad_norm"] > 0
