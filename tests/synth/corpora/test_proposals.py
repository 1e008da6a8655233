"""What a proposal must show, alone, with the others of its layer, and in the question that they form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from synth.corpora.expander import DescriptionVerdict
from synth.corpora.grounding import GroundingDefect
from synth.corpora.proposals import (
    Layer,
    LeafExpansion,
    Objection,
    Proposal,
    ProposalDefect,
    definition_of,
    grounded,
    merged_formula,
    merged_question,
    not_replaceable,
    objection_to,
    objection_to_merged,
)
from tests.synth.corpora.harbour import BY_ID, DEEP, FACT, GOOD, STAR, TASK, TWO
from warehouse import Task

SURE = DescriptionVerdict(True, False)


def leaf(name: str, description: str, *facts: tuple[str, str, str], unknowns: tuple[str, ...] = ()) -> LeafExpansion:
    stated = [{"subject": s, "relation": r, "object": o, "quote": "q", "document": "d"} for s, r, o in facts]
    return LeafExpansion(name, Proposal.model_validate({"description": description, "facts": stated, "unknowns": unknowns}), SURE, True)


AMBER = leaf("Amber Stone", "the one at Red Hill", ("Amber Stone", "school", "Red Hill"))
LAKE = leaf("Green Lake", "the town of some inn", ("an inn", "town", "Green Lake"), unknowns=("an inn",))


@pytest.mark.parametrize(
    ("proposal", "kind"),
    [
        (GOOD, None),
        (DEEP, None),
        ({**GOOD, "facts": [{**FACT, "document": "d9"}]}, ProposalDefect.DOCUMENT_UNKNOWN),
        ({**GOOD, "facts": [{**FACT, "relation": "owner", "quote": "Amber Stone owns Blue River"}]}, GroundingDefect.QUOTE_NOT_FOUND),
        ({**GOOD, "description": "Blue River of Amber Stone"}, ProposalDefect.LEAKED),
        ({**GOOD, "description": "what Amber Stone has in Green Lake"}, ProposalDefect.LEAKED),
        ({**GOOD, "description": "the workplace"}, ProposalDefect.NOT_NAMED),
        ({**GOOD, "description": "the workplace of Amber Stone since 1987"}, ProposalDefect.NUMBER_NOT_STATED),
        ({**DEEP, "description": "the workplace of Amber Stone, star of Quiet Field"}, ProposalDefect.LEAKED),
        ({**DEEP, "facts": [STAR], "description": "the star of Quiet Field"}, ProposalDefect.NOT_ABOUT_CONSTANT),
        ({**DEEP, "unknowns": [], "description": "the workplace of Amber Stone, star of Quiet Field"}, ProposalDefect.CONSTANT_EDGE),
    ],
)
def test_what_a_proposal_must_show(proposal: dict[str, Any], kind: str | None) -> None:
    shown = grounded(Proposal.model_validate(proposal), BY_ID)
    objection = shown if isinstance(shown, Objection) else objection_to(shown, Layer(TASK, ("Blue River",)), "Blue River")
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
    assert definition_of(LAKE, "?") == (("V@u0", "town", "?"),)


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
