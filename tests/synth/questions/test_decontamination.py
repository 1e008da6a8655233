"""What meets an evaluation set is found however it is written, and what is only alike in wording is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from synth.questions.decontamination import Contamination, DecontaminationConfig, EvaluationIndex, read_evaluation_set
from warehouse.errors import RequestError
from warehouse.records import Example, Part, PartKind, Task, Triple

QUESTION = "metropolis of nation of hometown of employer of friend of rival of mentor of neighbour of cousin of sibling of Amber Stone?"
FORMULA = (
    ("C@Amber Stone", "friend", "V@a"),
    ("V@a", "employer", "V@b"),
    ("V@b", "hometown", "V@c"),
    ("V@c", "country", "V@d"),
    ("V@d", "capital", "?"),
)
EVALUATED = Task("e1", "search", QUESTION, ("Blue River",), FORMULA, "held_out")
PLAIN = Task("e2", "search", "Which river did the painter of the last supper of the north cross in the winter of that year?", ("x",))
INDEX = EvaluationIndex.of({"held_out": [EVALUATED], "plain": [PLAIN]})


RENAMED = tuple((s.replace("V@", "V@z"), r, o.replace("V@", "V@z")) for s, r, o in reversed(FORMULA))
OF_ANOTHER = tuple((s.replace("Amber", "Jade"), r, o) for s, r, o in FORMULA)
TEMPLATE = QUESTION.replace("Amber Stone", "Jade Wolf")


@pytest.mark.parametrize(
    ("question", "formula", "kind"),
    [
        (QUESTION.upper().replace("?", " ?"), (), Contamination.SAME_QUESTION),
        ("What is it?", RENAMED, Contamination.SAME_FORMULA),
        ("What is it?", OF_ANOTHER, None),
        ("the " + QUESTION, (), Contamination.NEAR_DUPLICATE),
        (TEMPLATE, (), None),
    ],
)
def test_a_question_is_found_by_its_words_and_its_formula(question: str, formula: tuple[Triple, ...], kind: Contamination | None) -> None:
    hit = INDEX.hit(question, Task("t", "search", question, ("y",), formula))
    assert (hit and (hit.kind, hit.suite, hit.task)) == (kind and (kind, "held_out", "e1"))
    assert hit is None or (0.8 <= hit.similarity < 1) is (kind is Contamination.NEAR_DUPLICATE)
    assert INDEX.wording.matches(TEMPLATE), "alike enough to be a candidate"


@pytest.mark.parametrize(
    ("evaluated", "asked"),
    [
        ("Les Mis\u00e9rables, by whom?", "les mise\u0301rables by whom"),
        ("Which 3 m\u00b2 room?", "which \uff13 m2 room"),
        ("黑澤明の映画の主演は誰ですか?", "黑澤明の映画の主演は誰でしたか。"),
    ],
)
def test_other_code_points_and_scripts_without_blanks_hide_nothing(evaluated: str, asked: str) -> None:
    index = EvaluationIndex.of({"s": [Task("e", "search", evaluated, ("x",))]}, DecontaminationConfig(threshold=0.6))
    assert index.hit(asked) is not None
    assert index.hit("黑澤明は何年に生まれましたか?") is None


def test_examples_are_held_by_their_question_and_by_what_they_contain() -> None:
    asked = Example("x1", "fas_reason", (Part(PartKind.QUESTION, QUESTION), Part(PartKind.ANSWER, "no", True)), ())
    holding = Example("x2", "document", (Part(PartKind.DOCUMENT, f"It was asked: {PLAIN.question} Nobody knew.", True),), ())
    clear = Example("x3", "document", (Part(PartKind.DOCUMENT, "Amber Stone lives in Blue River.", True),), ())
    kept, removed = INDEX.clear_examples([asked, holding, clear])
    assert kept == [clear]
    assert [failure.kind for failure in removed] == ["same_question", "contained_question"]
    assert removed[0].item == {"example": "x1", "suite": "held_out", "against": "e1", "similarity": 1.0}


def test_evaluation_sets_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "One?", "id": 7}\n\n{"prompt": "def two():"}\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"question": "Three?", "id": 1}\n{"question": "Third?", "id": 1}\n'))
    (tmp_path / "c.jsonl").write_text('{"question": "Who\u2028is\x85it?"}\r\n\n')
    (tmp_path / "c.json").write_text(json.dumps([{"question": "Four?"}]))
    read = {name: read_evaluation_set(tmp_path / name) for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl")}
    questions = [[task.question for task in tasks] for tasks in read.values()]
    assert questions == [["One?", "def two():"], ["Three?", "Third?"], ["Who\u2028is\x85it?"]]
    assert len({task.key for task in read["b.jsonl.gz"]}) == 2
    config = DecontaminationConfig(against={"c": tmp_path / "c.json"})
    hit = EvaluationIndex.of({}, config).hit("four")
    assert hit is not None and hit.suite == "c"
    (tmp_path / "broken.jsonl").write_text('{"question": "One?"}\n{"text": 3}\n')
    for name in ("broken.jsonl", "absent.jsonl"):
        with pytest.raises(RequestError, match=name):
            read_evaluation_set(tmp_path / name)


@pytest.mark.parametrize("content", ["", "[]", '{"question": " "}'])
def test_an_empty_evaluation_set_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(content)
    with pytest.raises(RequestError, match=r"set\.jsonl"):
        read_evaluation_set(tmp_path / "set.jsonl")
