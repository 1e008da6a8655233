"""The people and things that worked examples in prompts speak of, and how a reply is told that copies them.

A prompt shows one exchange, as turns before the request, that is done as it should be: a small model held to a form alone copies the words
that explain the form. What it may copy instead is the exchange, so all examples speak of these names, which nobody has; a reply that says
one of them unasked is no reply.
"""

from __future__ import annotations

from warehouse.records import Completion

INVENTED = ("Orla Vennick", "Tamsin Rookhope", "Larkmereth", "Glass Heronry", "Sootlantern")
"""Two people, a town and two works."""
QUESTION = "In which town did the author of Sootlantern grow up?"
KNOWN = "- Sootlantern: author Orla Vennick\n- Orla Vennick: grew up in Larkmereth"
"""What the question requires."""


def copied_name(completion: Completion) -> str | None:
    """The first invented name that a completion says though what it was asked last does not; None where it says none."""
    asked, said = str(completion.request["messages"][-1]["content"]).casefold(), completion.text.casefold()
    return next((name for name in INVENTED if name.casefold() in said and name.casefold() not in asked), None)
