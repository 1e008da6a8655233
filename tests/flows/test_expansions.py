"""Synthesis with a teacher over a real HTTP server: expansions, direct attempts, rewordings and plans, each paid for once."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.plan import SynthesisKind
from synth.corpora.expander import SYSTEM
from synth.questions.difficulty import DIRECT
from synth.questions.rewording import RewordingDefect
from tests.flows import homes
from tests.synth.scripted import LABELLED, calling, verdict
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from tests.synth.writing_models import asked_in, first_order_model
from warehouse import Lake, Outcome

FEW = ("corpus.train.entities=150", "corpus.held_out.entities=150")


def festival_films(folder: Path, count: int = 80) -> list[str]:
    """Films whose maker is theirs alone, and whose festival no fact names; returns the settings that read them."""
    folder.mkdir()
    known = [("director", "Person", 7), ("city", "Place", 5), ("maker", "Studio", count)]
    rows = [f"Film {n},{relation},{kind} {n % many},d{n}\n" for n in range(count) for relation, kind, many in known]
    (folder / "facts.csv").write_text("subject,relation,object,documents\n" + "".join(rows))
    said = [" ".join(f"Film {n} {relation} {kind} {n % many}." for relation, kind, many in known) for n in range(count)]
    texts = [f"{text} Film {n} festival Fest {n}." for n, text in enumerate(said)]
    lines = [json.dumps({"id": f"d{n}", "title": f"Film {n}", "text": text}) + "\n" for n, text in enumerate(texts)]
    (folder / "documents.jsonl").write_text("".join(lines))
    return ["corpus.kind=files", f"corpus.path={folder}", "corpus.train={}", "corpus.held_out={}"]


def agent(body: dict[str, Any]) -> str:
    """States of a film what its number says: its maker, its festival, what others share, or what no document does."""
    messages = [message["content"] for message in body["messages"]]
    if messages[0] != SYSTEM:
        if named := re.search(r"The phrase names (.*)\. Reply", messages[-1]):
            return json.dumps({"description": f"the film of {named[1]}"})
        read = "kind of thing" in messages[-1] or "Does the passage" in messages[-1]
        return LABELLED.get(messages[-1], verdict("yes") if read else "I cannot say.")
    name = re.search(r"Name: Film (\d+)\nNo fact may be about: (.*)", messages[1])
    assert name is not None
    number, hidden = int(name[1]), name[2]
    if len(messages) == 2:
        return calling("search", query=f"Film {number}")
    festival, maker = ("festival", f"Fest {number}"), ("maker", f"Studio {number}")
    shared = ("city", f"Place {number % 5}") if hidden.startswith("Person") else ("director", f"Person {number % 7}")
    choices = {0: ("festival", "Nowhere"), 1: festival if hidden.startswith("Studio") else maker, 3: shared}
    relation, value = choices.get(number % 4, festival)
    quote = f"Film {number} {relation} {value}"
    return json.dumps([{"subject": f"Film {number}", "relation": relation, "object": value, "quote": quote}])


def teacher_at(server: MisbehavingServer, key: str = "synth.teacher") -> list[str]:
    return [f"{key}.kind=openai", f"{key}.model=m", f"{key}.base_url={server.url}"]


def make(
    root: Path, lake: Lake, options: list[str], runs: tuple[str, ...] = ("t1-first", "t1-again"), kind: SynthesisKind = "webshaper"
) -> None:
    """Runs of one kind of synthesis."""
    context = RunContext(Home(root), load_config(homes.SMALL, options), lake)
    for run_id in runs:
        homes.make(context, kind, run_id=run_id)


def yields_of(lake: Lake, part: str) -> dict[str, float]:
    rows = lake.query("SELECT figure, value FROM synthesis_yields WHERE run = 't1-first' AND part = ?", [part]).to_pylist()
    return {row["figure"]: row["value"] for row in rows}


@pytest.mark.long
@pytest.mark.slow
def test_questions_are_expanded_and_no_request_is_repeated(tmp_path: Path) -> None:
    with MisbehavingServer(answer=agent) as server, Lake(tmp_path / "home") as lake:
        options = [*festival_films(tmp_path / "data"), 'synth.webshaper.counts={"1":30}', "synth.expander.count=24"]
        make(tmp_path / "home", lake, [*options, *teacher_at(server)])
        tasks = {task.key: task for task in lake.tasks(split="train")}
        runs, failures = lake.trajectories("stage = 'expander'"), lake.failures("expander")
        unproven = {row["task_key"] for row in lake.query("SELECT DISTINCT task_key FROM unproven").to_pylist()}
        figures = yields_of(lake, "expansions")
    assert len(server.bodies) == len({json.dumps(body, sort_keys=True) for body in server.bodies}), "nothing is asked twice"
    made = [task for task in tasks.values() if "expanded_from" in task.provenance]
    reasons = Counter(failure.kind for failure in failures)
    assert reasons["quote_not_found"] + reasons["not_unique"] == 2 * reasons["layer_incomplete"], "a second run is tried"
    assert len(made) + reasons["layer_incomplete"] == 24 and reasons["not_unique"] and reasons["quote_not_found"]
    assert len(runs) == 24 + reasons["layer_incomplete"] and {run.outcome for run in runs} == {Outcome.SUCCESS, Outcome.FAILURE}
    assert {task.key for task in made if "Fest" in task.question} == unproven
    assert any("Studio" in task.question for task in made), "and what the graph knows is proven"
    for task in made:
        before = tasks[task.provenance["expanded_from"]]
        assert task.answers == before.answers and task.layers == before.layers + 1
        assert (task.key in unproven) == ("answers" in task.proofs["unproven"]) == (task.proofs["defined"] is None)
    assert (figures["questions"], figures["expanded"], figures["runs"]) == (24, len(made), len(runs))
    assert figures["asked"] == figures["completed"] and figures["tokens"] > 0


def knows_even_films(body: dict[str, Any]) -> str:
    """The directors of films with an even number, by the formula that the corpus follows."""
    asked = re.search(r"director of Film (\d+)", body["messages"][-1]["content"])
    return f"Person {int(asked[1]) % 7}, I believe." if asked and int(asked[1]) % 2 == 0 else "I do not know."


@pytest.mark.slow
def test_direct_attempts_ask_the_teacher(tmp_path: Path) -> None:
    with MisbehavingServer(answer=knows_even_films) as server, Lake(tmp_path / "home") as lake:
        options = [*festival_films(tmp_path / "data"), 'synth.webshaper.counts={"1":6}', "synth.direct_attempts.attempts=1"]
        make(tmp_path / "home", lake, [*options, *teacher_at(server)], ("t1-first",))
        tasks, failures = lake.tasks(split="train"), lake.failures("synth")
    assert len(tasks) + sum(failure.kind == DIRECT for failure in failures) == 6 == len(server.bodies)
    assert all("direct_attempts" in task.provenance for task in tasks)


def reworded(body: dict[str, Any]) -> str:
    """The question in other words, where it is short; else as it was."""
    question = asked_in(body).removesuffix("?")
    return f"Can you tell me the {question}?" if question.count(" of ") < 2 else question


@pytest.mark.slow
def test_questions_are_reworded_and_no_request_is_repeated(tmp_path: Path) -> None:
    with MisbehavingServer(answer=reworded) as server, Lake(tmp_path) as lake:
        make(tmp_path, lake, [*FEW, *teacher_at(server), "synth.webshaper.counts={1=6, 2=6}", "synth.rewording.relations=words"])
        tasks = {task.key: task for task in lake.tasks(split="train")}
        dropped = [failure for failure in lake.failures("rewording") if failure.kind == RewordingDefect.UNCHANGED]
        asked = len(server.bodies)
    made = [task for task in tasks.values() if "reworded_from" in task.provenance]
    assert made and dropped
    for task in made:
        before = tasks[task.provenance["reworded_from"]]
        assert task.question == f"Can you tell me the {before.question}"
        assert (task.formula, task.answers, task.hops) == (before.formula, before.answers, before.hops)
    assert len(made) + len(dropped) / 3 == len(tasks) - len(made), "a rewording that is dropped was written three times"
    assert len(made) + len(dropped) == asked


@pytest.mark.slow
def test_a_teacher_plans_and_reasons_over_what_documents_say_and_bad_replies_are_rows(tmp_path: Path) -> None:
    with MisbehavingServer(answer=first_order_model) as server, Lake(tmp_path) as lake:
        options = ["synth.fas.plans=teacher", "synth.fas.slice_reasoning=true", "synth.fas.plan_slices=8", "synth.fas.reasoning={}"]
        make(tmp_path, lake, [*teacher_at(server), *options, 'synth.fas.memory=["facts", "passages"]'], ("t1-synth-fas",), "fas")
        plans, chains, failures = lake.examples(["fas_plan"]), lake.examples(["fas_reason"]), lake.failures("synth")
        rows = lake.query("SELECT part, figure, value FROM synthesis_yields").to_pylist()
        yields = {(row["part"], row["figure"]): row["value"] for row in rows}
        asked = len(server.bodies)
    assert plans and all("What is the" in plan.text for plan in plans)
    assert chains and all("so the answer follows" in chain.text for chain in chains)
    assert "fas_plan_rests_on_nothing" in {failure.kind for failure in failures}
    assert yields["plans", "plans"] == len(plans) and yields["plans", "chains"] == len(chains)
    assert yields["plans", "asked"] + yields["calibration", "asked"] == asked == yields["plans", "completed"] + 20
    assert yields["plans", "first_try"] > yields["plans", "repaired"] > 0
