"""Retrieval server with Search-R1's interface: `python -P -m rl.retrieval.server documents.jsonl --port 8000`.

`POST /retrieve {"queries": [...], "topk": 3, "return_scores": false}` returns `{"result": [[document, ...], ...]}`, one list per query;
with scores, items are `{"document": ..., "score": ...}`. A document is `{"id", "contents"}`, where `contents` is the quoted title, a line
break and the text.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

from rl.retrieval.config import SearchConfig
from rl.retrieval.indexes import build_index
from rl.retrieval.search import Index
from rl.serving.guard import Guard
from warehouse.errors import RequestError
from warehouse.json_text import read_json
from warehouse.records import Document

MAX_QUERIES = 1024
MAX_DOCUMENTS = 100


class RetrieveRequest(BaseModel):
    """A request; `topk` defaults to the server's."""

    queries: list[str] = Field(max_length=MAX_QUERIES)
    topk: int | None = Field(default=None, ge=1, le=MAX_DOCUMENTS)
    return_scores: bool = False


def create_app(index: Index, documents: int = 3) -> FastAPI:
    """Create the application over `index`; `documents` is the default `topk`."""
    app = FastAPI(title="retrieval", docs_url=None, redoc_url=None)
    app.add_middleware(Guard, api_key=None)

    @app.get("/")
    def health() -> dict[str, int]:
        return {"documents": len(index.documents)}

    @app.post("/retrieve")
    def retrieve(request: RetrieveRequest) -> dict[str, list[list[dict[str, Any]]]]:
        k = request.topk or documents
        return {"result": [_hits(index, query, k, request.return_scores) for query in request.queries]}

    return app


def _hits(index: Index, query: str, k: int, with_scores: bool) -> list[dict[str, Any]]:
    if not with_scores:
        return [_document(document) for document in index.find(query, k).documents]
    return [{"document": _document(document), "score": score} for document, score in index.scored(query, k)]


def _document(document: Document) -> dict[str, str]:
    return {"id": document.id, "contents": f'"{document.title}"\n{document.text}'}


def read_documents(path: Path) -> list[Document]:
    """Read documents from JSON lines with `id` and either `contents` (Search-R1) or `title` and `text`.

    Raises:
        RequestError: a line is malformed; names the line.
    """
    documents = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = read_json(line)
                title, text = (row["title"], row["text"]) if "text" in row else row["contents"].split("\n", 1)
                documents.append(Document(str(row["id"]), title.strip('"'), text, path.name))
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise RequestError(f"{path}:{number} is not a document: give id with contents, or with title and text.") from error
    return documents


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--topk", type=int, default=3)
    parser.add_argument("--encoder", help="folder of an encoder: search by vectors, as with E5")
    arguments = parser.parse_args()
    e5 = {
        "by": "vectors",
        "encoder": arguments.encoder,
        "library": "transformers",
        "query_prefix": "query: ",
        "document_prefix": "passage: ",
    }
    config = SearchConfig.model_validate(e5 if arguments.encoder else {})
    app = create_app(build_index(read_documents(arguments.documents), config), arguments.topk)
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
