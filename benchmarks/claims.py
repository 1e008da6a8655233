"""What is in question, and what would answer it: claims of the papers, each with its variants and its criterion.

A claim compares one variant with others, on the same tasks and seeds, and says by how many points it would have to be above them to be
worth having (`margin`). Over five seeds that nothing was chosen on (`SEEDS`), with differences taken seed by seed and Student's 95 %
interval of their mean:

    holds                       the interval lies above 0, and the mean is at least the margin
    smaller than what matters   the interval lies above 0, and the mean is below the margin
    does not hold               the interval is not above 0, and lies below the margin
    insensitive                 no variant of the comparison learnt or lost anything (`MARGIN`), so nothing could have shown
    not decided                 none of these, or a seed is missing

P-values are those of Student's test, adjusted for all comparisons in the table (Holm). The smallest difference that five seeds can show is
1.24 standard deviations of it between seeds: 3.7 points where they lie 3 apart. Criteria were committed before their seeds ran, but
for the two claims whose words say otherwise. `benchmarks/bases` has the sizes; every base begins with the policy that can read, so that
pre-training is *continual*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from eval.statistics import Interval, student_mean

BASES = Path(__file__).parent / "bases"
SEEDS = (100, 101, 102, 103, 104)
"""Those that are published; 0 to 2 are for choosing sizes."""
MARGIN = 0.03
"""A difference of success below this is of no use to anybody; a share."""
STAGES = ("cpt", "sft", "rl")
STARTS = {"algorithms": "reader"}
"""Bases that differ from another in RL and its gate alone: their variants begin in the other's home."""


def sizes_of(base: str) -> Path:
    """The profile of a base."""
    return BASES / f"{base}.toml"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing it: what it is called, its base and its settings over that, the first stage that is not the start's, and its last.

    `made` is what is synthesised for it first: decision records or documents, which its pre-training reads in the place of the base's text,
    or questions, which its RL asks. `after` is the variant whose trajectories the decision records are made of.
    """

    name: str
    words: str
    base: str = "reader"
    settings: tuple[str, ...] = ()
    begins: str = "rl"
    ends: str = "rl"
    parent: str = "t1-sft"
    made: Literal["has", "documents", "questions"] | None = None
    after: str = ""

    @property
    def suffix(self) -> str:
        return "" if self.name == self.base else self.name

    @property
    def start(self) -> str:
        return STARTS.get(self.base, self.base)

    @property
    def stages(self) -> tuple[str, ...]:
        return STAGES[STAGES.index(self.begins) : STAGES.index(self.ends) + 1]

    @property
    def sizes(self) -> Path:
        return sizes_of(self.base)


class Measure(StrEnum):
    """What of a result is compared."""

    SUCCESS = "success"
    """Greedy, on the suite that the claim names, after the variant's last stage; a share."""
    KEPT = "kept"
    """1 less the deepest fall of the success on the way, a mean over five steps, below its highest before: 1 is never worse; a share."""
    SOONER = "sooner"
    """1 less the share of the sampled tokens at which a suite evaluated during training reached 80 %; 0 if it never did."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What is in question, by whom it was claimed, what is compared, and which variant is said to be above which."""

    name: str
    words: str
    claimed: Mapping[str, tuple[str, ...]]
    """The variant that is said to be better, and those that it is better than."""
    measure: Measure = Measure.SUCCESS
    suite: str = "held_out"
    margin: float = MARGIN

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for better, others in self.claimed.items() for name in (better, *others)))


class Verdict(StrEnum):
    """What the seeds say of one comparison."""

    HOLDS = "holds"
    SMALLER = "smaller than what matters"
    INSENSITIVE = "insensitive"
    DOES_NOT_HOLD = "does not hold"
    NOT_DECIDED = "not decided"


def verdict(differences: Sequence[float], margin: float, moved: bool = True) -> tuple[Verdict, Interval | None]:
    """The verdict on the differences of a comparison, one a seed, and their mean with its interval; `margin` in the same unit.

    Args:
        moved: whether training changed any of its variants.
    """
    if not differences:
        return Verdict.NOT_DECIDED, None
    mean = student_mean(differences)
    if len(differences) < len(SEEDS):
        return Verdict.NOT_DECIDED, mean
    if not moved:
        return Verdict.INSENSITIVE, mean
    if mean.low > 0:
        return Verdict.HOLDS if mean.value >= margin else Verdict.SMALLER, mean
    return Verdict.DOES_NOT_HOLD if mean.high < margin else Verdict.NOT_DECIDED, mean


ALGORITHMS = {
    "grpo": ("GRPO", ()),
    "gspo": ("GSPO", ("rl.loss_type=grpo", "rl.importance_sampling_level=sequence", "rl.clip_low=3e-4", "rl.clip_high=4e-4")),
    "rloo": ("RLOO", ("rl.estimator=rloo",)),
    "ppo": ("PPO with a critic", ("rl.estimator=gae",)),
}
TOKENS = {"imperfect": 240_000, "reader": 280_000}
"""Action tokens that RL samples on a base before it ends, where its variants would sample more or fewer in as many steps."""
STALENESS = (4, 8)
"""Versions of the weights that a trajectory may be behind, other than 0."""


def _algorithms() -> list[Variant]:
    made = [Variant(name, words, "algorithms", settings) for name, (words, settings) in ALGORITHMS.items()]
    for name, (words, settings) in ALGORITHMS.items():
        for versions in STALENESS:
            late = (*settings, "rl.mode=asynchronous", f"rl.replay.max_staleness={versions}")
            made.append(Variant(f"{name}_{versions}", f"{words}, up to {versions} versions behind", "algorithms", late))
            weighed = (*late, "rl.correction.weights=truncated")
            made.append(Variant(f"{name}_{versions}_tis", f"{words}, up to {versions} behind, weighed", "algorithms", weighed))
    return made


def _structures() -> list[Variant]:
    words = {"layerwise": "layer by layer", "random": "anywhere", "sequential": "one after the other"}
    return [
        Variant(
            name,
            f"trained on questions grown {how}",
            "structures",
            (f"synth.webshaper.structure={name}", f"rl.tasks=split = 'train' AND (provenance->>'shape') = '{name}'"),
            made="questions",
        )
        for name, how in words.items()
    ]


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("reader", "tasks at the frontier"),
        Variant("fas", "CPT on FAS", begins="sft", ends="sft", parent="t1-cpt"),
        Variant("fas_has", "CPT on FAS and HAS", begins="cpt", ends="sft", parent="t0-init", made="has", after="reader"),
        Variant("documents", "CPT on documents, as many tokens", begins="cpt", ends="sft", parent="t0-init", made="documents"),
        Variant("no_cpt", "no CPT", begins="sft", ends="sft", parent="t0-init"),
        Variant("uniform", "tasks drawn alike", settings=("rl.horizon.frontier=0", "rl.horizon.measure=false")),
        Variant("imperfect", "horizon 4, 8, 12", "imperfect"),
        Variant("fixed_short", "horizon fixed at 4", "imperfect", ("rl.horizon.rounds=[4]",)),
        Variant("fixed_long", "horizon fixed at 12", "imperfect", ("rl.horizon.rounds=[12]",)),
        Variant("gated", "horizon 4, 8, 12 by evidence", "imperfect", ("rl.horizon.gate.steps=3",)),
        Variant("foreign", "observations masked", "foreign"),
        Variant("unmasked_rl", "observations in the loss of RL", "foreign", ("rl.mask_observations=false",)),
        Variant("unmasked_sft", "observations in the loss of SFT", "foreign", ("sft.mask_observations=false",), "sft", parent="t1-cpt"),
        *_algorithms(),
        *_structures(),
    )
}
CLAIMS = (
    Claim(
        "cpt", "Agentic CPT helps the cold start of a policy that can read; FAS and HAS both (AgentFounder, 2509.13310)",
        {"fas": ("no_cpt", "documents"), "fas_has": ("fas",)},
    ),
    Claim(
        "horizon", "A growing horizon beats fixed ones, at as many sampled tokens (ScalingInter-RL, 2509.08755)",
        {"imperfect": ("fixed_short", "fixed_long", "gated")},
    ),
    Claim(
        "collapse", "A horizon that is long from the start collapses (ScalingInter-RL, 2509.08755)",
        {"imperfect": ("fixed_long",)}, Measure.KEPT, margin=0.05,
    ),
    Claim(
        "masks", "Foreign observations do not belong in the loss (Search-R1, 2503.09516)", {"foreign": ("unmasked_rl", "unmasked_sft")}
    ),
    Claim(
        "stability", "Weights for what is old keep learning stable (truncated importance sampling)",
        {f"{name}_{versions}_tis": (f"{name}_{versions}",) for name in ALGORITHMS for versions in STALENESS}, Measure.KEPT, margin=0.05,
    ),
    Claim(
        "staleness", "Learning from what is up to eight versions old costs success",
        {name: (f"{name}_4", f"{name}_8") for name in ALGORITHMS},
    ),
    Claim(
        "sequence", "Ratios of whole sequences learn more from stale samples (GSPO, 2507.18071; criterion written after the seeds ran)",
        {"gspo": ("grpo",), "gspo_4": ("grpo_4",), "gspo_8": ("grpo_8",)},
    ),
    Claim(
        "baselines", "A critic, or the mean of the others, beats the mean of the group (criterion written after the seeds ran)",
        {"ppo": ("grpo",), "rloo": ("grpo",)},
    ),
    Claim(
        "structures", "Questions grown layer by layer teach most (WebShaper, 2507.15061)",
        {"layerwise": ("random", "sequential")}, suite="*",
    ),
    Claim(
        "frontier", "Tasks at the frontier bring 80 % sooner than tasks drawn alike", {"reader": ("uniform",)}, Measure.SOONER, margin=0.05
    ),
)  # fmt: skip
