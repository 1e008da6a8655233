"""Search by a server of Search-R1's form: `POST /retrieve {"queries": [...], "topk": k, "return_scores": true}`.

The answer holds a list for each query, of `{"document": {"contents": "\"Title\"\ntext"}, "score": s}`; without scores of the documents
themselves. Search-R1's own servers, and `rl/retrieval/server.py`, speak it. A document is shown as Search-R1 shows it:
`Doc 1(Title: ...) text`.
"""

from __future__ import annotations

from typing import Any

from pydantic import PositiveFloat, PositiveInt

from rl.environment import EnvironmentFault, Resources
from rl.environments.tool_use import ToolEnvironment
from rl.retrieval.service import Service
from rl.tools import ToolMiss, tool
from warehouse.settings import Section


class RetrieveOptions(Section):
    """Options of the environment `retrieve`."""

    url: str
    """The server, such as `http://127.0.0.1:8000`; `/retrieve` is added."""
    documents: PositiveInt = 3
    """How many documents a search brings."""
    timeout_seconds: PositiveFloat = 10.0
    """How long one try may take."""
    tries: PositiveInt = 4
    """How often the server is asked before the search is a fault."""


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


def create(resources: Resources) -> RetrieveEnvironment:
    """The environment of one trajectory."""
    options = resources.read(RetrieveOptions)
    service = resources.once("service", lambda: Service(options.url, options.timeout_seconds, options.tries))
    return RetrieveEnvironment(service, options.documents)
