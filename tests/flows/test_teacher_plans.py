"""Plans by a teacher as a part of synthesis: over a real HTTP server, checked by the search, into the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config import load_config
from flows.context import RunContext
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.synthesis.stage import synthesise
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from tests.synth.writing_models import first_order_model
from warehouse import Lake

SMALL = Path(__file__).parent.parent / "end_to_end" / "small.toml"


@pytest.mark.slow
def test_a_teacher_plans_and_reasons_over_what_documents_say_and_bad_replies_are_rows(tmp_path: Path) -> None:
    with MisbehavingServer(answer=first_order_model) as server, Lake(tmp_path) as lake:
        teacher = ["synth.teacher.kind=openai", "synth.teacher.model=m", f"synth.teacher.base_url={server.url}"]
        options = [
            *teacher,
            "synth.fas.plans=teacher",
            "synth.fas.slice_reasoning=true",
            "synth.fas.plan_slices=8",
            "synth.fas.reasoning={}",
        ]
        context = RunContext(Home(tmp_path), load_config(str(SMALL), [*options, 'synth.fas.memory=["facts", "passages"]']), lake)
        run_attempt(lake, "t1-synth-fas", "synth", 1, {}, lambda run: synthesise(context, run, 1, "fas"))
        plans, chains, failures = lake.examples(["fas_plan"]), lake.examples(["fas_reason"]), lake.failures("synth")
        yields = {
            (row["part"], row["figure"]): row["value"] for row in lake.query("SELECT part, figure, value FROM synthesis_yields").to_pylist()
        }
        asked = len(server.bodies)
    assert plans and all("What is the" in plan.text for plan in plans)
    assert chains and all("so the answer follows" in chain.text for chain in chains)
    assert {"fas_plan_rests_on_nothing", "fas_plan_teacher_logic", "fas_reason_not_gold"} <= {failure.kind for failure in failures}
    assert yields["plans", "plans"] == len(plans) and yields["plans", "chains"] == len(chains)
    assert yields["plans", "asked"] + yields["calibration", "asked"] == asked == yields["plans", "completed"] + 20
