"""Tasks and documents of a user in a home: proven, judged, compared with the suites, imported once; wrong requests write nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.graders.verifiers import GRADERS, Grader
from flows.config import load_config
from flows.data.decontamination import decontaminate_home
from flows.data.imports import TaskImport, import_documents, import_tasks, prove
from flows.home import Home
from rl.retrieval.search import SearchIndex
from tests.flows.homes import SMALL, flywheel
from warehouse import DocumentSplit, Lake, Task
from warehouse.errors import RequestError

TOWNS = ("Lunden", "Norby", "Vesten")
ROWS = [{"id": n, "question": f"Who is the mayor of {town}, the town by the sea?", "answers": [town[::-1]]} for n, town in enumerate(TOWNS)]
QA = TaskImport("search", "qa_em")
SUITE = TaskImport("search", "qa_em", split="mayors")


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return written(tmp_path / "mayors.jsonl", *ROWS, "{")


def imported(*arguments: Any) -> dict[str, Any]:
    """The figures of an import, less the words of its first reason."""
    figures = import_tasks(*arguments)
    assert ("first_reason" in figures) == (figures["quarantined"] > 0)
    return {name: value for name, value in figures.items() if name != "first_reason"}


def counts(rows: int, read: int, new: int, **reasons: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"rows": rows, "quarantined": sum(reasons.values()), "reasons": reasons}
    return {**figures, "tasks": {"read": read, "new": new}} if read else figures


@pytest.mark.slow
def test_importing_twice_changes_nothing(rows: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert imported(rows, QA, home) == counts(4, 3, 3, broken_row=1)
    with Lake(home) as lake:
        before = (lake.tasks(), lake.failures())
    assert imported(rows, QA, home) == counts(4, 3, 0, broken_row=1)
    with Lake(home) as lake:
        assert (lake.tasks(), lake.failures()) == before
        (failure,) = lake.failures()
        assert (failure.stage, failure.kind, failure.item["file"], failure.item["line"]) == ("import", "broken_row", "mayors.jsonl", 4)


@pytest.mark.slow
def test_training_tasks_that_a_suite_asks_are_set_aside(rows: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    held_out = written(tmp_path / "test.jsonl", ROWS[0], {**ROWS[1], "question": f"Say it: {ROWS[1]['question']}"})
    assert imported(held_out, SUITE, home) == {**counts(2, 2, 2), "training_tasks_met": 0}
    assert imported(rows, QA, home) == counts(4, 1, 1, broken_row=1, near_duplicate=1, same_question=1)
    with Lake(home) as lake:
        assert [task.key for task in lake.tasks(split="train")] == ["mayors-2"]
        met = lake.failures("decontamination")
        assert {(failure.item["file"], failure.item["line"]) for failure in met} == {("mayors.jsonl", 1), ("mayors.jsonl", 2)}
        assert all("of mayors" in failure.reason for failure in met)


@pytest.mark.slow
def test_a_later_suite_is_reported_and_decontaminate_removes_its_tasks(rows: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    import_tasks(rows, QA, home)
    held_out = written(tmp_path / "test.jsonl", ROWS[0])
    told = flywheel(
        "import", "tasks", held_out, "--split", "mayors", "--environment", "search", "--verifier", "qa_em", "--home", home
    )  # fmt: skip
    assert "'mayors'" in told and "1 training tasks" in told and f"flywheel decontaminate --home {home}" in told
    assert decontaminate_home(home, {})[0]["removed"] == 1
    with Lake(home) as lake:
        assert sorted(task.key for task in lake.tasks()) == ["mayors-1", "mayors-2", "mayors-test-0"]
    Home(home).claim(load_config(SMALL))
    assert {row["suite"]: row["removed"] for row in decontaminate_home(home, {})} == {"mayors": 1}


@pytest.mark.slow
def test_an_id_with_other_content_is_a_conflict_unless_its_source_is_named(rows: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    import_tasks(rows, QA, home)
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other" / "mayors.jsonl", {**ROWS[0], "answers": ["x"]})
    assert import_tasks(other, QA, home)["reasons"] == {"conflict": 1}
    assert import_tasks(other, TaskImport("search", "qa_em", source="others"), home)["tasks"] == {"read": 1, "new": 1}
    with Lake(home) as lake:
        (conflict,) = (failure for failure in lake.failures() if failure.kind == "conflict")
        assert "--source NAME" in conflict.reason and conflict.item["line"] == 1
        assert {task.key for task in lake.tasks()} == {"mayors-0", "mayors-1", "mayors-2", "others-0"}


GIVEN = ("--environment", "search", "--verifier", "qa_em")
WRONG = (
    (["tasks", "--verifier", "qa_em"], "--environment"),
    (["tasks", "--environment", "search", "--verifier", "judge"], "--verifier judge"),
    (["tasks", "--environment", "os:system", "--verifier", "qa_em"], "'os:system'"),
    (["tasks", *GIVEN, "--split", "Mine!"], "Mine!"),
    (["tasks", *GIVEN, "--split", "../x"], "../x"),
    (["tasks", *GIVEN, "--options", "{"], "JSON"),
    (["tasks", *GIVEN, "--options", '{"x": 1}'], "'x'; it has set"),
    (["tasks", *GIVEN, "--column", "id=q"], "'q'; it has id, question"),
    (["documents", "--verifier", "qa_em"], "--verifier"),
    (["documents", "--split", "eval"], "--split 'eval'"),
)


def test_a_wrong_request_is_one_sentence_and_nothing_is_written(rows: Path, tmp_path: Path) -> None:
    for (kind, *options), named in WRONG:
        with pytest.raises(RequestError) as refused:
            flywheel("import", kind, rows, *options, "--home", tmp_path / "home")
        assert named in str(refused.value) and "\n" not in str(refused.value), options
    assert [path.name for path in tmp_path.iterdir()] == ["mayors.jsonl"]


@pytest.mark.slow
def test_documents_come_in_by_row_or_by_page_and_searches_find_them(tmp_path: Path) -> None:
    home, pages = tmp_path / "home", tmp_path / "pages"
    pages.mkdir()
    (pages / "norby.md").write_text("# Norby\n\nNorby is a town whose mayor is Ole Dahl.")
    (pages / "empty.md").write_text("")
    towns = written(tmp_path / "towns.jsonl", {"id": "1", "title": "Lunden", "text": "A town by the sea."}, {"id": "2", "title": "x"})
    assert import_documents(towns, home)["documents"] == {"read": 1, "new": 1}
    for new in (1, 0):
        figures = import_documents(pages, home)
        assert (figures["documents"], figures["reasons"]) == ({"read": 1, "new": new}, {"empty_page": 1})
    hidden = import_documents(pages, home, split="heldout")
    assert hidden["reasons"] == {"empty_page": 1, "conflict": 1}, "who may find it is said of a document that is there, and not changed"
    written(towns, {"id": "1", "title": "Lunden", "text": "Another town."})
    assert import_documents(towns, home)["reasons"] == {"conflict": 1}
    assert import_documents(towns, home, "others")["documents"] == {"read": 1, "new": 1}
    with Lake(home) as lake:
        documents = lake.documents()
    kept = {(document.id, document.source) for document in documents}
    assert kept == {("towns:1", "towns"), ("pages:norby.md", "pages"), ("others:1", "others")}
    assert {document.split for document in documents} == {DocumentSplit.ALL}
    import_documents(towns, home, "hidden", "heldout")
    with Lake(home) as lake:
        assert [document.split for document in lake.documents("hidden")] == [DocumentSplit.HELD_OUT]
    assert SearchIndex(documents).find("mayor of Norby", 1).documents[0].title == "Norby"


def task(number: int, answers: Any, verifier: str, **more: Any) -> Task:
    place = {"file": "rows.jsonl", "line": number}
    solution = {"solution": more.pop("solution")} if "solution" in more else {}
    provenance = {"place": place, "verifier": verifier, **more}
    return Task(str(number), "python", f"question {number}?", tuple(answers), provenance=provenance, proofs=solution)


KINDS: tuple[tuple[str, list[Any], dict[int, str]], ...] = (
    ("qa_em", [["Ann"], ["C++", "Cpp"], ["The The"], ["3.5"], ["red; blue"], ["Vitamin A"], ["¡Sí!"], ["北京"], ["a"], ["O'Neil"]], {}),
    ("squad_em", [["Ann"], ["the"], ["50%"], ["!!!"]], {}),
    ("gsm8k", [["8"], ["1,000"], ["many"], ["-3.5"], ["8", "eight legs"]], {3: "not_judgeable", 5: "not_judgeable"}),
    ("number", [["5 kg"], ["3.2"], ["soon"], ["1e3"]], {3: "not_judgeable"}),
    ("date", [["2 May 1999"], ["1999"], ["soon"]], {3: "not_judgeable"}),
    ("math", [["1/2"], ["x^2+1"], ["\\frac{"], ["\\frac{1}{2}"]], {3: "not_judgeable"}),
)


@pytest.mark.parametrize(("verifier", "rows", "faults"), KINDS)
def test_golds_that_cannot_be_read_are_set_aside(verifier: str, rows: list[Any], faults: dict[int, str]) -> None:
    proof = prove([task(number, row, verifier) for number, row in enumerate(rows, start=1)], GRADERS[verifier])
    assert {failure.item["line"]: failure.kind for failure in proof.failures} == faults
    assert len(proof.proven) == len(rows) - len(faults) and not proof.unproven


def test_a_verifier_that_tells_nothing_apart_admits_nothing() -> None:
    rules: dict[str, Any] = {
        "every wrong answer passes": lambda answer, golds, options: (1.0, bool(answer.strip())),
        "an empty answer passes": lambda answer, golds, options: (1.0, True),
        "its own accepted answer 'Ann' does not pass": lambda answer, golds, options: (0.0, False),
    }
    for reason, rule in rules.items():
        proof = prove([task(1, ["Ann"], "mine"), task(2, ["Bob"], "mine")], Grader("mine", "1", rule))
        assert not proof.proven and [failure.kind for failure in proof.failures] == ["not_proven", "not_proven"]
        assert reason in proof.failures[0].reason, proof.failures[0].reason


ADD = "def add(a, b):\n    return a + b\n"
LISTED = {"test_list": ["assert add(1, 2) == 3"]}
CODE = (
    (LISTED, ADD, None),
    (LISTED, ADD.replace("+", "-"), "does not pass"),
    (LISTED, None, None),
    ({"test_list": ["assert True"]}, None, "cannot judge it"),
    ({"test_list": ["assert add(1, 2) =="]}, ADD, "cannot judge it"),
    ({"test": "x"}, ADD, "gold has no entry_point"),
    ({"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"}, ADD, None),
    ({"test": "def check(candidate):\n    assert candidate(1, 2) == 4\n", "entry_point": "add"}, ADD, "does not pass"),
)


@pytest.mark.slow
def test_tests_of_code_take_the_solution_and_refuse_a_wrong_program() -> None:
    """Within the time for proofs; later ones are admitted unproven and counted."""
    rows = enumerate(CODE, start=1)
    tasks = [task(n, [json.dumps(gold)], "code", **({} if given is None else {"solution": given})) for n, (gold, given, _) in rows]
    proof = prove(tasks, GRADERS["code"])
    told = {failure.item["line"]: failure.reason for failure in proof.failures}
    assert told.keys() == {number for number, (_, _, reason) in enumerate(CODE, start=1) if reason}
    assert all(CODE[line - 1][2] in reason for line, reason in told.items()), told  # type: ignore[operator]
    late = prove(tasks[:3], GRADERS["code"], seconds=-1)
    assert (len(late.proven), late.unproven, late.failures) == (3, 3, [])


def test_rows_choose_their_loop_dialect_and_tools_among_what_the_home_lists(tmp_path: Path) -> None:
    chosen = [{"how": "langgraph"}, {"how": "", "offered": ["search"]}, {"how": "os:system"}, {"how": "mine", "offered": "search, open"}]
    path = written(tmp_path / "rows.jsonl", *({**row, **one} for row, one in zip([*ROWS, {**ROWS[0], "id": 9}], chosen, strict=True)))
    wanted = TaskImport("search", "qa_em", columns={"loop": "how", "tools": "offered"}, dialect="chat", tools="read")
    home = tmp_path / "home"
    Home(home).claim(load_config("quickstart", ["rollout.loops={mine='my.py:Loop'}"]))
    assert imported(path, wanted, home) == counts(4, 3, 3, broken_row=1)
    with Lake(home) as lake:
        found = {task.key: task.provenance["rollout"] for task in lake.tasks()}
        (failure,) = lake.failures()
    assert found == {
        "rows-0": {"loop": "langgraph", "dialect": "chat", "tools": ["read"]},
        "rows-1": {"dialect": "chat", "tools": ["search"]},
        "rows-9": {"loop": "mine", "dialect": "chat", "tools": ["search", "open"]},
    }
    assert "the loop 'os:system' is none of harness, langgraph, mine, react" in failure.reason


@pytest.mark.parametrize("wanted", [{"loop": "os:system"}, {"dialect": "nonsense"}])
def test_a_choice_that_the_home_does_not_list_is_refused(rows: Path, tmp_path: Path, wanted: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"list your own under rollout\."):
        import_tasks(rows, TaskImport("search", "qa_em", **wanted), tmp_path / "home")
    assert not (tmp_path / "home").exists()
