"""The people and things that worked examples in prompts speak of, and how a reply is told that copies them.

A prompt shows one exchange, as turns before the request, that is done as it should be: a small model held to a form alone copies the words
that explain the form. What it may copy instead is the exchange, so all examples speak of these names, which nobody has; a reply that says
one of them unasked is no reply.
"""

from __future__ import annotations

from warehouse.records import Completion

BLANK = "..."
"""What stands in a form for what is to be said; words there would be copied."""
INVENTED = ("Orla Vennick", "Tamsin Rookhope", "Larkmereth", "Glasheron", "Sootlantern")
"""Two people, a town and two works."""
_MARKS = ("orla ven", "tamsin roo", "larkmer", "glasher", "sootlan")
"""What tells each of them, where a copy is misspelt."""
QUESTION = "In which town did the author of Sootlantern grow up?"
KNOWN = "- Sootlantern: author Orla Vennick\n- Orla Vennick: grew up in Larkmereth"
"""What the question requires."""


def copied_name(completion: Completion) -> str | None:
    """The first invented name that a completion says, rightly spelt or nearly, though what it was asked last does not; None without one."""
    asked, said = str(completion.request["messages"][-1]["content"]).casefold(), completion.text.casefold()
    return next((name for name, mark in zip(INVENTED, _MARKS, strict=True) if mark in said and mark not in asked), None)
