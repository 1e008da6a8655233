"""Search over the corpus: the question must be answered from the documents that searches bring."""

from __future__ import annotations

from pydantic import PositiveInt

from rl.environment import EnvironmentFault, Resources
from rl.environments.tool_use import ToolEnvironment
from rl.retrieval.search import Index, passages
from rl.tools import ToolMiss, tool
from warehouse.errors import RequestError
from warehouse.records import Document
from warehouse.settings import Section


class SearchOptions(Section):
    """Options of the environment `search`."""

    documents: PositiveInt = 1
    """How many documents a search brings."""


class SearchEnvironment(ToolEnvironment):
    """One tool, `search`, over an index."""

    def __init__(self, index: Index, documents: int = 1) -> None:
        super().__init__({"search": tool(self.search)})
        self._index = index
        self._documents = documents

    async def search(self, query: str) -> str:
        """Search the corpus for documents.

        Args:
            query: the title of a document, or words to look for.
        """
        return passages(find(self._index, query, self._documents))

    async def probe(self) -> None:
        """See that a document is found by its own title."""
        document = next((document for document in self._index.documents if document.title.strip()), None)
        if document is not None and not self._index.find(document.title, self._documents).documents:
            raise EnvironmentFault(f"the index does not find its own document {document.id}")


def find(index: Index, query: str, count: int) -> tuple[Document, ...]:
    """The best `count` documents for what a policy looks for.

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
    return SearchEnvironment(resources.index, resources.read(SearchOptions).documents)
