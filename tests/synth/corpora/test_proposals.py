"""Which facts describe a constant, what the words must show, alone and with the others of a layer, and the question that they form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl.retrieval.search import SearchIndex
from synth.corpora.grounding import TypedFact
from synth.corpora.outlines import Objection, Outline, ProposalDefect, QuotedFact
from synth.corpora.passages import Passage
from synth.corpora.proposals import (
    DescriptionVerdict,
    Layer,
    LeafExpansion,
    best_outline,
    merged_formula,
    merged_question,
    not_replaceable,
    objection_to_description,
    objection_to_merged,
    rival_of,
)
from tests.synth.corpora.harbour import COUNTY, DEEP, DOCUMENTS, FACT, GOOD, STAR, TASK, TWO, outline, quoted, stated
from warehouse import Document, Task

SURE = DescriptionVerdict(True, False)
INDEX = SearchIndex(DOCUMENTS)
LAYER = Layer(TASK, ("Blue River",))


def leaf(name: str, description: str, *facts: tuple[str, str, str], unknowns: tuple[str, ...] = ()) -> LeafExpansion:
    return LeafExpansion(outline(name, description, *(stated(*fact) for fact in facts), unknowns=unknowns), SURE, True)


AMBER = leaf("Amber Stone", "the one at Red Hill", ("Amber Stone", "school", "Red Hill"))
LAKE = leaf("Green Lake", "the town of some inn", ("An inn", "town", "Green Lake"), unknowns=("An inn",))


def test_the_widest_facts_that_fit_the_constant_alone_describe_it() -> None:
    assert best_outline(list(map(quoted, (FACT,))), LAYER, "Blue River", INDEX) == replace(GOOD, words="")
    deep = best_outline(list(map(quoted, (COUNTY, FACT, STAR))), LAYER, "Blue River", INDEX)
    assert isinstance(deep, Outline) and deep.documents == ["d1", "d2", "d3"][: len(deep.documents)] and len(deep.documents) > 1


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ((STAR,), ProposalDefect.NOT_ABOUT_CONSTANT),
        (({**FACT, "subject": "Green Lake"},), ProposalDefect.ALREADY_USED),
        (({**FACT, "subject": "the shore of Green Lake"},), ProposalDefect.ALREADY_USED),
        ((COUNTY,), ProposalDefect.NOT_UNIQUE),
    ],
)
def test_facts_that_cannot_describe_a_constant(facts: tuple[dict[str, str], ...], kind: str) -> None:
    found = best_outline(list(map(quoted, facts)), LAYER, "Blue River", INDEX)
    assert isinstance(found, Objection) and found.kind == kind


def test_a_name_listed_with_the_constant_fits_as_well() -> None:
    pages = [Document("f", "Sea", "Sea is a film by Ann Lee, starring Bo Orr, Cy Poe as Dan Elm, and Eve Fay.", "t")]
    for relation, name, rival in (("starring", "Bo Orr", "Cy Poe"), ("by", "Ann Lee", None)):
        fact = quoted(stated("Sea", relation, name, pages[0].text))
        assert rival_of(Outline((fact,), name), SearchIndex(pages)) == rival


def test_a_title_that_another_page_has_too_is_not_asked_about_unless_something_else_tells_them_apart() -> None:
    pages = [
        Document("f81", "Red Sea (1981)", "Red Sea is a film by Ann Lee, starring Bo Orr.", "t"),
        Document("f09", "Red Sea (2009)", "Red Sea is a film by Dan Elm, starring Cy Poe.", "t"),
    ]
    passage = Passage("f81#1", "f81", pages[0].title, pages[0].text)
    by, starring = (
        QuotedFact(TypedFact.model_validate(stated("Red Sea", relation, name, pages[0].text)), passage)
        for relation, name in (("by", "Ann Lee"), ("starring", "Bo Orr"))
    )
    index = SearchIndex(pages)
    assert rival_of(Outline((by,), "Ann Lee"), index) == "Red Sea (2009)"
    assert rival_of(Outline((by, starring), "Ann Lee"), index) is None, "only one of them stars Bo Orr"
    assert rival_of(Outline((by,), "Red Sea"), index) is None, "the title is the answer"
    assert rival_of(Outline((by,), "Ann Lee"), SearchIndex(pages[:1])) is None


@pytest.mark.parametrize(
    ("described", "kind"),
    [
        (GOOD, None),
        (DEEP, None),
        (replace(GOOD, words="the Blue River of Amber Stone"), ProposalDefect.LEAKED),
        (replace(GOOD, words="the thing that Amber Stone has in Green Lake"), ProposalDefect.LEAKED),
        (replace(GOOD, words="the workplace"), ProposalDefect.NOT_NAMED),
        (replace(GOOD, words="the workplace of Amber Stone since 1987"), ProposalDefect.NUMBER_NOT_STATED),
        (replace(DEEP, words="the workplace of Amber Stone, star of Quiet Field"), ProposalDefect.LEAKED),
        (replace(DEEP, words="the workplace of X, star of Quiet Field"), ProposalDefect.NOT_ASKED),
        (replace(GOOD, words="the workplace is where Amber Stone works"), ProposalDefect.NOT_ASKED),
    ],
)
def test_what_the_words_of_a_description_must_show(described: Outline, kind: str | None) -> None:
    objection = objection_to_description(described, LAYER)
    assert (None if objection is None else objection.kind) == kind


def test_descriptions_replace_all_names_at_once() -> None:
    """What a description says is not looked at again, though it spells another name in its own way."""
    swapped = leaf("Amber Stone", "the GREEN lake's star", ("Amber Stone", "r", "x"))
    assert merged_question(TWO, [swapped, LAKE]) == "film with the GREEN lake's star, shot in the town of some inn?"
    shouted = replace(TWO, question="AMBER STONE: film shot in green lake?")
    assert merged_question(shouted, [AMBER, LAKE]) == "the one at Red Hill: film shot in the town of some inn?"


def test_a_letter_that_folds_oddly_is_replaced_like_any_other() -> None:
    task = Task("k", "search", "lakes of Ilgaz and İzmir?", ("x",), (("?", "r", "C@ılgaz"), ("?", "s", "C@izmir")))
    expanded = [leaf("ılgaz", "the one", ("ılgaz", "r", "a")), leaf("izmir", "the other", ("izmir", "r", "b"))]
    assert not_replaceable(task, ["ılgaz", "izmir"]) == []
    assert merged_question(task, expanded) == "lakes of the one and the other?"


def test_the_formula_of_a_layer_has_a_variable_for_each_name_and_unknown() -> None:
    formula = merged_formula(TWO, [AMBER, LAKE])
    assert formula[: len(TWO.formula)] == (("?", "star", "V@x0"), ("?", "place", "V@x1")), "what was there comes first"
    assert set(formula[len(TWO.formula) :]) == {("V@x0", "school", "C@Red Hill"), ("V@x2", "town", "V@x1")}
    assert LAKE.outline.formula == (("V@x0", "town", "?"),)


@pytest.mark.parametrize(
    ("question", "leaves", "kind"),
    [
        (TWO.question, [AMBER, LAKE], None),
        ("film with Amber Stone (Ámber  Stone!), shot in Green Lake?", [AMBER, LAKE], ProposalDefect.LEAKED),
        (TWO.question, [AMBER, leaf("Green Lake", "the town near Amber-Stone", ("x", "r", "Green Lake"))], ProposalDefect.LEAKED),
        (TWO.question, [leaf("Amber Stone", "the one at An Inn", ("Amber Stone", "r", "x")), LAKE], ProposalDefect.LEAKED),
        (TWO.question, [AMBER, leaf("Green Lake", "it", ("x", "r", "Green Lake"), ("y", "r", "z"), unknowns=("y",))], "malformed_formula"),
    ],
)
def test_what_a_whole_layer_must_show(question: str, leaves: list[LeafExpansion], kind: str | None) -> None:
    objection = objection_to_merged(replace(TWO, question=question), leaves)
    assert (None if objection is None else objection.kind) == kind
