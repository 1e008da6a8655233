"""Layer-wise, random and sequential questions compared: `python -m benchmarks.structures [--home runs/demo …] [--json]`.

For each structure and number of layers: the share of questions with a redundant constraint (one without which the answer set does not grow,
or one between constants), the share with a shortcut (a constant next to the target), the share that a single search with the question's own
text answers, and the success of a trained policy that may search once. `ratio` compares a success with that of the layer-wise questions.
"Unchecked" are layer-wise questions whose definitions were not held against the whole question.

With `--expand COUNT` the same is measured of questions that the Expander makes deeper over documents, from COUNT layer-wise ones of one
layer: one constant a layer as it once did, all constants of a layer, and the latter with the graph at hand, which refuses what it knows
better. The teacher is an OpenAI-compatible server (`--teacher-url`, `--teacher-model`), or else a script that reads what its searches bring
(`tests/synth/expanding_model.py`), behind a real HTTP server. What the graph cannot answer, for a relation is not one of its own, counts
in no share but that of the shortcuts.

A home gives the policy, and the graph that it knows: a generated world's held-out half, or the films. It is only read; its policy is
copied first. Without a home the last columns stay empty.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.graders.verifiers import VERIFIERS
from eval.statistics import wilson
from flows.home import Home
from flows.stages.synthesis.sources import read_sources
from rl.retrieval.search import SearchIndex
from synth.corpora.config import ExpanderConfig
from synth.corpora.expander import expand
from synth.corpora.proposals import KnownFacts
from synth.formulas.projections import first_answers
from synth.formulas.proofs import Proofs, is_shortcut, prove
from synth.formulas.triples import formula_digest
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.expansion import Definer, GrownQuestion, GrowthSpec, Structure, essence, grow
from synth.questions.paths import first_hit
from synth.questions.wording import Phrasing, word_question
from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import open_teacher
from synth.teachers.readers import Readers
from synth.worlds.world import WorldConfig, generate_world
from warehouse import Outcome, Task
from warehouse.corpora.corpus import Corpus
from warehouse.corpora.films import read_films
from warehouse.digests import seed_from
from warehouse.public_data.catalogue import data_root

if TYPE_CHECKING:
    from rl.rollouts.rollout import Rollouts

SEARCH_ONCE = 2
"""Turns of a policy that may search once: the search and the answer."""

Judge = Callable[[Sequence[Task]], list[Outcome]]
"""What became of each task when the policy tried it."""


def draw(graph: KnowledgeGraph, growth: GrowthSpec, count: int, seed: int) -> list[GrownQuestion]:
    """So many questions of different formulas, or as many as there are."""
    found: dict[str, GrownQuestion] = {}
    for grown in grow(Definer(graph), growth, random.Random(seed_from(seed, growth.structure, growth.layers, growth.checked)), count):
        found.setdefault(formula_digest(grown.formula), grown)
        if len(found) == count:
            break
    return list(found.values())


def task_of(grown: GrownQuestion, phrasing: Phrasing) -> Task:
    """The question in compact words. A triple between constants has none: it asks nothing."""
    question = word_question(essence(grown.formula), phrasing, 1, random.Random(0))
    return Task(formula_digest(grown.formula), "search", question, (grown.answer,), grown.formula)


def measure(graph: KnowledgeGraph, growth: GrowthSpec, count: int, seed: int, index: SearchIndex, judge: Judge | None) -> dict[str, Any]:
    """One row of the table."""
    questions = draw(graph, growth, count, seed)
    phrasing = Phrasing.of(graph)
    tasks = [task_of(grown, phrasing) for grown in questions]
    proofs = [prove(graph, task.formula, task.question, first_hit(index)) for task in tasks]
    shares = {
        "triples": _mean([len(task.formula) for task in tasks]),
        "redundant": _mean([bool(proof.redundant or proof.constant_edges) for proof in proofs]),
        "constant_edges": _mean([bool(proof.constant_edges) for proof in proofs]),
        "shortcuts": _mean([bool(proof.shortcuts) for proof in proofs]),
        "easy": _mean([bool(proof.easy) for proof in proofs]),
    }
    name = str(growth.structure) if growth.checked else f"{growth.structure} unchecked"
    return {"structure": name, "layers": growth.layers, "questions": len(tasks), **shares, **_success(tasks, judge)}


def _success(tasks: Sequence[Task], judge: Judge | None) -> dict[str, Any]:
    if judge is None:
        return {"tried": 0, "success": None, "low": None, "high": None, "invalid": 0}
    outcomes = judge(tasks)
    judged = [outcome for outcome in outcomes if outcome in (Outcome.SUCCESS, Outcome.FAILURE)]
    successes = judged.count(Outcome.SUCCESS)
    low, high = wilson(successes, len(judged))
    success = successes / len(judged) if judged else None
    return {"tried": len(judged), "success": success, "low": low, "high": high, "invalid": len(outcomes) - len(judged)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def judge_of(rollouts: Rollouts, horizon: int) -> Judge:
    """The policy's greedy tries within a horizon."""
    from rl.rollouts.agent_loop import RolloutRequest

    def judge(tasks: Sequence[Task]) -> list[Outcome]:
        requests = [
            RolloutRequest(
                trajectory_id=f"structures-{number}-{task.key}",
                task=task,
                policy="policy",
                horizon=horizon,
                seed=0,
                temperature=0.0,
                stage="eval",
                wheel_turn=1,
                step=None,
                suite="structures",
                sample=0,
            )
            for number, task in enumerate(tasks)
        ]
        tries = zip(tasks, rollouts.rollout(requests), strict=True)
        return [VERIFIERS["qa_em"].verify(task, trajectory).verdict for task, trajectory in tries]

    return judge


def compare(name: str, corpus: Corpus, arguments: argparse.Namespace, judge: Judge | None) -> list[dict[str, Any]]:
    """The rows of one graph."""
    graph, index = KnowledgeGraph.of(corpus), SearchIndex(corpus.documents)
    rows: list[dict[str, Any]] = []
    for layers in arguments.layers:
        kinds = [GrowthSpec(structure, layers, arguments.intersections) for structure in Structure]
        kinds.append(GrowthSpec(Structure.LAYERWISE, layers, arguments.intersections, checked=False))
        of_layer = [{"graph": name, **measure(graph, growth, arguments.count, arguments.seed, index, judge)} for growth in kinds]
        against = of_layer[0]["success"]
        rows += [{**row, "ratio": row["success"] / against if against and row["success"] is not None else None} for row in of_layer]
    return rows


def compare_home(root: Path, policy: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the graph that a home's policy knows."""
    from rl.rollouts.rollout import Rollouts

    config = Home(root).load()
    corpus = read_sources(config.corpus, config.seed).held_out
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(root / "policies" / policy, Path(folder) / policy))
        with Rollouts.start(config.rollout, copy, corpus.documents) as rollouts:
            return compare(
                "world" if config.corpus.kind == "generated" else config.corpus.kind, corpus, arguments, judge_of(rollouts, SEARCH_ONCE)
            )


def compare_expansions(name: str, corpus: Corpus, arguments: argparse.Namespace, url: str) -> list[dict[str, Any]]:
    """The rows of one graph's questions before and after they are expanded."""
    graph, index = KnowledgeGraph.of(corpus), SearchIndex(corpus.documents)
    known = KnownFacts(graph)
    asked = QuestionConfig(structure="layerwise", counts={1: arguments.expand}, intersections=arguments.intersections)
    seeds, _ = build_questions(graph, asked, arguments.seed, first_hit(index))
    rows = [{"graph": name, "layers": 0, "structure": "as asked", "runs": 0, **measure_tasks(seeds, seeds, index, known)}]
    for layers in (1, 2):
        for label, structure, by_graph in (
            ("one constant a layer", "sequential", None),
            ("all constants of a layer", "layerwise", None),
            ("all, and the graph refuses", "layerwise", known),
        ):
            config = ExpanderConfig.model_validate({"layers": layers, "structure": structure, "horizon": 5})
            teacher_config = TeacherConfig(kind="openai", model=arguments.teacher_model, base_url=url)
            with open_teacher(teacher_config) as teacher:
                made = expand(seeds, teacher, Readers(teacher), index, config, arguments.seed, teacher_config.places, known=by_graph)
            row = {"graph": name, "layers": layers, "structure": label, "runs": len(made.trajectories)}
            rows.append({**row, **measure_tasks(made.tasks, seeds, index, known)})
    return rows


def measure_tasks(tasks: Sequence[Task], seeds: Sequence[Task], index: SearchIndex, known: KnownFacts) -> dict[str, Any]:
    """How many there are of those that were asked for, and what is wrong with them."""
    found = [_proofs(task, index, known) for task in tasks]
    proven = [proofs for proofs, _ in found if proofs is not None]
    others = [several for _, several in found if several is not None]
    return {
        "asked": len(seeds),
        "made": len(tasks),
        "shortcuts": _mean([any(map(is_shortcut, task.formula)) for task in tasks]),
        "answerable": len(others),
        "second_answer": _mean(others),
        "redundant": _mean([bool(proof.redundant) for proof in proven]),
        "easy": _mean([bool(proof.easy) for proof in proven]),
    }


def _proofs(task: Task, index: SearchIndex, known: KnownFacts) -> tuple[Proofs | None, bool | None]:
    own = known.in_its_words(task.formula)
    answers = frozenset() if own is None else first_answers(known.graph, own, len(task.answers) + 1)
    if own is None or not answers:
        return None, None
    if answers != set(task.answers):
        return None, True
    return prove(known.graph, own, task.question, first_hit(index)), False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", type=Path, default=data_root() / "kg_movies")
    parser.add_argument("--entities", type=int, default=4000, help="of the generated world, where no home gives one")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--count", type=int, default=200, help="questions a row")
    parser.add_argument("--intersections", type=float, default=0.7, help="share of unknowns with two constraints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, action="append", default=[], help="a home with a trained policy; repeatable")
    parser.add_argument("--policy", default="t1-rl", help="the policy's folder in HOME/policies")
    parser.add_argument("--expand", type=int, default=0, metavar="COUNT", help="expand so many questions over documents instead")
    parser.add_argument("--teacher-url", help="an OpenAI-compatible server up to and with /v1; without one a script plays the teacher")
    parser.add_argument("--teacher-model", default="script", help="the model's name on that server")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.expand:
        _expand(arguments)
        return
    rows = [row for home in arguments.home for row in compare_home(home, arguments.policy, arguments)]
    done = {row["graph"] for row in rows}
    if "world" not in done:
        rows += compare("world", generate_world(WorldConfig(entities=arguments.entities), "heldout", arguments.seed), arguments, None)
    if "films" not in done and arguments.films.is_dir():
        rows += compare("films", read_films(arguments.films, 420), arguments, None)
    print(json.dumps(rows)) if arguments.json else _print(rows)


def _expand(arguments: argparse.Namespace) -> None:
    from tests.synth.expanding_model import expanding_model
    from tests.synth.teachers.misbehaving_server import MisbehavingServer

    world = generate_world(WorldConfig(entities=arguments.entities), "heldout", arguments.seed)
    corpora = {"world": world} | ({"films": read_films(arguments.films, 420)} if arguments.films.is_dir() else {})
    with MisbehavingServer(answer=expanding_model) as server:
        url = arguments.teacher_url or server.url
        rows = [row for name, corpus in corpora.items() for row in compare_expansions(name, corpus, arguments, url)]
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| graph | layers | structure | asked | runs | made | shortcut | graph answers | second answer | redundant | easy |")
    print(f"|{' --- |' * 11}")
    for row in rows:
        counts = " | ".join(str(row[name]) for name in ("layers", "structure", "asked", "runs", "made"))
        rest = " | ".join(_percent(row[name]) for name in ("second_answer", "redundant", "easy"))
        print(f"| {row['graph']} | {counts} | {_percent(row['shortcuts'])} | {row['answerable']} | {rest} |")


def _print(rows: Sequence[dict[str, Any]]) -> None:
    print(
        "| graph | layers | structure | questions | triples | redundant | constant edges | shortcuts | easy | one search | 95 % | ratio |"
    )
    print(f"|{' --- |' * 12}")
    for row in rows:
        shares = " | ".join(_percent(row[name]) for name in ("redundant", "constant_edges", "shortcuts", "easy", "success"))
        interval = f"{_percent(row['low'])} to {_percent(row['high'])}" if row["tried"] else ""
        ratio = f"{row['ratio']:.2f}" if row["ratio"] is not None else ""
        triples = f"{row['triples']:.1f}" if row["triples"] is not None else ""
        head = f"{row['graph']} | {row['layers']} | {row['structure']} | {row['questions']} | {triples}"
        print(f"| {head} | {shares} | {interval} | {ratio} |")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
