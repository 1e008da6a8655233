"""Plans by a teacher as a part of synthesis: over a real HTTP server, checked by the search, into the lake."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.run_stage import run_attempt
from flows.stages.synthesis.stage import synthesise
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Lake
from warehouse.errors import RequestError

SMALL = Path(__file__).parent.parent / "end_to_end" / "small.toml"


def planned(body: dict[str, Any]) -> str:
    """A question that the first statement answers, the same resting on nothing, and chatter."""
    found = re.search(r"1\. ([^:]+): (.*) ([A-Z]\w*(?: [A-Z]\w*)*|\d+)$", body["messages"][-1]["content"].split("\n2. ")[0])
    assert found is not None, body["messages"][-1]["content"][:300]
    entity, relation, value = found.groups()
    good = {"style": "factual", "question": f"What is the {relation} of {entity}?", "answer": value, "requires": [1]}
    lines = [{**good, "plan": [relation], "query": entity}, {**good, "requires": [], "plan": [relation], "query": entity}]
    return "\n".join(["Here you are:", *map(json.dumps, lines)])


@pytest.mark.slow
def test_a_teacher_plans_over_what_documents_say_and_bad_plans_are_rows(tmp_path: Path) -> None:
    with MisbehavingServer(answer=planned) as server, Lake(tmp_path) as lake:
        teacher = ["synth.teacher.kind=openai", "synth.teacher.model=m", f"synth.teacher.base_url={server.url}"]
        options = [*teacher, "synth.fas.plans=teacher", "synth.fas.plan_slices=8"]
        context = RunContext(Home(tmp_path), load_config(str(SMALL), options), lake)
        run_attempt(lake, "t1-synth-fas", "synth", 1, {}, lambda run: synthesise(context, run, 1, "fas"))
        plans, failures = lake.examples(["fas_plan"]), lake.failures("synth")
        asked = len(server.bodies)
    assert asked == 8 and plans
    assert all("What is the" in plan.text for plan in plans)
    assert {"fas_plan_unreadable", "fas_plan_rests_on_nothing"} <= {failure.kind for failure in failures}


def test_plans_by_a_teacher_that_is_not_there_are_refused() -> None:
    with pytest.raises(RequestError, match=r"fas\.plans asks for one: set synth\.teacher\.kind"):
        load_config(str(SMALL), ["synth.fas.plans=teacher"])
