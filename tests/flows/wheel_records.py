"""Everything that two turns of the wheel leave in a lake, at any size: what the tests of the report look at."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rl.learner.config import DEFAULT_LIMITS, MetricLimit
from rl.learner.metrics import Alert
from tests.flows.homes import NOW, ended
from warehouse import Call, Example, Failure, Lake, Metric, Outcome, Part, PartKind, Policy, RewardPart, Run, Score, StopReason, Task, Turn
from warehouse.records import Trajectory

HOSTILE = "</script><script>document.title='broken'</script><img src='https://example.org/x.png' onerror=\"document.title='broken'\">"
FOLDER = "policies/shared"
STAGES = ("init", "cpt", "sft", "rl")
SOLVED = {
    1: {"init": (0, 0, 0, 0), "cpt": (0.62, 0.31, 0.12, 0.04), "sft": (0.71, 0.44, 0.3, 0.12), "rl": (0.97, 0.93, 0.82, 0.48)},
    2: {"cpt": (0.93, 0.85, 0.7, 0.4), "sft": (0.95, 0.9, 0.79, 0.52), "rl": (0.99, 0.97, 0.95, 0.83)},
}


def wheel_records(tasks_per_hop: int = 20, steps: int = 60) -> list[Any]:
    """Everything that two turns of the wheel leave in the lake, at a small size."""
    chance = random.Random(7)
    tasks = [task(hops, place) for hops in (1, 2, 3, 4) for place in range(tasks_per_hop)]
    records: list[Any] = [
        *tasks,
        *policies(),
        *_runs(),
        *_failures(),
        *(Metric("t1-synth", "synth", 1, 0, f"count.{name}.fas", value) for name, value in (("asked", 1200), ("kept_plans", 7))),
        Example("e1", "fas_plan", (Part(PartKind.TEXT, "plan", True),), ("t1",)),
    ]
    for wheel_turn, shares in SOLVED.items():
        for stage, by_hops in shares.items():
            policy = f"t{wheel_turn}-{stage}"
            records += [record for one in tasks for record in _evaluated(one, policy, wheel_turn, by_hops[one.hops - 1], chance)]
        records += _training(wheel_turn, steps, chance)
        for step in range(1, steps + 1, 6):
            records += _group(chance.choice(tasks), wheel_turn, step, chance)
        records += _gate(wheel_turn)
    for variant in ("fixed_first", "fixed_last"):
        records += [record for one in tasks for record in _evaluated(one, f"t1-rl-{variant}", 1, 0.6, chance)]
        records += _rl_metrics(f"t1-rl-{variant}", 1, steps, chance, variant)
    records += [record for one in tasks for record in _evaluated(one, "t1-sft-without_cpt", 1, 0.1, chance)]
    records += [Metric("t1-sft-without_cpt", "sft", 1, step, "loss", 5 * math.exp(-step / 40) + 0.9) for step in range(1, 121)]
    return records


def write_wheel(home: Path, tasks_per_hop: int = 20) -> None:
    """The records into the lake of `home`, and the tokenizer that all policies share into their folder."""
    (home / FOLDER).mkdir(parents=True)
    TOKENIZER.save(str(home / FOLDER / "tokenizer.json"))
    with Lake(home) as lake:
        lake.add(wheel_records(tasks_per_hop))


def _tokenizer() -> Tokenizer:
    """Byte-level BPE, as the wheel's own policies have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["<search> Blue River</search><think> seat Green Lake</think><answer> Red Hill</answer>"], trainer)
    return tokenizer


TOKENIZER = _tokenizer()


def ids_of(text: str) -> tuple[int, ...]:
    """A text in tokens."""
    return tuple(TOKENIZER.encode(text).ids)


def task(hops: int, place: int) -> Task:
    """A held-out task; the first of each depth asks something hostile."""
    question = f"Which city is the seat of the employer of person {place}?" if place else f"Who wrote {HOSTILE}?"
    return Task(f"h{hops}-{place:03}", "search", question, ("Green Lake", "the Green Lake"), split="heldout", hops=hops)


def _evaluated(asked: Task, policy: str, wheel_turn: int, share: float, chance: random.Random) -> Iterator[Any]:
    made = attempt(asked, policy, wheel_turn, "eval", chance.random() < share, chance)
    yield made
    assert made.outcome is not None
    yield Score(made.id, "qa_em", "1", made.reward, made.outcome, made.error)


def attempt(
    asked: Task,
    policy: str,
    wheel_turn: int,
    stage: str,
    solved: bool,
    chance: random.Random,
    step: int | None = None,
    invalid: bool | None = None,
    sample: int = 0,
) -> Trajectory:
    """One run of a policy on a task: a search for each hop, and an answer."""
    invalid = chance.random() < 0.01 if invalid is None else invalid
    outcome = Outcome.INVALID if invalid else Outcome.SUCCESS if solved else Outcome.FAILURE
    turns = [_search(index, chance) for index in range(asked.hops)] + ([] if invalid else [_answer(asked.hops, solved)])
    suite, error = "heldout" if stage == "eval" else None, "the search tool did not answer within 10 s" if invalid else None
    name, of = f"{policy}/{stage}/{asked.key}/{step}/{sample}", {"wheel_turn": wheel_turn, "step": step, "sample": sample}
    return replace(
        ended(name, asked.key, outcome, policy, stage, suite=suite, error=error, **of),
        horizon=asked.hops + 2,
        prompt_ids=ids_of(f"<question> {asked.question}</question>"),
        turns=tuple(turns),
        stop_reason=StopReason.FAULT if invalid else StopReason.ANSWERED,
        reward=None if invalid else float(solved),
    )


def _group(asked: Task, wheel_turn: int, step: int, chance: random.Random) -> Iterator[Any]:
    """Four attempts at a task in RL, the first solved and the second not, with the parts of their rewards."""
    policy = f"t{wheel_turn}-rl"
    for sample in range(4):
        solved = sample == 0 or (sample > 1 and chance.random() < 0.7)
        made = attempt(asked, policy, wheel_turn, "rl", solved, chance, step, invalid=False, sample=sample)
        yield made
        yield RewardPart(made.id, "outcome", 1.0, float(solved))
        yield RewardPart(made.id, "evidence", 0.2, 0.5)


def _gate(wheel_turn: int) -> Iterator[Any]:
    """The gate promotes the first turn's policy and keeps the second's back."""
    kept = wheel_turn > 1
    if kept:
        yield Failure("gate", "not_promoted", "t2-rl: it falls on held_out by 5.0 points; the champion is t1-rl", {})
    reason = "t2-rl is not promoted: it falls on held_out by 5.0 points" if kept else "t1-rl is promoted: there is no champion to beat"
    figures = {"candidate": f"t{wheel_turn}-rl", "champion": "t1-rl" if kept else None, "promoted": not kept, "reason": reason}
    yield Run(f"t{wheel_turn}-gate", "gate", wheel_turn, {}, "c1", 1, 2, "completed", NOW, NOW, figures)


def _search(index: int, chance: random.Random) -> Turn:
    found = chance.random() < 0.95
    rest = HOSTILE if index == 0 else "Blue River has its seat in Green Lake."
    text = f"<information> Amber Stone works at Blue River. {rest}</information>"
    observation = text if found else "<information> Error: no such document.</information>"
    action = "<think> employer Blue River</think><search> Blue River</search>"
    ids = ids_of(action)
    logprobs = tuple(-0.1 - chance.random() for _ in ids)
    outcome = "ok" if found else "error"
    return Turn(
        index, ids, logprobs, action, "search", "Blue River", ids_of(observation), observation, None, outcome, 0.01, 3,
        calls=(Call("search", "Blue River", outcome, rest, 0.01),),
    )  # fmt: skip


def _answer(index: int, solved: bool) -> Turn:
    answer = "Green Lake" if solved else "Red Hill"
    action = f"<think> seat {answer}</think><answer> {answer}</answer>"
    calls = (Call("answer", answer, "ok"),)
    ids = ids_of(action)
    return Turn(index, ids, (-0.05,) * len(ids), action, "answer", answer, (), "", None, "ok", 0.0, 3, calls=calls)


def policies() -> Iterator[Policy]:
    """Those of two turns, and two of other curricula."""
    parent: str | None = None
    for wheel_turn, shares in SOLVED.items():
        for stage in STAGES:
            if stage in shares:
                name = f"t{wheel_turn}-{stage}"
                yield Policy(name, parent, stage, FOLDER, "d1", 10 * wheel_turn, wheel_turn, promoted=name == "t1-rl")
                parent = name
    for variant in ("fixed_first", "fixed_last"):
        yield Policy(f"t1-rl-{variant}", "t1-sft", "rl", FOLDER, "d1", 10, 1)
    yield Policy("t1-sft-without_cpt", "t1-init", "sft", FOLDER, "d1", 10, 1)


def _runs() -> Iterator[Run]:
    for wheel_turn in SOLVED:
        for stage in ("cpt", "sft", "rl"):
            config: dict[str, Any] = RL_CONFIG if stage == "rl" else {}
            yield _run(f"t{wheel_turn}-{stage}", stage, wheel_turn, config, f"t{wheel_turn}-{stage}")
    for variant in ("fixed_first", "fixed_last"):
        config = {"rl": {"horizon": {"rounds": [2, 4, 6], "every": 20}}, "variant": variant}
        yield _run(f"t1-rl-{variant}", "rl", 1, config, f"t1-rl-{variant}")
    yield _run("t1-sft-without_cpt", "sft", 1, {"variant": "without_cpt"}, "t1-sft-without_cpt")


RL_CONFIG: dict[str, Any] = {
    "rl": {
        "horizon": {"rounds": [2, 4, 6], "every": 20},
        "health": {"limits": [limit.model_dump(mode="json", exclude_none=True) for limit in DEFAULT_LIMITS]},
    },
    "variant": "scaling",
}


def _run(name: str, stage: str, wheel_turn: int, config: dict[str, Any], policy: str) -> Run:
    return Run(name, stage, wheel_turn, config, "c1", 1, 2, "completed", NOW, NOW + timedelta(minutes=2), {"policy": policy})


def _failures() -> Iterator[Failure]:
    for place in range(12):
        yield Failure("synth", "ambiguous_answer", f"the graph proves {place + 2} answers, more than the 8 accepted")
    yield Failure("rollout", "tool_timeout", HOSTILE)
    limit = MetricLimit(sign="zero_variance", above=0.55, steps=3)
    breach = Alert(limit, 0.58, 54, 56)
    item = {"run": "t2-rl", "step": 56, "since": 54, "value": "0.58", "limit": limit.model_dump(mode="json", exclude_none=True)}
    yield Failure("rl", "sign_warn", str(breach), item)


def _training(wheel_turn: int, steps: int, chance: random.Random) -> list[Metric]:
    metrics = _rl_metrics(f"t{wheel_turn}-rl", wheel_turn, steps, chance, "scaling")
    for stage, start, length in (("cpt", 7.0, 900), ("sft", 1.2, 120)):
        for step in range(1, length + 1):
            loss = start / wheel_turn * math.exp(-4 * step / length) + 0.4 + chance.gauss(0, 0.04)
            metrics.append(Metric(f"t{wheel_turn}-{stage}", stage, wheel_turn, step, "loss", loss))
    return metrics


def _rl_metrics(run: str, wheel_turn: int, steps: int, chance: random.Random, variant: str) -> list[Metric]:
    speed, ceiling = {"scaling": (4.0, 0.9), "fixed_first": (6.0, 0.62), "fixed_last": (2.0, 0.85)}[variant]
    metrics: list[Metric] = []
    for step in range(1, steps + 1):
        horizon = {"scaling": (2, 4, 6)[min((step - 1) * 3 // steps, 2)], "fixed_first": 2, "fixed_last": 6}[variant]
        success = min(1.0, max(0.0, 0.4 + (ceiling - 0.4) * (1 - math.exp(-speed * step / steps)) + chance.gauss(0, 0.04)))
        values = {
            "loss": chance.gauss(0, 0.02),
            "reward": success,
            "success": success,
            "horizon": horizon,
            "turns": min(horizon, 2.4 + step / steps),
            "tool_calls": min(horizon, 1.6 + step / steps),
            "grad_norm": 0.4 + abs(chance.gauss(0, 0.1)),
            "entropy": 0.7 * math.exp(-step / steps),
            "zero_variance": 0.2 + 0.4 * step / steps,
            "logprob_difference": abs(chance.gauss(8e-6, 2e-6)),
            "valid": 1.0 - (step == 17) * 0.05,
        }
        metrics += [Metric(run, "rl", wheel_turn, step, name, value) for name, value in values.items()]
    return metrics
