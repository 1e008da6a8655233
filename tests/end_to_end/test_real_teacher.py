"""Every path that a model writes, written by a real one: SmolLM2 in our own engine, held to its forms, over a user's pages.

Little of what 135 M parameters write is right, and the checks drop it. What is tested is that each path asks, reads and counts: no request
is lost, no reply of our own engine has another form than asked for, and what is kept passed its checks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flows.report.yields import read_yields
from synth.teachers.teacher import Fault
from tests.end_to_end.test_synthesis_by_models import imported_runs
from tests.end_to_end.towns import write_corpus
from warehouse import Lake

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1500)]

SIZES = (
    "corpus.kind=files",
    'wheel.stages=["cpt", "sft", "rl"]',
    'cpt.from=["fas", "has"]',
    "synth.webshaper.counts={1=2}",
    "synth.demonstration_questions.counts={1=2}",
    'synth.rewording={relations="words", variants=1}',
    "synth.direct_attempts={attempts=1}",
    "synth.seeds={count=2, passages=1, max_tokens=200}",
    "synth.expander={count=1, attempts=1, horizon=1, max_action_tokens=100}",
    'synth.fas={plan_slices=1, plans="teacher", slice_reasoning=true, reasoning={}, max_question_tokens=100, max_plan_tokens=100, '
    "max_reasoning_tokens=100}",
    "synth.has_count=1",
    "synth.documents=10",
    "synth.has={mixture={teacher=1.0}}",
    "evaluation.suites={}",
    "evaluation.gate={}",
    "synth.teacher.kind=engine",
    'synth.teacher.engine={dtype="auto", threads=2, max_model_len=4096, max_num_seqs=32, kv_cache_gib=1}',
)
PATHS = {"questions", "seeds", "rewordings", "expansions", "plans", "decisions of imported runs", "tool_worlds"}
"""Parts of synthesis that ask a model."""
WORLD = "A library. People borrow copies of books and give them back; each copy belongs to a branch."


def flywheel(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flows.cli", *arguments], capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which SmolLM2 has written on every path."""
    folder = tmp_path_factory.mktemp("real_teacher")
    model, home, corpus = folder / "smollm2", folder / "home", folder / "corpus"
    fetched = flywheel("model", "smollm2", "--to", str(model))
    if "cannot be fetched" in fetched.stderr:
        pytest.skip(fetched.stderr.strip().splitlines()[-1][:300])
    assert fetched.returncode == 0, fetched.stderr[-2000:]
    write_corpus(corpus)
    (folder / "library.md").write_text(WORLD)
    places = (f"corpus.path={corpus}", f"policy.path={model}", f"synth.teacher.path={model}")
    world = f'synth.tool_worlds={{descriptions=["{folder / "library.md"}"], tools=2, records=2, tasks=2, max_tokens=100}}'
    settings = [word for setting in (*places, *SIZES, world) for word in ("--set", setting)]
    imported_runs(home)
    for command in (
        ("synth", "--profile", "smollm2", *settings),
        ("rollout", "--policy", "teacher", "--tasks", "split = 'train'", "--horizon", "1"),
    ):
        done = flywheel(*command, "--home", str(home))
        assert done.returncode in (0, 2), done.stderr[-3000:]  # 2: nothing is left of what was asked for
    return home


def test_every_path_asks_and_each_request_is_accounted_for(home: Path) -> None:
    with Lake(home, read_only=True) as lake:
        parts = {each.part: each.figures for each in read_yields(lake)}
    asked = {part: counts for part, counts in parts.items() if counts.get("asked")}
    assert asked.keys() >= PATHS, parts
    for part, counts in asked.items():
        faults = sum(counts.get(fault, 0) for fault in Fault)
        assert counts["asked"] == counts.get("completed", 0) + faults and counts["tokens"] > 0, (part, counts)


def test_no_reply_of_our_own_engine_has_another_form_than_asked_for(home: Path) -> None:
    """The Expander calls tools, which is no form."""
    with Lake(home, read_only=True) as lake:
        wrong = lake.query("SELECT stage, reason FROM failures WHERE kind = 'malformed' AND stage <> 'expander'").to_pylist()
        shown = lake.query("SELECT count(*) AS n FROM completions WHERE json_exists(request, '$.form')").to_pylist()
    assert not wrong and shown[0]["n"] > 10


def test_what_is_kept_passed_its_checks(home: Path) -> None:
    with Lake(home, read_only=True) as lake:
        seeds = [task for task in lake.tasks() if task.provenance.get("shape") == "seed"]
        documents = {document.id: document.text for document in lake.documents()}
        played = lake.query("SELECT count(*) AS n FROM trajectories WHERE stage = 'demonstration' AND outcome <> 'invalid'").to_pylist()
    for task in seeds:
        for projection in task.provenance["projections"]:
            assert projection["quote"] in documents[projection["document"]]
    assert played[0]["n"] > 0
