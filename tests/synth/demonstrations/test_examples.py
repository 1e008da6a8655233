"""Training text: the oracle's trajectories, demonstrations, plans, reasoning and decision records."""

from __future__ import annotations

import re

import pytest
from transformers import PreTrainedTokenizerBase

from rl.renderers.base import Truncation
from rl.renderers.examples import encode_example
from rl.renderers.tags import TagDialect, tagged_text
from synth.demonstrations.cold_start import DemonstrationConfig, build_demonstrations
from synth.demonstrations.oracle import solution_of
from synth.fas.reasoning import FasConfig, build_fas
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Retrieve
from warehouse.records import Example, PartKind, Task


def answer_in(example: Example) -> str:
    *before, last = example.parts
    assert last.kind is PartKind.ANSWER and last.learnt
    assert all(part.kind is not PartKind.ANSWER for part in before)
    return last.text


def texts_of(example: Example, kind: PartKind) -> list[str]:
    return [part.text for part in example.parts if part.kind is kind]


def test_the_oracle_reaches_every_answer_with_the_searches_counted(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task]) -> None:
    for task in tasks:
        solution = solution_of(graph, task, retrieve)
        assert solution is not None
        assert (solution.answer, len(solution.steps), solution.steps[0].think) == (task.answers[0], task.hops, "")
        assert solution.think.endswith(solution.answer)
        assert all(retrieve(step.query) == step.document for step in solution.steps)


@pytest.mark.slow
def test_demonstration_tokens_are_those_of_the_dialect(
    graph: KnowledgeGraph, tasks: list[Task], tokenizer: PreTrainedTokenizerBase
) -> None:
    (example,) = build_demonstrations(graph, tasks[:1], DemonstrationConfig(), 1)[0]
    dialect = TagDialect(tokenizer)
    solution = solution_of(graph, tasks[0])
    assert solution is not None
    encoded = encode_example(example, dialect)
    prompt = dialect.prompt_ids(tasks[0].question)
    assert encoded.token_ids[: len(prompt)] == prompt
    assert not any(encoded.trained[: len(prompt)])
    assert encoded.token_ids[-1] in dialect.stop_token_ids
    assert dialect.observation_ids(solution.steps[0].document.text, Truncation(200)) == tuple(
        token for token, trained in list(zip(encoded.token_ids, encoded.trained, strict=True))[len(prompt) :] if not trained
    )


@pytest.mark.parametrize("style", ["early_stop", "wrong_turn"])
def test_spoilt_demonstrations_answer_wrong(graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], style: str) -> None:
    examples, _ = build_demonstrations(graph, tasks, DemonstrationConfig(**{style: 1.0}), 1, retrieve)
    spoilt = [(task, e) for task, e in zip(tasks, examples, strict=True) if e.id.startswith(f"demonstration-{style}-")]
    assert len(spoilt) > 100
    for task, example in spoilt:
        assert answer_in(example) not in task.answers
        assert answer_in(example) in texts_of(example, PartKind.RESULT)[-1]
        searches = len(texts_of(example, PartKind.CALL))
        assert searches < task.hops if style == "early_stop" else 1 <= searches <= task.hops


def test_plans_begin_with_a_search_that_finds_required_knowledge(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    config = FasConfig(plan_slices=60, reasoning={4: 1}, intersections=0.3)
    examples, failures = build_fas(graph, config, 1, retrieve)
    plans = [example for example in examples if example.kind == "fas_plan"]
    assert len(plans) > 100
    for plan in plans:
        match = re.fullmatch(r"<question> .+</question><think> plan: .+</think><search> (.+)</search>", tagged_text(plan.parts))
        assert match
        found = retrieve(match[1])
        assert found is not None and found.id in plan.sources
        assert all(part.learnt == (part.kind in (PartKind.THOUGHT, PartKind.CALL, PartKind.ANSWER)) for part in plan.parts)
    assert {failure.kind for failure in failures} <= {
        "fas_plan_not_unique", "fas_plan_no_document", "fas_plan_other_knowledge", "not_unique", "not_found_by_search"
    }  # fmt: skip
