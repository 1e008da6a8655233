"""Environments that an AgentGym server hosts, over its HTTP interface.

Each of AgentGym's servers has `POST /create`, `POST /reset`, `POST /step`, `GET /observation` and mostly `POST /close`, and each names
the fields its own way: `FORMS` has those of the services whose code was read. `/create` answers the id of an instance, bare or in an
object; an object with `error`, which some answer with status 200, is a fault. A task's provenance says which of the service's items it
is: `{"item": 17}`.

Reference: github.com/WooooDyy/AgentGym, `agentenv/agentenv/envs/*.py` for the clients and `agentenv-*/*/server.py` for the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from rl.environment import EnvironmentFault, Observation, Resources, Step
from rl.environments.stateful import StatefulEnvironment
from rl.retrieval.service import Service
from rl.tools import tool
from warehouse.errors import RequestError
from warehouse.records import Task
from warehouse.settings import Section


@dataclass(frozen=True, slots=True)
class Form:
    """How a service names things: the instance, the item of a reset, what is seen, and what the trajectory is worth."""

    instance: str
    item: str
    seen: str = "observation"
    reward: str = "reward"


FORMS: Mapping[str, Form] = {
    "textcraft": Form("id", "data_idx"),
    "babyai": Form("id", "data_idx", reward="score"),
    "sciworld": Form("id", "data_idx", reward="score"),
    "maze": Form("id", "game"),
    "wordle": Form("id", "seed"),
    "webshop": Form("env_idx", "session_id", seen="state"),
    "sqlgym": Form("env_idx", "item_id", seen="state"),
    "weather": Form("env_idx", "id"),
    "movie": Form("env_idx", "id"),
    "academia": Form("env_idx", "id"),
    "sheet": Form("env_idx", "id"),
    "todo": Form("env_idx", "id"),
    "searchqa": Form("env_idx", "id"),
}


class AgentGymOptions(Section):
    """Options of the environment `agentgym`."""

    url: str
    """The server of one service, such as `http://127.0.0.1:36001`."""
    service: str
    """Which service it is, for the names of its fields."""
    timeout_seconds: PositiveFloat = 50.0
    tries: PositiveInt = 4
    """How often a server that cannot be reached, or says that it is overloaded, is asked."""


class AgentGymEnvironment(StatefulEnvironment):
    """One instance on a server; a policy acts by one tool, `act`, with the service's own text of an action."""

    def __init__(self, service: Service, form: Form) -> None:
        super().__init__({"act": tool(self.act)})
        self._service = service
        self._form = form
        self._instance: Any = None
        self._reward: float | None = None
        self._done = False

    async def act(self, action: str) -> str:
        """Act in the environment.

        Args:
            action: the action, in the words that the environment understands.
        """
        answer = await self._post("/step", action=action)
        if not isinstance(answer, Mapping) or not {self._form.seen, self._form.reward, "done"} <= answer.keys():
            raise EnvironmentFault(f"the answer of /step is not of the form expected: {str(answer)[:200]}")
        self._reward, self._done = float(answer[self._form.reward]), bool(answer["done"])
        return str(answer[self._form.seen])

    async def probe(self) -> None:
        """See that the server answers."""
        await self._service.get("/")

    async def reset(self, task: Task, seed: int) -> Observation:
        """Make an instance and set it to the task's item."""
        item = task.provenance.get("item")
        if not isinstance(item, int):
            raise EnvironmentFault(f"the task {task.key} does not say which item it is, as provenance {{'item': 17}}")
        made = _without_error(await self._service.post("/create", {}))
        self._instance = made.get("id", made.get("env_idx")) if isinstance(made, Mapping) else made
        begun = await self._post("/reset", **{self._form.item: item})
        return replace(await super().reset(task, seed), text=await self._first_seen(begun))

    async def close(self) -> None:
        """Let the server forget the instance, where it can; not all have `/close`."""
        if self._instance is not None:
            try:
                await self._post("/close")
            except EnvironmentFault:
                return
            finally:
                self._instance = None

    def _told(self, step: Step) -> Step:
        reward, self._reward = self._reward, None
        return replace(step, reward=reward, done=step.done or self._done)

    async def _first_seen(self, begun: Any) -> str:
        """What is seen after a reset: in its answer, or asked for."""
        if isinstance(begun, Mapping) and self._form.seen in begun:
            return "\n".join(str(begun[name]) for name in ("task_description", self._form.seen) if name in begun)
        seen = _without_error(await self._service.get("/observation", **{self._form.instance: self._instance}))
        return str(seen)

    async def _post(self, path: str, **body: Any) -> Any:
        return _without_error(await self._service.post(path, {self._form.instance: self._instance, **body}))


def _without_error(answer: Any) -> Any:
    if isinstance(answer, Mapping) and "error" in answer:
        raise EnvironmentFault(f"the server says: {answer['error']}")
    return answer


def create(resources: Resources) -> AgentGymEnvironment:
    """The environment of one trajectory."""
    options = resources.read(AgentGymOptions)
    if options.service not in FORMS:
        raise RequestError(f"the service {options.service!r} of AgentGym is not known; known are {', '.join(FORMS)}.")
    service = resources.once("service", lambda: Service(options.url, options.timeout_seconds, options.tries))
    return AgentGymEnvironment(service, FORMS[options.service])
