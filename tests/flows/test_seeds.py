"""Questions of a folder of pages alone: into the lake, over real HTTP servers, once only, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flows.report.yields import counted_words, read_yields, survival
from flows.stages.synthesis.sources import Material
from synth.corpora.passages import readable
from synth.corpora.seed_questions import CHECKS
from synth.questions.text_comparison import mentions
from tests.flows.homes import SMALL, home_at
from tests.flows.test_expansions import make, teacher_at, yields_of
from tests.killing import kill_once
from tests.synth.corpora.notes import asking_model, write_notes
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Lake
from warehouse.errors import RequestError

FILMS = 24
FLYWHEEL = Path(sys.executable).with_name("flywheel")


def settings(pages: Path, count: int = 40) -> list[str]:
    own = ["corpus.kind=pages", f"corpus.path={pages}", f"synth.seeds.count={count}", "synth.seeds.passages=2"]
    return ["corpus.train={}", "corpus.held_out={}", *own]


@pytest.mark.slow
def test_pages_become_questions_and_every_drop_has_its_reason(tmp_path: Path) -> None:
    pages = write_notes(tmp_path / "notes", FILMS)
    with (
        MisbehavingServer(answer=asking_model) as server,
        MisbehavingServer(answer=asking_model) as judge,
        Lake(tmp_path / "home") as lake,
    ):
        options = [*settings(pages), *teacher_at(server), *teacher_at(judge, "synth.judge")]
        make(tmp_path / "home", lake, options, ("t1-first",))
        tasks, failures, documents = lake.tasks(), lake.failures("seeds"), {each.id: each for each in lake.documents()}
        unreadable = [failure for failure in lake.failures("teacher") if failure.kind == "malformed"]
        figures, (part,) = yields_of(lake, "seeds"), read_yields(lake)
        unproven = lake.query("SELECT structure, teacher, proof, count(*) AS n FROM unproven GROUP BY ALL ORDER BY proof").to_pylist()
        reasons = {row["reason"] for row in lake.query("SELECT reason FROM synthesis_outcomes WHERE kind = 'seeds'").to_pylist()}
        calibrated = lake.query("SELECT DISTINCT kind FROM checks WHERE accepted").column(0).to_pylist()
    assert len(server.bodies) == len({json.dumps(body, sort_keys=True) for body in server.bodies}), "no request is repeated"
    assert judge.bodies and all(map(_reads, judge.bodies)) and not any(map(_reads, server.bodies))
    assert set(calibrated) == {"contradicts", "fits", "stated"}
    kinds = Counter(str(failure.kind) for failure in failures)
    dropped = {"quote_not_found", "object_not_named", "leaked", "number_not_stated", "contradicted", "second_answer"}
    assert dropped <= set(kinds) and reasons == set(kinds) - {"shortfall"} and unreadable
    assert len(tasks) >= 3
    for task in tasks:
        for each in task.provenance["projections"]:
            subject, value = each["subject"], each["object"]
            wanted = f"Person {int(subject.split()[1]) % 6}" if each["relation"] == "directed by" else f"Town {subject.split()[1]}"
            assert value == wanted, "a slip is nowhere kept, nor what two pages say differently"
    for fact in (fact for task in tasks for fact in task.provenance["projections"]):
        assert mentions(readable(documents[fact["document"]].text)[0], fact["quote"])
    assert {row["proof"] for row in unproven} == {"answers", "redundant"} and {row["teacher"] for row in unproven} == {"openai:m"}
    counts = [int(figures[name]) for name in ("walks", *CHECKS, "kept")]
    assert counts == sorted(counts, reverse=True) and counts[0] == 27 and counts[-1] == len(tasks)
    rows = survival(part.figures)
    assert [(row["met"], row["survived"]) for row in rows] == [*pairwise(counts[:-1]), (27, len(tasks))]
    assert f"outlined {counts[2]} of {counts[1]}" in counted_words(part.figures)


def _reads(body: dict[str, Any]) -> bool:
    return '{"verdict":' in body["messages"][-1]["content"]


@pytest.mark.engine
@pytest.mark.long
def test_a_killed_command_resumes_and_prints_the_yields(tmp_path: Path) -> None:
    pages, home = write_notes(tmp_path / "notes", FILMS), tmp_path / "home"
    with MisbehavingServer(answer=asking_model, slow_seconds=0.1) as server:
        options = [*settings(pages, 20), *teacher_at(server), "synth.teacher.concurrency=2"]
        command = [str(FLYWHEEL), "synth", "webshaper", "--profile", str(SMALL), "--home", str(home)]
        command += [part for option in options for part in ("--set", option)]
        kill_once(lambda: len(server.bodies) >= 30, command)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        asked = Counter(json.dumps(body, sort_keys=True) for body in server.bodies)
    assert ended.returncode == 0, ended.stderr
    assert sum(asked.values()) - len(asked) <= 2, "only what was in flight is asked again"
    assert all(check in ended.stdout for check in (*CHECKS, "kept"))


@pytest.mark.slow
def test_pages_that_were_edited_since_the_home_began_are_refused(tmp_path: Path) -> None:
    pages = write_notes(tmp_path / "notes", 4)
    first = sorted(pages.glob("*.md"))[0]
    text = first.read_text()
    with home_at(tmp_path / "home", *settings(pages), "synth.teacher.kind=openai", "synth.teacher.model=m") as context:
        assert Material(context, 1).sources.train.documents
        first.write_text(f"{text}\nIt was torn down in 1950.\n")
        with pytest.raises(RequestError, match="/notes have changed"):
            _ = Material(context, 2).sources
        first.write_text(text)
        assert Material(context, 2).sources.train.documents
