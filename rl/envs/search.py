r"""Search environments: answer a question from documents found in the corpus (`search`) or on a server (`retrieve`).

A server follows Search-R1: `POST /retrieve {"queries": [...], "topk": k, "return_scores": true}` returns for each query a list of
`{"document": {"contents": "\"Title\"\ntext"}, "score": s}`, or of bare documents if it has no scores. Search-R1's servers and
`rl/retrieval/server.py` implement it. Documents are shown as in Search-R1: `Doc 1(Title: ...) text`.

Search over the corpus is as imperfect as its index (`rollout.search.imperfect`).
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from pydantic import PositiveInt

from rl.envs.base import EnvironmentFault, Resources
from rl.envs.http_service import Service, ServiceOptions
from rl.envs.tool_use import ToolEnvironment
from rl.retrieval.search import Index, passages, shown
from rl.tools import ToolMiss, tool
from warehouse.errors import RequestError
from warehouse.records import Document
from warehouse.settings import Section

RETRIEVE_SECONDS = 10.0
"""Timeout of one try of a search on a server, in seconds."""
PROBED = 20
"""Number of documents that the probe searches for."""


class SearchOptions(Section):
    """Options of the environment `search`."""

    documents: PositiveInt = 1
    """Documents per search, or per page with paged search."""


class SearchEnvironment(ToolEnvironment):
    """One tool, `search`, over an index."""

    def __init__(self, index: Index, documents: int = 1) -> None:
        self._index, self._documents = index, documents
        super().__init__({"search": tool(name="search")(self.search_in_pages if index.paged else self.search)})

    async def search(self, query: str) -> str:
        """Search the corpus for documents.

        Args:
            query: the title of a document, or words to look for.
        """
        return passages(find(self._index, query, self._documents))

    async def search_in_pages(self, query: str) -> str:
        """Search the corpus for documents. The first may not be the right ones: `page 2` behind a query brings the next.

        Args:
            query: the title of a document, or words to look for.
        """
        return passages(find(self._index, query, self._documents))

    async def probe(self) -> None:
        """Check that at least one document is found by its own title; an imperfect search need not find all."""
        titled = list(islice((document for document in self._index.documents if document.title.strip()), PROBED))
        if titled and not any(self._index.find(document.title, self._documents).documents for document in titled):
            raise EnvironmentFault(f"the index does not find its own document {titled[0].id}")


def find(index: Index, query: str, count: int) -> tuple[Document, ...]:
    """The best `count` documents for a query. Raises ToolMiss with the reason if there are none."""
    hits = index.find(query, count)
    if hits.miss is not None:
        raise ToolMiss(shown(hits))
    return hits.documents


def create(resources: Resources) -> SearchEnvironment:
    if resources.index is None:
        raise RequestError("the environment 'search' needs documents, and there are none: import some.")
    return SearchEnvironment(resources.index, resources.read(SearchOptions).documents)


class RetrieveOptions(ServiceOptions):
    """Options of the environment `retrieve`; `/retrieve` is appended to `url`."""

    documents: PositiveInt = 3
    """Documents per search."""


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
        await self._found("probe")

    async def _found(self, query: str) -> list[str]:
        body = {"queries": [query], "topk": self._documents, "return_scores": True}
        answer = await self._service.post("/retrieve", body, repeatable=True)
        try:
            return [_contents(hit) for hit in answer["result"][0]]
        except (KeyError, IndexError, TypeError) as error:
            raise EnvironmentFault(f"the response of /retrieve is not in Search-R1's format: {str(answer)[:200]}") from error


def _contents(hit: Any) -> str:
    """Text of a hit, with or without score; servers name the field `contents` or `text`."""
    document = hit.get("document", hit)
    return str(document["contents"] if "contents" in document else document["text"])


def _shown(number: int, contents: str) -> str:
    title, _, text = contents.partition("\n")
    name = title.strip().strip('"')
    return f"Doc {number}(Title: {name}) {text}"


def create_retrieve(resources: Resources) -> RetrieveEnvironment:
    options = resources.read(RetrieveOptions)
    service = resources.once("service", lambda: Service(options, try_seconds=RETRIEVE_SECONDS))
    return RetrieveEnvironment(service, options.documents)
