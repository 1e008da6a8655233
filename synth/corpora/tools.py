"""What the Expander may do between its thoughts: search the corpus, have documents summarised, have a sub-question validated.

Validation has two purposes, each one request (WebShaper, arXiv 2507.15061, section 3): whether the constant is of the kind that the
description asks for, and whether the teacher names it without tools, which makes the sub-question too simple. Neither proves that the
constant is the answer. What a description rests on is read a second time, fact by fact, by whoever sees the passage and the claim alone. A
teacher that gives no reply leaves a verdict open, which is not a no.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from eval.graders.answers import sub_match
from rl.envs.base import EnvironmentFault, Observation
from rl.envs.search import find
from rl.envs.tool_use import ToolEnvironment
from rl.retrieval.search import SearchIndex, passage
from rl.tools import ToolError, tool
from synth.corpora.grounding import StatedFact, whether_stated
from synth.corpora.passages import short_passages_of
from synth.questions.text_comparison import mentions
from synth.teachers.teacher import Fault, Reply, Teacher, read_yes
from warehouse.records import Document, Failure, Request, Task, user

TOOLS = ("search", "summarize", "validate", "answer")
PASSAGE_CHARACTERS = 2_000
"""Characters of the passage that a second reading is shown."""
MOST_SUMMARISED = 5
"""Documents that may be summarised together."""
SUMMARISED_CHARACTERS = 24_000
"""Characters of them that are read, as many of each."""

_TYPE = "Is {constant!r} the kind of thing that is asked for by: {description}? Do not judge whether it is right. Answer yes or no."
_GUESS = "What is meant by: {description}? Answer with the name alone, from what you know."
_SUMMARY = "{passages}\n\nGoal: {goal}\nFrom these documents alone, list what serves the goal, each with the id of its document."


@dataclass(frozen=True, slots=True)
class DescriptionVerdict:
    """The outcome of a validation; None where there was no reply that could be read. `guess` is what the teacher named without tools."""

    type_consistent: bool | None
    too_simple: bool | None
    guess: str = ""


def validation_requests(constant: str, description: str) -> tuple[Request, Request]:
    """The two requests of a validation."""
    typed = user(_TYPE.format(constant=constant, description=description), max_tokens=64)
    return typed, user(_GUESS.format(description=description), max_tokens=64)


def validate_description(teacher: Teacher, constant: str, description: str) -> DescriptionVerdict:
    """Ask for both purposes."""
    typed, guess = teacher.complete(validation_requests(constant, description))
    consistent = None if isinstance(typed, Failure) else read_yes(typed)
    if isinstance(guess, Failure):
        return DescriptionVerdict(consistent, None)
    return DescriptionVerdict(consistent, sub_match(guess.text, [constant]), guess.text)


def facts_stated(teacher: Teacher, facts: Sequence[tuple[StatedFact, Document]]) -> list[bool | None]:
    """Whether the passage of each document that holds the fact's quotation states it; None where there was no reply that could be read."""
    asked = [whether_stated(fact, _around(fact.quote, document)) for fact, document in facts]
    return [None if isinstance(reply, Failure) else read_yes(reply) for reply in teacher.complete(asked)]


def _around(quote: str, document: Document) -> str:
    """The title, and the passage that the quotation stands in; the quotation alone where it goes over several."""
    passages = short_passages_of(document.text, PASSAGE_CHARACTERS)
    return f"{document.title}\n{next((text for text in passages if mentions(text, quote)), quote)}"


class ExpanderEnvironment(ToolEnvironment):
    """The tools of one expansion; the task's provenance names the `constant` that is to be replaced."""

    def __init__(self, index: SearchIndex, teacher: Teacher, documents: int, threads: Executor) -> None:
        super().__init__({"search": tool(self.search), "summarize": tool(self.summarize), "validate": tool(self.validate)})
        self._index, self._teacher, self._documents, self._threads = index, teacher, documents, threads
        self._by_id = {document.id: document for document in index.documents}
        self._constant = ""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Take note of the constant."""
        self._constant = str(task.provenance["constant"])
        return Observation()

    async def search(self, query: str) -> str:
        """Search the corpus; each document comes with its id.

        Args:
            query: the title of a document, or words to look for.
        """
        return "\n\n".join(map(_shown, find(self._index, query, self._documents)))

    async def summarize(self, documents: list[str], goal: str) -> str:
        """Have documents read for a goal.

        Args:
            documents: their ids.
            goal: what to look for in them.
        """
        unknown = [name for name in documents if name not in self._by_id]
        if unknown or not documents:
            raise ToolError(f"no document has the id {unknown[0]!r}" if unknown else "name at least one document")
        if len(documents) > MOST_SUMMARISED:
            raise ToolError(f"name at most {MOST_SUMMARISED} documents, not {len(documents)}")
        passages = "\n\n".join(_shown(self._by_id[name])[: SUMMARISED_CHARACTERS // len(documents)] for name in documents)
        reply = (await self._ask([user(_SUMMARY.format(passages=passages, goal=goal))]))[0]
        if isinstance(reply, Failure) and reply.kind == Fault.REFUSED:
            raise ToolError(f"these documents cannot be read together: {reply.reason}")
        if isinstance(reply, Failure):
            raise EnvironmentFault(f"summarize: {reply.kind}: {reply.reason}")
        return reply.text

    async def validate(self, description: str) -> str:
        """Check a description of the constant: is the constant of that kind, and is it too easy to guess?

        Args:
            description: the words that are to stand in the place of the constant.
        """
        loop = asyncio.get_running_loop()
        verdict = await loop.run_in_executor(self._threads, validate_description, self._teacher, self._constant, description)
        kind = {True: "consistent", False: "not consistent", None: "unknown"}[verdict.type_consistent]
        ease = {True: "too simple: it is named without tools", False: "not too simple", None: "unknown"}[verdict.too_simple]
        return f"Type: {kind}. Difficulty: {ease}."

    async def _ask(self, requests: list[Request]) -> list[Reply]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._teacher.complete, requests)


def _shown(document: Document) -> str:
    return f"[{document.id}] {document.title}\n{passage(document)}"
