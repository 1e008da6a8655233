"""Worked examples in prompts: each is done as its prompt asks, and a reply that copies one is a failure."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import TypeAdapter

from synth.corpora import counter_evidence, seed_questions, statements
from synth.fas import memory_plans, reasoning
from synth.has import proposers
from synth.questions import rewording
from synth.teachers.teacher import INVENTED, Ending, Fault, judged, read_json
from warehouse.records import Completion, Failure, Request, user

Examples = tuple[tuple[str, str], ...]
OF_A_FORM: dict[str, tuple[Examples, TypeAdapter[Any]]] = {
    "formula": (rewording.READINGS, rewording._FORMULA),
    "facts": (statements.EXAMPLES, statements.STATEMENTS),
    "wording": (seed_questions.WORDINGS, seed_questions.WORDED),
    "contradiction": (counter_evidence.CONTRADICTIONS, counter_evidence.VERDICT),
    "read answer": (counter_evidence.READ_ANSWERS, counter_evidence.READ),
    "answers": (counter_evidence.FOUND_ANSWERS, counter_evidence.FOUND),
    "question": (memory_plans._QUESTION_EXAMPLES, memory_plans._ROW),
    "plan": (memory_plans._PLAN_EXAMPLES, memory_plans._PLAN_ROW),
    "action": (proposers._TAKEN_EXAMPLES, proposers._ON_TEXT),
}
IN_WORDS: dict[str, Examples] = {
    "rewording": rewording.EXAMPLES,
    "first": reasoning._FIRSTS,
    "second": reasoning._SECONDS,
}
ALL = [example for examples in (*(examples for examples, _ in OF_A_FORM.values()), *IN_WORDS.values()) for example in examples]


def replied(text: str, request: Request) -> Completion:
    return Completion("c", "scripted", request.content, text, Ending.STOP, 1, 1)


@pytest.mark.parametrize("name", OF_A_FORM)
def test_an_example_has_the_form_that_is_asked_for(name: str) -> None:
    examples, shape = OF_A_FORM[name]
    for asked, reply in examples:
        assert not isinstance(read_json(replied(reply, user(asked)), shape), Failure)


def test_examples_in_words_are_what_is_read() -> None:
    assert len(ALL) >= 12 and all(named(asked) for asked, _ in ALL)
    assert all(reasoning._ANSWER.search(reply) for _, reply in (*reasoning._FIRSTS, *reasoning._SECONDS))
    for question, reworded in rewording.EXAMPLES:
        assert [name for name in INVENTED if name in question] == [name for name in INVENTED if name in reworded]


def test_a_quotation_of_an_example_stands_in_its_passage() -> None:
    for asked, reply in (*statements.EXAMPLES, *counter_evidence.CONTRADICTIONS, *counter_evidence.FOUND_ANSWERS):
        assert all(quote in asked for quote in re.findall(r'"quote": "([^"]+)"', reply))


def test_a_copied_example_is_a_failure_and_a_name_that_was_asked_about_is_none() -> None:
    """A reply that could be taken for one's own names something of the example."""
    for examples, _ in OF_A_FORM.values():
        request = user("Question: Where was Ann Lee born?", examples=examples)
        for _, reply in examples:
            copied = judged(replied(reply, request))
            assert not named(reply) or (isinstance(copied, Failure) and copied.kind == Fault.COPIED and copied.item["text"] == reply)
    asked = user("Where did Orla Vennick grow up?", examples=reasoning._SECONDS)
    assert isinstance(judged(replied("Orla Vennick grew up by the sea.", asked)), Completion)
    assert isinstance(judged(replied("ORLA VENNICK grew up in larkmereth.", asked)), Failure)
    assert isinstance(judged(replied("Sootlantor was born in Salem.", user("Where?", examples=rewording.EXAMPLES))), Failure)
    assert isinstance(judged(replied("Ann Lee was born in Salem.", user("Where?", examples=rewording.EXAMPLES))), Completion)
    copied, own = '{"subject": "Sootlantern", "relation": "written by"}', '{"subject": "Night Boat", "relation": "written by"}'
    assert isinstance(judged(replied(f"[{copied}, {own}]", user("Facts?"))), Completion), "a copied fact costs itself"
    assert isinstance(judged(replied(f"[{copied}]", user("Facts?"))), Failure)


def named(text: str) -> bool:
    return any(name in text for name in INVENTED)
