"""The claims of benchmarks/claims.py, tried: `python -m benchmarks.ablations --home runs/ablations [--only masks] [--seeds 100 101]`.

Each start has a home for each seed under `--home`. Variants that are done are passed over and those that were cut short go on, so the same
command goes on where it was; `--table` prints what is there and runs nothing, `--update docs/claims.md` writes it into that page. What a
variant came to on a seed is a line of `--results` too (benchmarks/ablations.jsonl), and what has a line there for the present settings is
not run again: seeds may be run side by side, one command each, or on several machines.

A seed has a world, questions and demonstrations of its own. The variants of a seed on one start begin alike, by synthesis, CPT on FAS and
SFT, and do in the same home, on the same engines, the stages that they change and all after them, under names of their own. One that the
metric monitor halts is a result too: it has kept nothing of what it had.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.claims import ALGORITHMS, CLAIMS, MARGIN, SEEDS, STALENESS, TOKENS, VARIANTS, Claim, Measure, Variant, sizes_of, verdict
from benchmarks.evidence import current_commit
from benchmarks.homes import do, judge, place
from benchmarks.tables import table as as_table
from eval.statistics import Interval, holm, student_p
from flows.config import load_config
from flows.context import RunContext, StageRun, open_context
from flows.home import Home
from flows.operations.budgets import Meter, Spending
from flows.operations_config import BudgetConfig
from flows.plan import evaluation_id, policy_id, synthesis_id
from rl.learner.metrics import TrainingHalted
from warehouse import Lake
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError

RESULTS = Path(__file__).with_suffix(".jsonl")
TABLE, END = "<!-- benchmarks/ablations.py writes this table -->", "<!-- /benchmarks/ablations.py -->"
GOAL = 0.8
"""Success on a suite evaluated during training at which `Measure.SOONER` looks."""
WINDOW = 5
"""Steps whose mean success counts in `Measure.KEPT`."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a variant on one seed."""

    successes: Mapping[str, tuple[int, int]]
    """Successes and valid attempts by suite, after the variant's last stage."""
    sft_loss: float
    steps: Sequence[tuple[int, float]]
    """Of each step of RL: action tokens that were sampled up to its end, and the success of what it sampled; without RL none."""
    beside: Sequence[tuple[int, float]] = ()
    """Evaluations during training: action tokens sampled so far, and success."""
    halted: str = ""
    """Why the metric monitor ended RL, where it did."""

    def of(self, measure: Measure, suite: str) -> float | None:
        if self.halted:
            return 0.0 if measure is Measure.KEPT else None
        if measure is Measure.SUCCESS:
            counts = [count for name, count in self.successes.items() if suite in (name, "*") and count[1]]
            return fmean(won / valid for won, valid in counts) if counts else None
        curve = [success for _, success in self.steps]
        if not curve:
            return None
        if measure is Measure.KEPT:
            return 1 - deepest_fall(curve)
        reached = next((tokens for tokens, success in self.beside if success >= GOAL), None)
        return 0.0 if reached is None else 1 - reached / self.steps[-1][0]

    @property
    def change(self) -> float:
        """What training changed: the mean success of the last `WINDOW` steps less that of the first; without RL, the success."""
        curve = [success for _, success in self.steps]
        if not curve:
            return self.of(Measure.SUCCESS, "*") or 0.0
        return fmean(curve[-WINDOW:]) - fmean(curve[:WINDOW])


Results = Mapping[tuple[str, int], Result]
"""By variant and seed."""


def deepest_fall(curve: Sequence[float], window: int = WINDOW) -> float:
    """How far the mean of `window` values in a row falls below the highest that it had been; 0 where it never does."""
    means = [fmean(curve[place : place + window]) for place in range(max(len(curve) - window + 1, 1))]
    return max(highest - mean for highest, mean in zip(accumulate(means, max), means, strict=True))


def settings_digest(variant: Variant) -> str:
    """What a result holds for: the variant and all that it shares with the others."""
    return digest([variant.sizes.read_text(), asdict(variant), TOKENS.get(variant.base)])


def read_results(path: Path) -> dict[tuple[str, int], Result]:
    """The results in `path` that were had under the present settings."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    present = {name: settings_digest(variant) for name, variant in VARIANTS.items()}
    return {
        (line["variant"], line["seed"]): Result(
            {suite: (won, valid) for suite, (won, valid) in line["successes"].items()},
            line["sft_loss"],
            *(tuple((tokens, success) for tokens, success in line[name]) for name in ("steps", "beside")),
            line["halted"],
        )
        for line in lines
        if present.get(line["variant"]) == line["settings"]
    }


def keep_result(path: Path, variant: Variant, seed: int, result: Result) -> None:
    """Append a line to `path`, with the commit that it was had at."""
    line = {"variant": variant.name, "seed": seed, **asdict(result), "settings": settings_digest(variant), "commit": current_commit()}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def run_variant(context: RunContext, variant: Variant, seed: int) -> None:
    """Do what is left to do of a variant, of what its home begins with, and of the variant whose trajectories it reads."""
    context.config = context.home.load()
    begin(context)
    if variant.after:
        run_variant(context, VARIANTS[variant.after], seed)
    context.config = load_config(str(variant.sizes), (f"seed={seed}", *variant.settings))
    if variant.made == "questions":  # a stage of its own: RL reads the lake as it stood when it began
        do(context, f"{synthesis_id(1)}-{variant.name}", "synth", partial(ask, context))
    parent = variant.parent
    for stage in variant.stages:
        policy = policy_id(1, stage, variant.suffix)
        meter = tokens_meter(context, policy, TOKENS[variant.base]) if stage == "rl" and variant.base in TOKENS else None
        do(context, policy, stage, partial(train, context, variant, stage, parent), meter)
        parent = policy
    for suite in context.config.evaluation.suites:
        do(context, evaluation_id(parent, suite), "eval", partial(judge, context, parent, suite=suite))


def tokens_meter(context: RunContext, policy: str, tokens: int) -> Meter:
    """A budget of the action tokens that one policy's RL samples."""
    sql = "SELECT coalesce(sum(action_tokens), 0)::BIGINT AS n FROM trajectories WHERE stage = 'rl' AND policy = ?"

    def reckon() -> Spending:
        return Spending(tokens=context.lake.query(sql, [policy]).to_pylist()[0]["n"])

    return Meter(BudgetConfig(tokens=tokens), reckon, look_seconds=0.0)


def begin(context: RunContext) -> None:
    """What the variants of a home share."""
    from flows.stages.synthesis.stage import synthesise
    from flows.stages.training import finetune, initialise, pretrain

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


def ask(context: RunContext, run: StageRun) -> dict[str, Any]:
    """The questions that a variant's own settings ask for."""
    from flows.stages.synthesis.batches import begin, work_off
    from flows.stages.synthesis.questions import DirectAttempts, questions

    work, material, guard = begin(context, 1)
    work_off(run, questions(work, material, guard, DirectAttempts(work)))
    return {}


def pretrain_on(context: RunContext, variant: Variant, parent: str, run: StageRun) -> dict[str, Any]:
    """Pre-training on other text: decision records next to the start's text, or documents alone; as many tokens as in the start."""
    from flows.stages.synthesis.actions import own_decisions
    from flows.stages.synthesis.batches import begin, work_off
    from flows.stages.synthesis.examples import documents
    from flows.stages.training import encode, finish
    from rl.supervised.cpt import train_cpt
    from synth.parts import CPT_KINDS

    read = {"has": own_decisions, "documents": documents}[str(variant.made)]
    work_off(run, read(*begin(context, 2)))
    kinds = [kind for kind in CPT_KINDS if (kind == "document") is (read is documents)]  # other variants' text is in the home too
    examples = context.lake.examples(kinds)
    folder = context.home.policies / policy_id(1, "cpt", variant.suffix)
    settings, seed = context.config.for_turn(1).cpt, seed_from(context.config.seed, "t1-cpt")
    start = context.folder(context.policy(parent))
    encoded, not_written = encode(context.config.rollout, start, examples)
    context.lake.add([replace(failure, stage="cpt") for failure in not_written])
    result = train_cpt(start, encoded, folder, settings, seed, run.metric)
    return finish(context, run, 1, "cpt", parent, result, variant.suffix)


def has_all(lake: Lake, policy: str, suites: Iterable[str]) -> bool:
    """Whether a policy has been judged on every suite."""
    runs = {run.id for run in lake.runs("state = 'completed'")}
    return all(evaluation_id(policy, suite) in runs for suite in suites)


_STEPS = """
SELECT step, sum(sum(action_tokens)) OVER (ORDER BY step)::BIGINT AS tokens,
    avg((outcome = 'success')::INT) FILTER (outcome <> 'invalid') AS success
FROM trajectories WHERE stage = 'rl' AND policy = ? GROUP BY step ORDER BY step
"""
_SUITES = """
SELECT suite, (tasks - invalid)::BIGINT AS valid, round(success * (tasks - invalid))::BIGINT AS won
FROM evaluations WHERE policy = ? AND hops IS NULL AND list_contains(?, suite) ORDER BY suite
"""


def read_result(lake: Lake, variant: Variant, suites: Sequence[str], halted: str = "") -> Result | None:
    """Result of a variant, from its lake; None where it is not done, unless `halted` says why it never will be."""
    policy = policy_id(1, variant.ends, variant.suffix)
    if not halted and not has_all(lake, policy, suites):
        return None
    sft = policy_id(1, "sft", variant.suffix if variant.begins in ("cpt", "sft") else "")
    counts = {row["suite"]: (row["won"] or 0, row["valid"]) for row in lake.query(_SUITES, [policy, list(suites)]).to_pylist()}
    steps = lake.query(_STEPS, [policy]).to_pylist()
    beside = lake.query("SELECT version, success FROM evaluations_beside WHERE run = ? ORDER BY version", [policy]).to_pylist()
    (loss,) = [run.figures["loss"] for run in lake.runs("id = ?", [sft])]
    tokens = {0: 0, **{row["step"]: row["tokens"] for row in steps}}
    curve = tuple((row["tokens"], row["success"]) for row in steps if row["success"] is not None)
    seen = tuple((tokens[row["version"]], row["success"]) for row in beside if row["version"] in tokens and row["success"] is not None)
    return Result(counts, loss, curve, seen, halted)


def table(found: Results, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row for each comparison of each claim: the figure of both by seed, the mean difference, and the verdict."""
    for claim in CLAIMS:
        for better, others in claim.claimed.items():
            for other in others:
                yield compare(found, claim, better, other, seeds)


def compare(found: Results, claim: Claim, better: str, other: str, seeds: Sequence[int]) -> dict[str, Any]:
    """One variant against another, by the claim's measure, over the seeds that both have."""
    figures = {name: _figures(found, claim, name, seeds) for name in (better, other)}
    both = [seed for seed in seeds if all(seed in figures[name] for name in figures)]
    differences = [figures[better][seed] - figures[other][seed] for seed in both]
    moved = bool(both) and any(abs(fmean(found[name, seed].change for seed in both)) >= MARGIN for name in figures)
    said, mean = verdict(differences, claim.margin, moved)
    return {
        "claim": claim.name,
        "better": better,
        "other": other,
        "figures": {name: [figures[name].get(seed) for seed in seeds] for name in figures},
        "losses": {name: [found[name, seed].sft_loss for seed in seeds if (name, seed) in found] for name in figures},
        "halted": sum(bool(found[name, seed].halted) for name in figures for seed in both),
        "seeds": both,
        "difference": mean,
        "p": student_p(differences),
        "verdict": said.value,
    }


def _figures(found: Results, claim: Claim, name: str, seeds: Sequence[int]) -> dict[int, float]:
    values = {seed: found[name, seed].of(claim.measure, claim.suite) for seed in seeds if (name, seed) in found}
    return {seed: value for seed, value in values.items() if value is not None}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The comparisons that a seed has been run for as one table."""
    heads = (
        "claim",
        "said to be better",
        "than",
        "its figure by seed, %",
        "the other's",
        "difference, points (95 %)",
        "p (Holm)",
        "SFT loss of both",
        "verdict",
        "`--only`",
    )
    words = {claim.name: f"{claim.words}; {claim.measure.value.replace('_', ' ')}" for claim in CLAIMS}
    rows_run = [row for row in rows if row["seeds"]]
    cells = (
        (
            words.pop(row["claim"], ""),
            VARIANTS[row["better"]].words,
            VARIANTS[row["other"]].words,
            *(_by_seed(row["figures"][row[name]]) for name in ("better", "other")),
            _points(row["difference"]),
            f"{p:.2g}",
            ", ".join(f"{fmean(row['losses'][row[name]]):.2g}" for name in ("better", "other")),
            row["verdict"] + (f", {row['halted']} runs halted" if row["halted"] else ""),
            f"`{row['better']},{row['other']}`",
        )
        for row, p in zip(rows_run, holm([row["p"] for row in rows_run]), strict=True)
    )
    made = as_table(heads, cells)
    waiting = [
        f"- {claim.words}: `--only {claim.name}`" for claim in CLAIMS if claim.name in {row["claim"] for row in rows if not row["seeds"]}
    ]
    return "\n".join([made, "", "Not run yet, or not all of it:", "", *waiting]) if waiting else made


def algorithms(found: Results, seeds: Sequence[int]) -> str:
    """The success of each algorithm by how late it learns and whether that is weighed, as a table: the mean of the seeds, and both ends."""
    (claim,) = [claim for claim in CLAIMS if claim.name == "staleness"]
    kinds = {"": "in turns"}
    for versions in STALENESS:
        kinds |= {f"_{versions}": f"up to {versions} behind", f"_{versions}_tis": f"up to {versions}, weighed"}

    def cell(variant: str) -> str:
        values = _figures(found, claim, variant, seeds).values()
        return f"{100 * fmean(values):.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})" if values else ""

    rows = ((words, *(cell(f"{name}{kind}") for kind in kinds)) for name, (words, _) in ALGORITHMS.items())
    return as_table(("success, %: mean of the seeds, lowest and highest", *kinds.values()), rows)


def report(found: Results, seeds: Sequence[int]) -> str:
    """What the page says: all comparisons, and the algorithms side by side."""
    return f"{markdown(list(table(found, seeds)))}\n\n{algorithms(found, seeds)}"


def _by_seed(values: Sequence[float | None]) -> str:
    return ", ".join("–" if value is None else f"{100 * value:.1f}" for value in values) if any(v is not None for v in values) else ""


def _points(mean: Interval | None) -> str:
    if mean is None:
        return ""
    value, low, high = (f"{100 * end:+.1f}".replace("-", "\N{MINUS SIGN}") for end in (mean.value, mean.low, mean.high))
    return f"{value} ({low} to {high})" if mean.low < mean.high else value


def update(page: Path, text: str) -> None:
    """Put the table into a page, between its marks."""
    before, _, rest = page.read_text().partition(TABLE)
    page.write_text(f"{before}{TABLE}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


def chosen(only: str) -> list[Variant]:
    """The variants that are asked for, by their own names or by those of claims; all of them without any."""
    claims = {claim.name: claim.variants for claim in CLAIMS}
    asked = [name for part in only.split(",") if part for name in claims.get(part, (part,))]
    unknown = [name for name in asked if name not in VARIANTS]
    if unknown:
        raise SystemExit(f"there is no variant {unknown[0]!r}; choose of {', '.join([*claims, *VARIANTS])}")
    return [variant for variant in VARIANTS.values() if not asked or variant.name in asked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="the folder of all homes")
    parser.add_argument("--only", default="", help="names of variants or of claims, with commas between them")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the lines of what is done")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--update", type=Path, help="write the table into this page too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("flywheel").setLevel(logging.INFO)
    failed = [] if arguments.table else list(run_all(arguments.home, chosen(arguments.only), arguments.seeds, arguments.results))
    found = read_results(arguments.results)
    rows = list(table(found, arguments.seeds))
    if arguments.update:
        update(arguments.update, report(found, arguments.seeds))
    shown = [{name: asdict(value) if isinstance(value, Interval) else value for name, value in row.items()} for row in rows]
    print(json.dumps({"failed": failed, "rows": shown}) if arguments.json else report(found, arguments.seeds))
    raise SystemExit(1 if failed else 0)


def run_all(root: Path, variants: Sequence[Variant], seeds: Sequence[int], results: Path) -> Iterator[str]:
    """Run each variant on each seed that has no result yet; yields the failed ones and continues."""
    for seed in seeds:
        for start in dict.fromkeys(variant.start for variant in variants):
            found = read_results(results)
            missing = [variant for variant in variants if variant.start == start and (variant.name, seed) not in found]
            if missing:
                home = place(root, start, seed)
                home.claim(load_config(str(sizes_of(start)), (f"seed={seed}",)))
                yield from run_home(home, missing, seed, results)


def run_home(home: Home, variants: Sequence[Variant], seed: int, results: Path) -> Iterator[str]:
    """Run the variants of a home, one after the other, and store their results; yields the failed ones."""
    with open_context(home.root) as context:
        for variant in variants:
            halted = ""
            try:
                run_variant(context, variant, seed)
            except TrainingHalted as error:
                halted = str(error)
            except RequestError as error:
                logging.error("%s on seed %d: %s", variant.name, seed, error)
                yield f"{variant.name} on seed {seed}: {error}"
                continue
            if (result := read_result(context.lake, variant, list(context.config.evaluation.suites), halted)) is not None:
                keep_result(results, variant, seed, result)


if __name__ == "__main__":
    main()
