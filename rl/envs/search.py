"""Search: the question must be answered from the documents that searches bring, of the corpus (`search`) or of a server (`retrieve`).

A server is one of Search-R1's form: `POST /retrieve {"queries": [...], "topk": k, "return_scores": true}` answers a list for each query,
of `{"document": {"contents": "\"Title\"\ntext"}, "score": s}`; without scores of the documents themselves. Search-R1's own servers, and
`rl/retrieval/server.py`, speak it. Its documents are shown as Search-R1 shows them: `Doc 1(Title: ...) text`.

The search over the corpus can be as imperfect as the world's are (`SearchOptions`): its best document is not the first, or it finds
something only when it is made again. Which searches are so follows from task and query, and is the same for all samples of a task.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rl.envs.base import EnvironmentFault, Observation, Resources
from rl.envs.http_service import Service, ServiceOptions
from rl.envs.tool_use import ToolEnvironment
from rl.retrieval.search import Index, passages
from rl.tools import ToolMiss, tool
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import Document, Task
from warehouse.settings import Section

DISPLACED_AMONG = 3
"""Places that a best document which is displaced may have, the first excepted."""


class SearchOptions(Section):
    """Options of the environment `search`."""

    documents: PositiveInt = 1
    """How many documents a search brings."""
    pages: bool = False
    """The same search, made again in a trajectory, brings the documents that come next."""
    displaced: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the searches whose best document comes second or third."""
    silent: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the searches that find nothing when they are first made in a trajectory."""

    @model_validator(mode="after")
    def _check(self) -> SearchOptions:
        if self.displaced and not self.pages and self.documents < DISPLACED_AMONG:
            raise ValueError(f"displaced hides the best document from every search: set pages, or documents of at least {DISPLACED_AMONG}")
        return self


class SearchEnvironment(ToolEnvironment):
    """One tool, `search`, over an index."""

    def __init__(self, index: Index, options: SearchOptions | None = None) -> None:
        self._index, self._options = index, options or SearchOptions()
        super().__init__({"search": tool(name="search")(self.search_on if self._options.pages else self.search)})
        self._made: Counter[str] = Counter()
        self._task = ""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin a trajectory, in which no search was made yet."""
        self._made.clear()
        self._task = task.key
        return await super().reset(task, seed)

    async def search(self, query: str) -> str:
        """Search the corpus for documents.

        Args:
            query: the title of a document, or words to look for.
        """
        return passages(self._found(query))

    async def search_on(self, query: str) -> str:
        """Search the corpus for documents. The same search again brings the next ones.

        Args:
            query: the title of a document, or words to look for.
        """
        return passages(self._found(query))

    def _found(self, query: str) -> tuple[Document, ...]:
        """What this search brings, by how often it was made. Raises ToolMiss where that is nothing."""
        options, words = self._options, " ".join(query.casefold().split())
        rng = random.Random(seed_from("search", self._task, words))
        before, silent = self._made[words], rng.random() < options.silent
        self._made[words] += 1
        if silent and not before:
            raise ToolMiss("Nothing was found: no answer.")
        start = (before - silent) * options.documents if options.pages else 0
        among = DISPLACED_AMONG if options.displaced else 0
        ranked = list(find(self._index, query, max(start + options.documents, among)))
        if rng.random() < options.displaced and len(ranked) > 1:
            ranked.insert(rng.randrange(1, min(len(ranked), DISPLACED_AMONG)), ranked.pop(0))
        if not (page := ranked[start : start + options.documents]):
            raise ToolMiss("Nothing was found: no further document.")
        return tuple(page)

    async def probe(self) -> None:
        """Check that a document is found by its own title."""
        document = next((document for document in self._index.documents if document.title.strip()), None)
        if document is not None and not self._index.find(document.title, self._options.documents).documents:
            raise EnvironmentFault(f"the index does not find its own document {document.id}")


def find(index: Index, query: str, count: int) -> tuple[Document, ...]:
    """The best `count` documents for a query.

    Raises:
        ToolMiss: there is none; it says why.
    """
    hits = index.find(query, count)
    if hits.miss is not None:
        raise ToolMiss(f"Nothing was found: {hits.miss.value}.")
    return hits.documents


def create(resources: Resources) -> SearchEnvironment:
    """The environment of one trajectory."""
    if resources.index is None:
        raise RequestError("the environment 'search' needs documents, and there are none.")
    return SearchEnvironment(resources.index, resources.read(SearchOptions))


class RetrieveOptions(ServiceOptions):
    """Options of the environment `retrieve`; `/retrieve` is added to `url`."""

    timeout_seconds: PositiveFloat = 10.0
    documents: PositiveInt = 3
    """How many documents a search brings."""


class RetrieveEnvironment(ToolEnvironment):
    """One tool, `search`, over a server."""

    def __init__(self, service: Service, documents: int) -> None:
        super().__init__({"search": tool(self.search)})
        self._service = service
        self._documents = documents

    async def search(self, query: str) -> str:
        """Search the corpus for documents.

        Args:
            query: words to look for.
        """
        if not query.strip():
            raise ToolMiss("Nothing was found: empty query.")
        found = await self._found(query)
        if not found:
            raise ToolMiss("Nothing was found: no hit.")
        return "\n".join(_shown(number, document) for number, document in enumerate(found, 1))

    async def probe(self) -> None:
        """Ask the server for something."""
        await self._found("probe")

    async def _found(self, query: str) -> list[str]:
        """The contents of the documents that the server finds."""
        body = {"queries": [query], "topk": self._documents, "return_scores": True}
        answer = await self._service.post("/retrieve", body, repeatable=True)
        try:
            return [_contents(hit) for hit in answer["result"][0]]
        except (KeyError, IndexError, TypeError) as error:
            raise EnvironmentFault(f"the answer of /retrieve is not of Search-R1's form: {str(answer)[:200]}") from error


def _contents(hit: Any) -> str:
    """The text of a hit, with a score or without; servers name it `contents` or `text`."""
    document = hit.get("document", hit)
    return str(document["contents"] if "contents" in document else document["text"])


def _shown(number: int, contents: str) -> str:
    title, _, text = contents.partition("\n")
    name = title.strip().strip('"')
    return f"Doc {number}(Title: {name}) {text}"


def create_retrieve(resources: Resources) -> RetrieveEnvironment:
    """The environment of one trajectory."""
    options = resources.read(RetrieveOptions)
    service = resources.once("service", lambda: Service(options))
    return RetrieveEnvironment(service, options.documents)
