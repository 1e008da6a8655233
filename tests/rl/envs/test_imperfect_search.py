"""A search that is as imperfect as the world's: pages, a best document that is not the first, an answer that does not come at once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rl.envs.base import ToolOutcome
from rl.envs.search import SearchEnvironment, SearchOptions
from rl.renderers.base import Action
from rl.retrieval.search import SearchIndex
from warehouse.errors import RequestError
from warehouse.records import Document, Task
from warehouse.settings import read_options

TOWNS = ("Amber", "Blue", "Green", "Red", "Grey")
INDEX = SearchIndex([Document(name, f"{name} Town", f"{name} Town is a town.", "test") for name in TOWNS])


def searches(options: SearchOptions, *queries: str, task: str = "k") -> list[str]:
    """What each search of one trajectory brings: the first words of its documents, or nothing."""
    environment = SearchEnvironment(INDEX, options)

    async def play() -> list[str]:
        await environment.reset(Task(task, "search", "Where?", ()), seed=0)
        steps = [await environment.step(Action("search", query)) for query in queries]
        return ["" if step.tool_outcome is ToolOutcome.MISS else step.observation.split()[0] for step in steps]

    return asyncio.run(play())


def test_the_same_search_again_brings_the_next_page() -> None:
    found = searches(SearchOptions(pages=True), "Red Town", "red  town", "Blue Town", *["Red Town"] * 4)
    assert found[0] == "Red" and found[2] == "Blue"
    assert sorted([found[0], found[1], *found[3:6]]) == sorted(TOWNS) and found[6] == ""
    assert searches(SearchOptions(), "Red Town", "Red Town") == ["Red", "Red"]


def test_a_displaced_document_is_second_or_third_and_the_others_stay_in_order() -> None:
    options = SearchOptions(pages=True, displaced=0.5)
    places = Counter()
    for number in range(200):
        found = searches(options, *["Red Town"] * 5, task=f"k{number}")
        assert sorted(found) == sorted(TOWNS)
        places[found.index("Red")] += 1
    assert set(places) == {0, 1, 2} and 70 < places[0] < 130 and places[1] > 25 and places[2] > 25


def test_a_silent_search_answers_when_it_is_made_again() -> None:
    found = [searches(SearchOptions(silent=0.3), "Red Town", "Red Town", "Red Town", task=f"k{number}") for number in range(200)]
    assert {tuple(one) for one in found} == {("Red", "Red", "Red"), ("", "Red", "Red")}
    assert 30 < sum(one[0] == "" for one in found) < 90


def test_all_samples_of_a_task_meet_the_same_search() -> None:
    options = SearchOptions(pages=True, displaced=0.5, silent=0.5)
    for number in range(20):
        runs = {tuple(searches(options, "Red Town", "Red Town", "Red Town", task=f"k{number}")) for _ in range(3)}
        assert len(runs) == 1


def test_what_could_never_be_found_is_refused_and_pages_are_told_of() -> None:
    with pytest.raises(RequestError, match="displaced hides the best document from every search"):
        read_options(SearchOptions, {"displaced": 0.5})
    assert SearchOptions(displaced=0.5, documents=3).displaced
    schema = SearchEnvironment(INDEX, SearchOptions(pages=True)).schemas[0]["function"]
    assert schema["name"] == "search" and "same search again" in schema["description"]
    assert "again" not in SearchEnvironment(INDEX).schemas[0]["function"]["description"]
