"""What each idea is worth on the generated world: `python benchmarks/ablations.py --home runs/ablations [--only masks] [--seeds 0 1 2]`.

For each claim a reference and variants that differ from it in one thing, on the same tasks and with the same seeds; what is compared
is greedy success on held-out tasks after RL, success of what RL sampled on its way (the mean of its steps: who learns sooner, where all
end alike), and where pre-training is in question the last loss of SFT too. Each variant has a home for each seed under `--home`. Those
that are done are passed over and those that were cut short go on, so the same command goes on where it was; `--table` prints what is
there and runs nothing, `--update docs/claims.md` writes it into that page. What a variant came to on a seed is a line of `--results` too
(benchmarks/ablations.jsonl), and what has a line there for the present settings is not run again: seeds may be run side by side, one
command each, or on several machines.

A seed has a world, questions, a tokenizer and first weights of its own. `start` is what the variants of a seed share: synthesis, CPT on
FAS, SFT. A variant is a copy of it (or of `grpo`, whose trajectories HAS rewrites) in which the stages that it changes are done
anew, and all after them. benchmarks/ablations.toml has the sizes. Means have Student's 95 % interval over the seeds, that of a share cut at
0 and 100 %; differences are taken seed by seed.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from eval.statistics import Interval, student_mean
from flows.config import FlywheelConfig, load_config
from flows.context import RunContext, open_context
from flows.home import Home
from flows.plan import completed, evaluation_id, policy_id, synthesis_id
from flows.run_stage import run_attempt
from flows.stage_run import StageRun
from rl.training.monitor import TrainingHalted
from warehouse import Lake
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError

SIZES = Path(__file__).with_suffix(".toml")
RESULTS = SIZES.with_suffix(".jsonl")
SUITE = "held_out"
STAGES = ("cpt", "sft", "rl")
TABLE = "<!-- benchmarks/ablations.py writes this table -->"

Work = Callable[[StageRun], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing it: what it is called, its settings, and the first stage that is not the start's.

    `text` is the kind of examples that its pre-training reads; `cpt` is left out altogether where it begins with `sft` from `t0-init`.
    """

    name: str
    words: str
    settings: tuple[str, ...] = ()
    begins: str = "rl"
    parent: str = "t1-sft"
    text: str = ""
    copies: str = "start"

    @property
    def suffix(self) -> str:
        """What the names of its policies end in; nothing in `grpo`, which is the wheel's own way."""
        return "" if self.name == "grpo" else self.name

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that it does itself."""
        return STAGES[STAGES.index(self.begins) :]

    @property
    def policy(self) -> str:
        """The policy at its end."""
        return policy_id(1, "rl", self.suffix)


@dataclass(frozen=True, slots=True)
class Claim:
    """What is in question, by whom it was claimed, and its variants; the first one is the reference."""

    name: str
    words: str
    variants: tuple[str, ...]


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("grpo", "GRPO, observations masked, horizon 3, 4, 5"),
        Variant("unmasked_rl", "observations in the loss of RL", ("rl.mask_observations=false",)),
        Variant("unmasked_sft", "observations in the loss of SFT", ("sft.mask_observations=false",), "sft", "t1-cpt"),
        Variant("fixed_short", "horizon fixed at 3", ("rl.horizon.rounds=[3]",)),
        Variant("fixed_long", "horizon fixed at 5", ("rl.horizon.rounds=[5]",)),
        Variant("gated", "horizon 3, 4, 5 by evidence", ("rl.horizon.gate.steps=3",)),
        Variant(
            "gspo",
            "GSPO",
            ("rl.loss_type=grpo", "rl.importance_sampling_level=sequence", "rl.clip_low=3e-4", "rl.clip_high=4e-4"),
        ),
        Variant("rloo", "RLOO", ("rl.estimator=rloo",)),
        Variant("ppo", "PPO with a critic", ("rl.estimator=gae",)),
        Variant("fas_has", "CPT on FAS and HAS", (), "cpt", "t0-init", "has", "grpo"),
        Variant("documents", "CPT on documents, as many tokens", (), "cpt", "t0-init", "documents"),
        Variant("no_cpt", "no CPT", (), "sft", "t0-init"),
    )
}
CLAIMS = (
    Claim("masks", "Observations do not belong in the loss (Search-R1, 2503.09516)", ("grpo", "unmasked_rl", "unmasked_sft")),
    Claim("horizon", "A growing horizon beats fixed ones (ScalingInter-RL, 2509.08755)", ("grpo", "fixed_short", "fixed_long", "gated")),
    Claim("algorithms", "The algorithm matters", ("grpo", "gspo", "rloo", "ppo")),
    Claim("cpt", "Agentic CPT helps, FAS and HAS both (AgentFounder, 2509.13310)", ("grpo", "fas_has", "documents", "no_cpt")),
)
REFERENCE_WORDS = {"cpt": "CPT on FAS"}
"""What the reference is called in a claim where its general name says nothing."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a variant came to on one seed."""

    success: float
    on_the_way: float
    """Success of the trajectories that RL learnt from: the mean over its steps."""
    sft_loss: float


Results = Mapping[tuple[str, int], Result]
"""By variant and seed."""


def settings_digest(variant: Variant) -> str:
    """What a result holds for: the variant and all that it shares with the others."""
    return digest([SIZES.read_text(), asdict(variant)])


def read_results(path: Path) -> dict[tuple[str, int], Result]:
    """The results in `path` that were had under the present settings."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    present = {name: settings_digest(variant) for name, variant in VARIANTS.items()}
    return {
        (line["variant"], line["seed"]): Result(line["success"], line["on_the_way"], line["sft_loss"])
        for line in lines
        if present.get(line["variant"]) == line["settings"]
    }


def keep_result(path: Path, variant: Variant, seed: int, result: Result) -> None:
    """Append a line to `path`."""
    line = {"variant": variant.name, "seed": seed, **asdict(result), "settings": settings_digest(variant)}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def run_variant(root: Path, variant: Variant, seed: int) -> None:
    """Do what is left to do of a variant, and of what it is a copy of."""
    home = place(root, variant.name, seed)
    if done(home, variant):
        return
    if not home.root.is_dir():
        if variant.copies == "start":
            begin(root, seed)
        else:
            run_variant(root, VARIANTS[variant.copies], seed)
        copy_home(place(root, variant.copies, seed), home, load_config(str(SIZES), (f"seed={seed}", *variant.settings)))
    with open_context(home.root) as context:
        parent = variant.parent
        for stage in variant.stages:
            policy = policy_id(1, stage, variant.suffix)
            do(context, policy, stage, partial(train, context, variant, stage, parent))
            parent = policy
        do(context, evaluation_id(parent, SUITE), "eval", partial(judge, context, parent))


def begin(root: Path, seed: int) -> None:
    """What the variants of a seed share."""
    home = place(root, "start", seed)
    home.claim(load_config(str(SIZES), (f"seed={seed}",)))
    if policy_id(1, "sft") in completed(home):
        return
    from flows.stages.synthesis.stage import synthesise
    from flows.stages.training import finetune, initialise, pretrain

    with open_context(home.root) as context:
        do(context, synthesis_id(1), "synth", lambda run: synthesise(context, run, 1))
        do(context, "t0-init", "init", lambda run: initialise(context, run))
        do(context, "t1-cpt", "cpt", lambda run: pretrain(context, run, 1, "t0-init"))
        do(context, "t1-sft", "sft", lambda run: finetune(context, run, 1, "t1-cpt"))


def train(context: RunContext, variant: Variant, stage: str, parent: str, run: StageRun) -> dict[str, Any]:
    """One stage of a variant."""
    from flows.stages.reinforcement import reinforce
    from flows.stages.training import finetune

    if stage == "cpt":
        return pretrain_on(context, variant, parent, run)
    return {"sft": finetune, "rl": reinforce}[stage](context, run, 1, parent, variant.suffix)


def pretrain_on(context: RunContext, variant: Variant, parent: str, run: StageRun) -> dict[str, Any]:
    """Pre-training on other text: decision records beside the start's text, or documents alone; as many tokens as in the start."""
    from flows.stages.synthesis.actions import own_decisions
    from flows.stages.synthesis.batches import work_off
    from flows.stages.synthesis.context import SynthesisContext
    from flows.stages.synthesis.examples import documents
    from flows.stages.training import encode, finish
    from rl.training.cpt import train_cpt
    from synth.parts import CPT_KINDS

    work_off(run, {"has": own_decisions, "documents": documents}[variant.text](SynthesisContext(context, 2)))
    examples = context.lake.examples(("document",) if variant.text == "documents" else CPT_KINDS)
    folder = context.home.policies / policy_id(1, "cpt", variant.suffix)
    settings, seed = context.config.for_turn(1).cpt, seed_from(context.config.seed, "t1-cpt")
    start = context.folder(context.policy(parent))
    encoded, not_written = encode(context.config.rollout, start, examples)
    context.lake.add([replace(failure, stage="cpt") for failure in not_written])
    result = train_cpt(start, encoded, folder, settings, seed, run.metric)
    return finish(context, run, 1, "cpt", parent, result, variant.suffix)


def judge(context: RunContext, policy: str, run: StageRun, suite: str = SUITE) -> dict[str, Any]:
    """Greedy success on a suite of the home."""
    from flows.stages.rollouts import evaluate

    return evaluate(context, context.policy(policy), suite, run)


def do(context: RunContext, run_id: str, stage: str, work: Work) -> None:
    """A stage's work with its row in the lake, unless it is done; Prefect, which would start a server for each home, is not needed."""
    run_attempt(context.lake, run_id, stage, 1, context.config.for_turn(1).model_dump(mode="json"), work)


def copy_home(source: Home, home: Home, config: FlywheelConfig, without: Sequence[str] = ()) -> None:
    """A home with the lake and the policies of `source` under another configuration; there as a whole or not at all.

    `without` are patterns of names that stay behind.
    """
    draft = Home(home.root.with_name(f"{home.root.name}.draft"))
    shutil.rmtree(draft.root, ignore_errors=True)
    draft.claim(config)
    for part in ("lake", "policies"):
        shutil.copytree(source.root / part, draft.root / part, ignore=shutil.ignore_patterns(*without))
    draft.root.rename(home.root)


def place(root: Path, name: str, seed: int) -> Home:
    """The home of a variant on a seed."""
    return Home(root / f"seed{seed}" / name)


def done(home: Home, variant: Variant) -> bool:
    """Whether a variant has been judged."""
    return evaluation_id(variant.policy, SUITE) in completed(home)


def read_result(home: Home, variant: Variant) -> Result | None:
    """What a variant came to, out of its lake; None where it is not done, or none of its trajectories has a verdict."""
    if not done(home, variant):
        return None
    sft = policy_id(1, "sft", variant.suffix if "sft" in variant.stages else "")
    with Lake(home.root, read_only=True) as lake:
        sql = "SELECT success FROM evaluations WHERE policy = ? AND suite = ? AND hops IS NULL"
        (row,) = lake.query(sql, [variant.policy, SUITE]).to_pylist()
        sql = "SELECT avg(value) AS success FROM learning_curve WHERE run = ? AND metric = 'success'"
        (steps,) = lake.query(sql, [variant.policy]).to_pylist()
        (loss,) = [run.figures["loss"] for run in lake.runs("id = ?", [sft])]
    return None if row["success"] is None else Result(row["success"], steps["success"], loss)


def table(found: Results, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row for each variant of each claim: the seeds that are done, means, and differences from the claim's reference."""
    for claim in CLAIMS:
        reference = claim.variants[0]
        for name in claim.variants:
            results = {seed: found[name, seed] for seed in seeds if (name, seed) in found}
            against = {seed: found[reference, seed] for seed in results if (reference, seed) in found and name != reference}
            pairs = [(results[seed], result) for seed, result in against.items()]
            losses = [result.sft_loss for result in results.values()] if claim.name == "cpt" else []
            yield {
                "claim": claim.name,
                "variant": name,
                "words": REFERENCE_WORDS.get(claim.name, VARIANTS[name].words) if name == reference else VARIANTS[name].words,
                "seeds": sorted(results),
                "missing": [seed for seed in seeds if seed not in results],
                "success": _mean_share([result.success for result in results.values()]),
                "difference": _mean([own.success - other.success for own, other in pairs]),
                "on_the_way": _mean_share([result.on_the_way for result in results.values()]),
                "sooner": _mean([own.on_the_way - other.on_the_way for own, other in pairs]),
                "sft_loss": _mean(losses),
            }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as one table."""
    heads = ("claim", "variant", "seeds", "success, %", "against the first, points", "on the way, %", "against the first", "last SFT loss")
    lines = [f"| {' | '.join(heads)} | `--only` |", f"|{' --- |' * (len(heads) + 1)}"]
    words = {claim.name: claim.words for claim in CLAIMS}
    for row in rows:
        missing = f"; not yet {', '.join(map(str, row['missing']))}" if row["missing"] else ""
        cells = (
            words.pop(row["claim"], ""),
            row["words"],
            f"{len(row['seeds'])}{missing}",
            _shown(row["success"], 100, "{:.1f}"),
            _shown(row["difference"], 100, "{:+.1f}"),
            _shown(row["on_the_way"], 100, "{:.1f}"),
            _shown(row["sooner"], 100, "{:+.1f}"),
            _shown(row["sft_loss"], 1, "{:.3f}"),
            f"`{row['variant']}`",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> Interval | None:
    return student_mean(values) if values else None


def _mean_share(values: Sequence[float]) -> Interval | None:
    """As `_mean`, the interval cut where no share can be."""
    mean = _mean(values)
    return mean and Interval(mean.value, max(0.0, mean.low), min(1.0, mean.high))


def _shown(interval: Interval | None, scale: float, form: str) -> str:
    """A mean with the ends of its interval, which one seed alone does not have."""
    if interval is None:
        return ""
    value, low, high = (form.format(scale * end).replace("-", "\N{MINUS SIGN}") for end in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})" if interval.low < interval.high else value


def update(page: Path, text: str) -> None:
    """Put the table into a page, in the place of the one that stands behind the mark."""
    before, _, after = page.read_text().partition(TABLE)
    rest = after.lstrip("\n").split("\n\n", 1)
    page.write_text(f"{before}{TABLE}\n\n{text}\n" + (f"\n{rest[1]}" if len(rest) > 1 else ""))


def chosen(only: str) -> list[Variant]:
    """The variants that are asked for, by their own names or by those of claims; all of them without any."""
    claims = {claim.name: claim.variants for claim in CLAIMS}
    asked = [name for part in only.split(",") if part for name in claims.get(part, (part,))]
    unknown = [name for name in asked if name not in VARIANTS]
    if unknown:
        raise SystemExit(f"there is no variant {unknown[0]!r}; choose of {', '.join([*claims, *VARIANTS])}")
    return [variant for variant in VARIANTS.values() if not asked or variant.name in asked]


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="the folder of all homes")
    parser.add_argument("--only", default="", help="names of variants or of claims, with commas between them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the lines of what is done")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--update", type=Path, help="write the table into this page too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("flywheel").setLevel(logging.INFO)
    failed = [] if arguments.table else list(run_all(arguments.home, chosen(arguments.only), arguments.seeds, arguments.results))
    rows = list(table(read_results(arguments.results), arguments.seeds))
    if arguments.update:
        update(arguments.update, markdown(rows))
    shown = [{name: asdict(value) if isinstance(value, Interval) else value for name, value in row.items()} for row in rows]
    print(json.dumps({"failed": failed, "rows": shown}) if arguments.json else markdown(rows))
    raise SystemExit(1 if failed else 0)


def run_all(root: Path, variants: Sequence[Variant], seeds: Sequence[int], results: Path) -> Iterator[str]:
    """Run each variant on each seed that has no result yet; yields what came to no end, and goes on with the next."""
    for variant in variants:
        for seed in seeds:
            if (variant.name, seed) in read_results(results):
                continue
            try:
                run_variant(root, variant, seed)
                if (result := read_result(place(root, variant.name, seed), variant)) is not None:
                    keep_result(results, variant, seed, result)
            except (RequestError, TrainingHalted) as error:
                logging.error("%s on seed %d: %s", variant.name, seed, error)
                yield f"{variant.name} on seed {seed}: {error}"


if __name__ == "__main__":
    main()
