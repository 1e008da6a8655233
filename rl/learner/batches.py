"""Convert trajectories to training rows (token ids, masks, log-probabilities, advantages), correct them for off-policy sampling, and
collate tensors for TRL's loss.

Rows contain the sampled token ids; observations stay in place and are masked. A trajectory has a row for each of its contexts. All share
its reward and its advantage, which is computed once: an attempt that rewrites its history counts once in its group. Invalid trajectories
are excluded. All functions are pure and carry no gradient.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import accumulate, pairwise
from typing import Literal, TypeVar

import torch
from torch import Tensor

from rl.advantages import Estimator, Groups, bilevel_gae, gae, vtrace, whiten
from rl.engines.base import WeightProbe
from rl.learner.config import CorrectionConfig, CriticConfig
from warehouse.errors import RequestError
from warehouse.records import Image, Outcome, Trajectory, Turn

Number = TypeVar("Number", int, float)

GroupKey = tuple[str, int | None]
"""Task and step it was sampled for; other steps sample with other weights."""
UNKNOWN = -1
"""Weight version of observations and padding."""


@dataclass(frozen=True, slots=True)
class Row:
    """A context of a trajectory to train on. All tuples but `prompt_ids`, `turn_rewards` and `images` have a value per completion token.

    Attributes:
        action_mask: 1 on sampled tokens; 0 on observations, where `logprobs` and `advantages` are 0.
        logprobs: under the policy in the denominator of the loss's ratio: the sampler, or the learner after a correction.
        turn_ends: 1 on the last token of each turn's action.
        turn_rewards: one per turn with an action, summing to the trajectory's reward in each of its rows.
        returns, values: targets of the critic, and its predictions at collection; empty without a critic.
        versions: weight version that sampled each token, else `UNKNOWN`.
        sampled_logprobs: under the sampler, if a correction replaced `logprobs`.
        images: in the order of their placeholders.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    action_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    turn_ends: tuple[int, ...]
    turn_rewards: tuple[float, ...]
    returns: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    sampled_logprobs: tuple[float, ...] = ()
    trajectory_id: str = ""
    task_key: str = ""
    images: tuple[Image, ...] = ()

    @property
    def action_tokens(self) -> int:
        return sum(self.action_mask)

    @property
    def tokens(self) -> int:
        """Number of tokens that pass through the model."""
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def teaches(self) -> bool:
        """Whether any token has a nonzero advantage."""
        return any(self.advantages)


def is_valid(trajectory: Trajectory) -> bool:
    """Whether a trajectory counts in rewards, means and losses: it has a reward, no fault, and an action token."""
    has_actions = any(turn.action_ids for turn in trajectory.turns)
    return trajectory.outcome is not Outcome.INVALID and trajectory.reward is not None and has_actions


def group_key(trajectory: Trajectory) -> GroupKey:
    """Group within which the trajectory's advantage is computed."""
    return trajectory.task_key, trajectory.step


def token_versions(turn: Turn) -> tuple[int, ...]:
    """Weight version that sampled each token of an action."""
    return turn.policy_versions or (turn.policy_version,) * len(turn.action_ids)


def rows_of(trajectories: Sequence[Trajectory], estimator: Estimator | None, environments: Mapping[str, str] | None = None) -> list[Row]:
    """Rows of the valid trajectories, with advantages within each group.

    Args:
        estimator: None leaves all advantages 0, for a critic to set.
        environments: environment by task, for estimators that distinguish environments.
    """
    kept = [trajectory for trajectory in trajectories if is_valid(trajectory)]
    if estimator is None:
        return [row for trajectory in kept for row in _rows(trajectory, [0.0] * len(_acting(trajectory)))]
    places, groups = group(kept, environments or {})
    advantages = estimator(groups)
    by_turn = advantages if advantages.dim() == 3 else advantages.unsqueeze(2).expand_as(groups.turn_rewards)
    return [row for trajectory, place in zip(kept, places, strict=True) for row in _rows(trajectory, by_turn[place].tolist())]


def row_of(probe: WeightProbe) -> Row:
    count, logprobs = len(probe.token_ids), probe.logprobs
    ones, zeros, unknown = (1,) * count, (0.0,) * count, (UNKNOWN,) * count
    return Row(probe.prompt_ids, probe.token_ids, ones, logprobs, zeros, ones, zeros, versions=unknown, sampled_logprobs=logprobs)


def mean_difference(probe: WeightProbe, logprobs: Sequence[float]) -> float:
    """Mean absolute difference between the engine's and the learner's log-probabilities, in nats."""
    differences = [abs(theirs - ours) for theirs, ours in zip(probe.logprobs, logprobs, strict=True)]
    return sum(differences) / len(differences)


def with_observations(row: Row, logprobs: Sequence[float]) -> Row:
    """Unmask the observations of `row`; they get the advantage of the preceding action.

    Args:
        logprobs: the learner's, used for tokens that no engine sampled.
    """
    advantages = list(accumulate(zip(row.action_mask, row.advantages, strict=True), lambda before, now: now if now[0] else (0, before[1])))
    return replace(
        row,
        action_mask=(1,) * len(row.action_mask),
        logprobs=tuple(own if acted else logprob for acted, own, logprob in zip(row.action_mask, row.logprobs, logprobs, strict=True)),
        advantages=tuple(advantage for _, advantage in advantages),
    )


def check_images(rows: Sequence[Row], sees: bool, mask_observations: bool) -> None:
    """Check that the policy can train on `rows`; `sees` says whether it takes images.

    Raises:
        RequestError: rows contain images, and the policy takes none or would train on their placeholders.
    """
    pictured = next((row for row in rows if row.images), None)
    if pictured is None or (sees and mask_observations):
        return
    why = "rl.mask_observations = false would train on their placeholders" if sees else "the policy does not support images"
    raise RequestError(f"trajectory {pictured.trajectory_id} contains images, but {why}; exclude trajectories with images.")


def without_placeholders(row: Row, placeholder_id: int, stand_in: int) -> Row:
    """Remove image placeholders that the policy itself wrote, which the model would read as images without pixels.

    These tokens become `stand_in`, everything from the first on is masked, and later rewards go to the last action token before it.
    """
    written = [acted and token == placeholder_id for token, acted in zip(row.completion_ids, row.action_mask, strict=True)]
    if not any(written):
        return row
    first = written.index(True)
    ends, earned = _ended_before(row, first)
    return replace(
        row,
        completion_ids=tuple(stand_in if found else token for token, found in zip(row.completion_ids, written, strict=True)),
        action_mask=row.action_mask[:first] + (0,) * (len(written) - first),
        advantages=row.advantages[:first] + (0.0,) * (len(written) - first),
        turn_ends=ends,
        turn_rewards=earned,
    )


def _ended_before(row: Row, first: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Turn ends and rewards if the last action token before `first` ends the trajectory."""
    last = max((place for place in range(first) if row.action_mask[place]), default=None)
    if last is None:
        return row.turn_ends, row.turn_rewards
    before = sum(row.turn_ends[:last])
    ends = row.turn_ends[:last] + (1,) + (0,) * (len(row.turn_ends) - last - 1)
    return ends, (*row.turn_rewards[:before], sum(row.turn_rewards[before:]))


def parts_of_means(rows: Sequence[Row]) -> list[Row]:
    """Rows whose advantages are scaled by their share of their trajectory's action tokens: their means over tokens sum to its mean."""
    tokens = Counter[str]()
    for row in rows:
        tokens[row.trajectory_id] += row.action_tokens
    shares = [row.action_tokens / max(tokens[row.trajectory_id], 1) for row in rows]
    scaled = (tuple(advantage * share for advantage in row.advantages) for row, share in zip(rows, shares, strict=True))
    return [replace(row, advantages=advantages) for row, advantages in zip(rows, scaled, strict=True)]


def split_rows(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Split `rows` into `parts` lists of about equal number and similar length, to limit padding; some may be empty."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    bounds = [len(ordered) * part // parts for part in range(parts + 1)]
    return [ordered[start:end] for start, end in pairwise(bounds)]


def share_rows(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Split `rows` into `parts` lists with about equal tokens, smallest first; some may be empty.

    Longest first, each into the emptiest list: at most 4/3 of the optimum (Graham 1969, «Bounds on multiprocessing timing anomalies»).
    """
    return _shared_out([[row] for row in rows], parts)


def share_groups(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Like `share_rows`, but keep rows of one prompt together and adjacent as far as balance allows, so their prompt is computed once."""
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: -row.tokens):
        groups.setdefault(row.prompt_ids, []).append(row)
    most = max(1, sum(map(tokens_of, groups.values())) // parts)
    shared = _shared_out([bundle for group in groups.values() for bundle in _dealt(group, round(tokens_of(group) / most))], parts)
    places = {prompt: place for place, prompt in enumerate(groups)}
    return [sorted(part, key=lambda row: places[row.prompt_ids]) for part in shared]


def tokens_of(group: Sequence[Row]) -> int:
    """Tokens of rows that share a prompt, which counts once."""
    return len(group[0].prompt_ids) + sum(len(row.completion_ids) for row in group)


def _dealt(group: Sequence[Row], hands: int) -> list[list[Row]]:
    hands = max(1, min(hands, len(group)))
    return [list(group[place::hands]) for place in range(hands)]


def _shared_out(bundles: Sequence[list[Row]], parts: int) -> list[list[Row]]:
    shared: list[tuple[int, int, list[Row]]] = [(0, part, []) for part in range(parts)]
    for bundle in sorted(bundles, key=lambda bundle: -tokens_of(bundle)):
        tokens, part, own = shared[0]
        heapreplace(shared, (tokens + tokens_of(bundle), part, [*own, *bundle]))
    return [own for _, _, own in sorted(shared, key=lambda each: each[:2])]


def collate_rows(rows: Sequence[Row], pad_token_id: int) -> dict[str, Tensor]:
    """Tensors for TRL's GRPO loss: prompts padded on the left (B, P), completions on the right (B, C).

    `completion_mask` is 0 on padding, `tool_mask` also on observations; `advantages`, `returns` and `old_values` are (B, C).
    """
    prompt_width = max(len(row.prompt_ids) for row in rows)
    width = max(len(row.completion_ids) for row in rows)
    return {
        "prompt_ids": torch.tensor([_pad_left(row.prompt_ids, prompt_width, pad_token_id) for row in rows]),
        "prompt_mask": torch.tensor([_pad_left([1] * len(row.prompt_ids), prompt_width, 0) for row in rows]),
        "completion_ids": torch.tensor([_pad_right(row.completion_ids, width, pad_token_id) for row in rows]),
        "completion_mask": torch.tensor([_pad_right([1] * len(row.completion_ids), width, 0) for row in rows]),
        "tool_mask": torch.tensor([_pad_right(row.action_mask, width, 0) for row in rows]),
        "old_per_token_logps": torch.tensor([_pad_right(row.logprobs, width, 0.0) for row in rows]),
        "sampled_logps": torch.tensor([_pad_right(row.sampled_logprobs or row.logprobs, width, 0.0) for row in rows]),
        "versions": torch.tensor([_pad_right(row.versions, width, UNKNOWN) for row in rows]),
        "advantages": torch.tensor([_pad_right(row.advantages, width, 0.0) for row in rows]),
        "returns": torch.tensor([_pad_right(row.returns, width, 0.0) for row in rows]),
        "old_values": torch.tensor([_pad_right(row.values, width, 0.0) for row in rows]),
    }


def group(trajectories: Sequence[Trajectory], environments: Mapping[str, str]) -> tuple[list[tuple[int, int]], Groups]:
    """Groups of valid trajectories, and the index (group, sample) of each trajectory."""
    places = _places(trajectories)
    tasks = [task for task, _ in dict.fromkeys(map(group_key, trajectories))]
    shape = len(tasks), max((sample + 1 for _, sample in places), default=1)
    turns = max((len(_acting(trajectory)) for trajectory in trajectories), default=1)
    rewards, tokens = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    turn_rewards = torch.full((*shape, turns), math.nan, dtype=torch.float64)
    for trajectory, place in zip(trajectories, places, strict=True):
        earned = _turn_rewards(trajectory)
        rewards[place] = trajectory.reward or 0.0
        tokens[place] = sum(len(turn.action_ids) for turn in trajectory.turns)
        turn_rewards[place][: len(earned)] = torch.tensor(earned, dtype=torch.float64)
    there = ~turn_rewards.isnan()
    names = sorted(set(environments.values()))
    numbers = torch.tensor([names.index(environments[task]) if task in environments else -1 for task in tasks])
    return places, Groups(rewards, there.any(dim=2), tokens, numbers, turn_rewards.nan_to_num(0.0), there)


def _places(trajectories: Sequence[Trajectory]) -> list[tuple[int, int]]:
    numbers: dict[GroupKey, int] = {}
    samples: Counter[GroupKey] = Counter()
    places = []
    for trajectory in trajectories:
        key = group_key(trajectory)
        places.append((numbers.setdefault(key, len(numbers)), samples[key]))
        samples[key] += 1
    return places


def _acting(trajectory: Trajectory) -> list[Turn]:
    return [turn for turn in trajectory.turns if turn.action_ids]


def _turn_rewards(trajectory: Trajectory) -> list[float]:
    """Reward of each turn with an action; the last one gets the rest of the trajectory's reward."""
    earned = [turn.reward or 0.0 for turn in _acting(trajectory)]
    earned[-1] += (trajectory.reward or 0.0) - sum(earned)
    return earned


def _rows(trajectory: Trajectory, advantages: Sequence[float]) -> list[Row]:
    """A row per context with an action. `advantages` has one value per turn with an action, and may be longer."""
    by_turn, earned = iter(advantages), iter(_turn_rewards(trajectory))
    rows, segments = [], trajectory.segments
    for prompt_ids, turns in segments:
        rewards = [next(earned) for turn in turns if turn.action_ids]
        if rewards:
            rewards[-1] += (trajectory.reward or 0.0) - sum(rewards) if len(segments) > 1 else 0.0
            rows.append(_row(trajectory, prompt_ids, turns, by_turn, rewards))
    return rows


def _row(
    trajectory: Trajectory, prompt_ids: tuple[int, ...], turns: Sequence[Turn], advantages: Iterator[float], rewards: Sequence[float]
) -> Row:
    """Actions and observations of a context in order, up to the last action."""
    images, spread, logprobs = list[Image](), list[float](), list[float]()
    ids, mask, ends, versions = list[int](), list[int](), list[int](), list[int]()
    last = max(place for place, turn in enumerate(turns) if turn.action_ids)
    for place, turn in enumerate(turns[: last + 1]):
        acted, seen = len(turn.action_ids), 0 if place == last else len(turn.observation_ids)
        if acted != len(turn.action_logprobs):
            raise ValueError(f"turn {turn.index} has {acted} action ids but {len(turn.action_logprobs)} log-probabilities")
        ids += [*turn.action_ids, *turn.observation_ids[:seen]]
        mask += [*[1] * acted, *[0] * seen]
        logprobs += [*turn.action_logprobs, *[0.0] * seen]
        versions += [*token_versions(turn), *[UNKNOWN] * seen]
        images += turn.images if seen else ()
        if acted:
            spread += [next(advantages)] * acted
            ends += [*[0] * (acted - 1), 1]
        spread += [0.0] * seen
        ends += [0] * seen
    return Row(
        prompt_ids=prompt_ids,
        completion_ids=tuple(ids),
        action_mask=tuple(mask),
        logprobs=tuple(logprobs),
        advantages=tuple(spread),
        turn_ends=tuple(ends),
        turn_rewards=tuple(rewards),
        versions=tuple(versions),
        trajectory_id=trajectory.id,
        task_key=trajectory.task_key,
        images=tuple(images),
    )


def _pad_left(values: Sequence[Number], width: int, padding: Number) -> list[Number]:
    return [padding] * (width - len(values)) + list(values)


def _pad_right(values: Sequence[Number], width: int, padding: Number) -> list[Number]:
    return list(values) + [padding] * (width - len(values))


Level = Literal["token", "sequence", "mean"]

FURTHEST = 20.0
"""Log-ratios are clamped to ± this value to prevent overflow."""


def ratios(log_ratios: Tensor, mask: Tensor, level: Level) -> Tensor:
    """π / μ per token, or per sequence as product Π_t π_t / μ_t or geometric mean; shape (rows, tokens).

    Args:
        log_ratios: log π - log μ (rows, tokens), with π the learner before the step and μ the sampler.
        mask: True on action tokens (rows, tokens).
    """
    known = torch.where(mask, log_ratios.double(), 0)
    if level != "token":
        known = known.sum(dim=1, keepdim=True)
    if level == "mean":
        known = known / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return known.clamp(-FURTHEST, FURTHEST).exp().expand(mask.shape)


def truncated(log_ratios: Tensor, mask: Tensor, level: Level, most: float) -> Tensor:
    """Truncated importance weights w = min(π / μ, `most`), 0 outside the mask. Ionides 2008; IMPALA, arXiv 1802.01561, §4.1."""
    return torch.where(mask, ratios(log_ratios, mask, level).clamp(max=most), 0)


def masked(log_ratios: Tensor, mask: Tensor, level: Level, least: float, most: float) -> Tensor:
    """w = π / μ within [`least`, `most`], else 0: such tokens have no gradient but still count in means. IcePop, arXiv 2510.18855."""
    found = ratios(log_ratios, mask, level)
    return torch.where(mask & (found >= least) & (found <= most), found, 0)


def accepted(log_ratios: Tensor, mask: Tensor, level: Level, least: float, most: float) -> Tensor:
    """Remove tokens or sequences whose ratio is outside [`least`, `most`] from the mask, as verl's rollout correction does."""
    found = ratios(log_ratios, mask, level)
    return mask & (found >= least) & (found <= most)


@dataclass(frozen=True, slots=True)
class Corrected:
    """Corrected rows, trajectories rejected as a whole, and the fraction of action tokens rejected."""

    rows: tuple[Row, ...]
    rejected: tuple[Row, ...]
    rejected_tokens: float


def correct(rows: Sequence[Row], learners: Sequence[Sequence[float]], config: CorrectionConfig) -> Corrected:
    """Apply the off-policy correction to `rows`.

    With weights w, advantages are multiplied by w, since min(r wA, clip(r) wA) = w min(r A, clip(r) A), and `logprobs` become the
    learner's, so that the loss's ratio starts at 1 (decoupled objective, arXiv 2110.00641, §3). Rejected tokens are masked.

    Args:
        learners: per row, the learner's log π of each completion token before the step.
    """
    done = [_correct(row, logprobs, config) for row, logprobs in zip(rows, learners, strict=True)]
    before, after = (sum(row.action_tokens for row in each) for each in (rows, done))
    rejected = tuple(row for row, left in zip(rows, done, strict=True) if not left.action_tokens)
    return Corrected(tuple(row for row in done if row.action_tokens), rejected, 1 - after / before if before else 0.0)


def _correct(row: Row, learner: Sequence[float], config: CorrectionConfig) -> Row:
    mask = torch.tensor([row.action_mask]).bool()
    log_ratios = torch.tensor([learner], dtype=torch.float64) - torch.tensor([row.logprobs], dtype=torch.float64)
    if config.reject is not None:
        kept = accepted(log_ratios, mask, config.reject, config.reject_below, config.reject_above)
        row = replace(row, action_mask=tuple(kept[0].int().tolist()))
    if config.weights not in ("truncated", "masked"):
        return row
    if config.weights == "truncated":
        weights = truncated(log_ratios, mask, config.level, config.above)
    else:
        weights = masked(log_ratios, mask, config.level, config.below, config.above)
    advantages = (torch.tensor([row.advantages], dtype=torch.float64) * weights)[0]
    own = torch.where(mask, torch.tensor([learner], dtype=torch.float64), 0)[0]
    return replace(row, advantages=tuple(advantages.tolist()), logprobs=tuple(own.tolist()), sampled_logprobs=row.logprobs)


def estimate(
    rows: Sequence[Row], values: Sequence[Sequence[float]], logprobs: Sequence[Sequence[float]], estimator: str, config: CriticConfig
) -> list[Row]:
    """Add a critic's advantages (whitened over the step), returns and values to the rows.

    Args:
        values: per row, one per completion token.
        logprobs: the learner's, likewise; used by `vtrace`.
        estimator: `gae`, `bilevel_gae` or `vtrace`.
    """
    if not rows:
        return []
    mask, ends = (_padded([getattr(row, name) for row in rows]).bool() for name in ("action_mask", "turn_ends"))
    padded, rewards = _padded(values), torch.zeros(mask.shape, dtype=torch.float64)
    rewards[ends] = torch.tensor([reward for row in rows for reward in row.turn_rewards], dtype=torch.float64)
    if estimator == "gae":
        advantages, returns = gae(rewards, padded, mask, config.discount, config.decay)
    elif estimator == "vtrace":
        log_ratios = _padded(logprobs) - _padded([row.logprobs for row in rows])
        advantages, returns = vtrace(rewards, padded, log_ratios, mask, config.discount, config.decay, config.trust, config.trace)
    else:
        advantages, returns = bilevel_gae(rewards, padded, mask, ends, config.discount, config.decay, config.turn_discount)
    whitened = whiten(advantages, mask).tolist()
    return [
        replace(
            row, advantages=tuple(whitened[n][:size]), returns=tuple(returns[n, :size].tolist()), values=tuple(padded[n, :size].tolist())
        )
        for n, row in enumerate(rows)
        if (size := len(row.completion_ids))
    ]


def _padded(sequences: Sequence[Sequence[float]]) -> Tensor:
    width = max(map(len, sequences))
    return torch.tensor([[*sequence, *[0.0] * (width - len(sequence))] for sequence in sequences], dtype=torch.float64)
