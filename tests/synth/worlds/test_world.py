"""Generated worlds, tasks of the packaged tool worlds, and what tasks of written worlds become."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerBase

from eval.graders.state import REFERENCE
from rl.envs.tool_world.environment import find_world
from rl.policies.tokenization import multi_token_words
from synth.worlds.names import NAME_WORDS, make_names
from synth.worlds.schema import RELATIONS
from synth.worlds.tool_tasks import GOALS, Goal, ToolWorldConfig, generate_tasks, replay
from synth.worlds.world import WorldConfig, generate_world, world_words
from synth.worlds.writing_config import WrittenWorldsConfig
from synth.worlds.written_tasks import goal_in_words, share_out
from warehouse.errors import RequestError
from warehouse.records import Task


def test_names_of_the_splits_share_words_but_no_name() -> None:
    train, heldout = make_names(5_000, "train", seed=1), make_names(5_000, "heldout", seed=2)
    assert not set(train) & set(heldout)
    assert {word for name in train for word in name.split()} == set(NAME_WORDS) == {w for n in heldout for w in n.split()}


@pytest.mark.parametrize("variety", [1, 2, 3])
def test_every_entity_has_one_document_that_states_its_facts(variety: int) -> None:
    world = generate_world(WorldConfig(entities=300, prose_variety=variety), "train", seed=5)
    texts = {document.id: document for document in world.documents}
    assert len(texts) == len(world.types) == 300
    assert sorted(document.title for document in world.documents) == sorted(world.types)
    for fact in world.facts:
        document = texts[fact.documents[0]]
        assert (fact.documents, document.title, document.source) == ((document.id,), fact.subject, fact.source)
        assert document.text.startswith(fact.subject) and fact.object in document.text
        assert variety == 3 or fact.relation in document.text
    assert set(Counter(fact.subject for fact in world.facts).values()) <= {2, 3, 4}


def test_facts_are_functional_typed_and_consistent() -> None:
    world = generate_world(WorldConfig(entities=500), "train", seed=5)
    known = {(fact.subject, fact.relation): fact.object for fact in world.facts}
    assert len(known) == len(world.facts)
    types = {relation.name: (relation.subject, relation.object) for relation in RELATIONS}
    assert all((world.types[f.subject], world.types[f.object]) == types[f.relation] for f in world.facts)
    capitals = [(fact.subject, fact.object) for fact in world.facts if fact.relation == "capital"]
    assert all(known[city, "country"] == country for country, city in capitals)


def test_a_world_follows_from_its_configuration_split_and_seed() -> None:
    config = WorldConfig(entities=200)
    assert generate_world(config, "train", 3) == generate_world(config, "train", 3)
    assert generate_world(config, "train", 3).facts != generate_world(config, "train", 4).facts
    train, heldout = generate_world(config, "train", 3), generate_world(config, "heldout", 3)
    assert not set(train.types) & set(heldout.types)
    assert not {document.id for document in train.documents} & {document.id for document in heldout.documents}
    assert not {f.object for f in train.facts} & {f.object for f in heldout.facts}


@pytest.mark.slow
def test_words_of_the_world_are_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    assert multi_token_words(tokenizer, world_words()) == []


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(generate_tasks(120, seed=3))


def test_every_task_is_solved_by_its_own_calls_in_a_fresh_world(tasks: list[Task]) -> None:
    for task in tasks[::3]:
        named = task.provenance["world"]
        definition = find_world(named["domain"], {}).definition(named["seed"], named["size"])
        assert definition.digest == named["digest"]
        assert replay(definition, task.provenance["calls"]) == task.provenance[REFERENCE]
        assert bool(task.provenance[REFERENCE]) != bool(task.answers)


def test_tasks_are_of_all_domains_goals_and_lengths(tasks: list[Task]) -> None:
    assert Counter(task.provenance["world"]["domain"] for task in tasks) == dict.fromkeys(GOALS, 40)
    assert {task.constraints for task in tasks} == {1, 2, 3}
    assert {task.hops for task in tasks} >= set(range(1, 8))
    used = {call["tool"] for task in tasks for call in task.provenance["calls"]}
    assert used == {tool for domain in GOALS for tool in find_world(domain, {}).definition(0, 8).tools}
    assert 12 < sum(bool(task.answers) for task in tasks) < 36
    joined = [task for task in tasks if "that booking" in task.question or "that meeting" in task.question or "that item" in task.question]
    assert len(joined) > 12 and all(task.constraints > 1 for task in joined)


def test_no_two_are_the_same_and_seeds_repeat_them(tasks: list[Task]) -> None:
    assert len({task.key for task in tasks}) == len(tasks)
    assert list(generate_tasks(12, seed=3)) == tasks[:12]
    for other in (generate_tasks(12, seed=4), generate_tasks(12, seed=3, split="dev")):
        assert {task.key for task in other}.isdisjoint(task.key for task in tasks)


def test_what_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="casino"):
        list(generate_tasks(1, 0, ToolWorldConfig(domains=("casino",))))
    monkeypatch.setitem(GOALS, "bookings", (Goal("never", "?", "SELECT 1 FROM flights WHERE 0", ()),))
    with pytest.raises(RequestError, match="bookings"):
        list(generate_tasks(1, 0, ToolWorldConfig(domains=("bookings",), asked_share=0.0, max_goals=1)))


TASKS = [
    Task(
        f"tool-world-library-{number:04x}",
        "tool_world",
        f"Do thing {number}.",
        ("yes",) if number % 4 == 0 else (),
        provenance={"world": {"domain": "public_library"}, "reference": {} if number % 4 == 0 else {"books/B1/copies": number}},
    )
    for number in range(400)
]


def config(**shares: object) -> WrittenWorldsConfig:
    return WrittenWorldsConfig.model_validate({"descriptions": ["x"], **shares})


def test_each_task_is_for_one_thing_as_often_as_is_wanted_and_the_same_again() -> None:
    shares = config(held_out=0.25, demonstrated=0.5, conversations=0.5, suite="exam")
    shared = share_out(TASKS, shares, seed=1)
    assert shared == share_out(TASKS, shares, seed=1) != share_out(TASKS, shares, seed=2)
    parts, backwards = [shared.trained, shared.held_out, shared.demonstrated], share_out(TASKS[::-1], shares, seed=1)
    assert [part[::-1] for part in parts] == [backwards.trained, backwards.held_out, backwards.demonstrated], "whatever the others are"
    assert sorted(goal_in_words(task) for part in parts for task in part) == sorted(task.question for task in TASKS)
    assert len(shared.held_out) == pytest.approx(100, abs=30) and len(shared.demonstrated) == pytest.approx(150, abs=30)
    assert {task.split for task in shared.held_out} == {"exam"} and {task.split for task in shared.demonstrated} == {"demonstration"}
    assert {task.split for task in shared.trained} == {"train"}


def test_a_user_has_the_question_as_their_goal_and_the_policy_is_not_told_it() -> None:
    shared = share_out(TASKS, config(conversations=1.0), seed=1)
    users = {task.key.removesuffix("-user"): task for task in shared.trained if "user" in task.provenance}
    assert users.keys() == {task.key for task in TASKS if not task.answers}, "what only asks has no user: its answer is the policy's own"
    for task in (task for task in TASKS if task.key in users):
        asked = users[task.key]
        assert task.question not in asked.question and "public library" in asked.question
        assert asked.provenance == {**task.provenance, "user": {"goal": task.question}}
        assert replace(asked, key=task.key, question=task.question, provenance=task.provenance) == task
    assert len({task.question for task in users.values()}) == len(users)
