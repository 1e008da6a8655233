"""The client of AgentGym's services against small real servers that follow the published interface; no AgentGym server was run."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from rl.envs.agentgym import SERVICES, ServiceFields, create
from rl.envs.base import EnvironmentFault, Resources
from rl.renderers.base import Action
from tests.rl.http_server import served
from warehouse.records import Task

pytestmark = pytest.mark.slow
TASK = Task("t", "agentgym", "Count to three.", (), provenance={"item": 5})


class Counting:
    """A service whose instances count from the item to three more, in the form of one of AgentGym's services."""

    def __init__(self, form: ServiceFields, shows_at_reset: bool) -> None:
        self.form, self.shows_at_reset = form, shows_at_reset
        self.counts: dict[int, list[int]] = {}
        self.bodies: list[dict[str, Any]] = []
        self.closed: list[int] = []
        self.application = FastAPI()
        for method, endpoint in (("GET", self.observation), *(("POST", each) for each in (self.create, self.reset, self.step, self.close))):
            self.application.add_api_route(f"/{endpoint.__name__}", endpoint, methods=[method])
        self.application.add_api_route("/", lambda: "This is environment Counting.")

    def create(self) -> Any:
        number = len(self.counts)
        self.counts[number] = [0, 0]
        return {"id": number, "observation": "", "done": False, "reward": 0} if self.form.instance == "id" else number

    def reset(self, body: dict[str, Any]) -> Any:
        self.bodies.append(body)
        number = body[self.form.instance]
        if number not in self.counts:
            return {"error": f"The id {number} is not valid."}
        self.counts[number] = [body[self.form.item], body[self.form.item] + 3]
        return {self.form.observation: self._seen(number), "reward": 0, "done": False} if self.shows_at_reset else [None, None]

    def step(self, body: dict[str, Any]) -> Any:
        self.bodies.append(body)
        number = body[self.form.instance]
        if body["action"] == "crash":
            return {"error": "The task with environment has been deleted."}
        self.counts[number][0] += body["action"] == "up"
        reached = self.counts[number][0] == self.counts[number][1]
        return {self.form.observation: self._seen(number), "reward": 0.0, "done": reached, self.form.reward: float(reached)}

    def observation(self, id: int | None = None, env_idx: int | None = None) -> Any:
        return self._seen(env_idx if id is None else id)

    def close(self, body: dict[str, Any]) -> Any:
        self.closed.append(body[self.form.instance])
        return {"closed": True}

    def _seen(self, number: int | None) -> str:
        return f"The count is {self.counts[number or 0][0]}."


@pytest.mark.parametrize(("service", "shows_at_reset"), [("textcraft", True), ("weather", False)])
async def test_an_episode_in_the_form_of_each_service(service: str, shows_at_reset: bool) -> None:
    counting = Counting(SERVICES[service], shows_at_reset)
    with served(counting.application) as url:
        playing = create(Resources(options={"url": url, "service": service}))
        await playing.probe()
        assert (await playing.reset(TASK, 0)).text == "The count is 5."
        steps = [await playing.step(Action("act", "up")) for _ in range(3)]
        await playing.close()
        await playing.close()
    assert [step.observation for step in steps] == ["The count is 6.", "The count is 7.", "The count is 8."]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False), (0.0, False), (1.0, True)]
    assert counting.bodies[0] == {SERVICES[service].instance: 0, SERVICES[service].item: 5}
    assert counting.closed == [0]


async def test_an_error_that_comes_with_status_200_is_a_fault() -> None:
    with served(Counting(SERVICES["textcraft"], True).application) as url:
        playing = create(Resources(options={"url": url, "service": "textcraft"}))
        await playing.reset(TASK, 0)
        with pytest.raises(EnvironmentFault, match="has been deleted"):
            await playing.step(Action("act", "crash"))
