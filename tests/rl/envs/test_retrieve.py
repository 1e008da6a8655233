"""Search-R1's `/retrieve`, client and server, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response

from rl.envs.base import EnvironmentFault, FaultKind, Resources
from rl.envs.http_service import TRIES
from rl.envs.search import create_retrieve
from rl.renderers.base import Action
from rl.retrieval.search import SearchIndex
from rl.retrieval.server import create_app
from tests.rl.conftest import DOCUMENTS
from tests.rl.http_server import served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(create_app(SearchIndex(DOCUMENTS), documents=2)) as address:
        yield address


def test_the_server_answers_each_query_in_search_r1s_form(url: str) -> None:
    asked = {"queries": ["Blue River", "city"], "topk": 1, "return_scores": True}
    first, second = httpx.post(f"{url}/retrieve", json=asked, trust_env=False).json()["result"]
    assert first[0]["document"] == {"id": "d2", "contents": '"Blue River"\nBlue River has its seat in Green Lake.'}
    assert first[0]["score"] > 0
    assert [hit["document"]["id"] for hit in second] == ["d3"]


@pytest.mark.parametrize("body", [{}, {"queries": "x"}, {"queries": ["x"], "topk": 0}, {"queries": ["x"] * 2000}])
def test_the_server_refuses_malformed_requests(url: str, body: dict[str, Any]) -> None:
    assert httpx.post(f"{url}/retrieve", json=body, trust_env=False).status_code == 422


@pytest.mark.parametrize(
    ("status", "text", "kind", "tries"),
    [
        (503, "{}", FaultKind.UNREACHABLE, TRIES),
        (200, '{"results": []}', FaultKind.ERROR, 1),
        (200, '{"result": [[{"document": {}}]]}', FaultKind.ERROR, 1),
    ],
)
async def test_a_server_that_does_not_answer_is_a_fault(status: int, text: str, kind: FaultKind, tries: int) -> None:
    application, asked = FastAPI(), []

    @application.post("/retrieve")
    def retrieve() -> Response:
        asked.append(1)
        return Response(text, status_code=status)

    with served(application) as address, pytest.raises(EnvironmentFault) as error:
        await create_retrieve(Resources(options={"url": address})).step(Action("search", "a"))
    assert (error.value.kind, len(asked)) == (kind, tries)
