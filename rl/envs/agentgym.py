"""Environments of an AgentGym server, over its HTTP interface.

AgentGym servers have `POST /create`, `POST /reset`, `POST /step`, `GET /observation` and mostly `POST /close`, but name the fields
differently; `SERVICES` covers the services whose code was read. `/create` returns an instance id, bare or in an object. An object with
`error`, which some servers return with status 200, is a fault. A task's provenance names its item: `{"item": 17}`.

Reference: github.com/WooooDyy/AgentGym, `agentenv/agentenv/envs/*.py` for the clients and `agentenv-*/*/server.py` for the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rl.envs.base import EnvironmentFault, Observation, Resources, Step
from rl.envs.http_service import Service, ServiceOptions
from rl.envs.tool_use import StatefulEnvironment
from rl.tools import tool
from warehouse.errors import RequestError
from warehouse.records import Task


@dataclass(frozen=True, slots=True)
class ServiceFields:
    """Names of a service's JSON fields: instance id, item of a reset, observation and reward."""

    instance: str
    item: str
    observation: str = "observation"
    reward: str = "reward"


SERVICES: Mapping[str, ServiceFields] = {
    "textcraft": ServiceFields("id", "data_idx"),
    "babyai": ServiceFields("id", "data_idx", reward="score"),
    "sciworld": ServiceFields("id", "data_idx", reward="score"),
    "maze": ServiceFields("id", "game"),
    "wordle": ServiceFields("id", "seed"),
    "webshop": ServiceFields("env_idx", "session_id", observation="state"),
    "sqlgym": ServiceFields("env_idx", "item_id", observation="state"),
    "weather": ServiceFields("env_idx", "id"),
    "movie": ServiceFields("env_idx", "id"),
    "academia": ServiceFields("env_idx", "id"),
    "sheet": ServiceFields("env_idx", "id"),
    "todo": ServiceFields("env_idx", "id"),
    "searchqa": ServiceFields("env_idx", "id"),
}


class AgentGymOptions(ServiceOptions):
    """Options of the environment `agentgym`; `url` is the server of one service."""

    service: str
    """Name of the service, which determines its field names."""


class AgentGymEnvironment(StatefulEnvironment):
    """One instance on a server; the policy acts through one tool, `act`, with the service's own action text."""

    def __init__(self, service: Service, fields: ServiceFields) -> None:
        super().__init__({"act": tool(self.act)})
        self._service = service
        self._fields = fields
        self._instance: Any = None
        self._reward: float | None = None
        self._done = False

    async def act(self, action: str) -> str:
        """Act in the environment.

        Args:
            action: the action, in the words that the environment understands.
        """
        answer = await self._post("/step", action=action)
        if not isinstance(answer, Mapping) or not {self._fields.observation, self._fields.reward, "done"} <= answer.keys():
            raise EnvironmentFault(f"the response of /step has an unexpected form: {str(answer)[:200]}")
        self._reward, self._done = float(answer[self._fields.reward]), bool(answer["done"])
        return str(answer[self._fields.observation])

    async def probe(self) -> None:
        await self._service.get("/")

    async def reset(self, task: Task, seed: int) -> Observation:
        item = task.provenance.get("item")
        if not isinstance(item, int):
            raise EnvironmentFault(f"the task {task.key} has no item number in its provenance, such as {{'item': 17}}")
        made = _without_error(await self._service.post("/create", {}))
        self._instance = made.get("id", made.get("env_idx")) if isinstance(made, Mapping) else made
        begun = await self._post("/reset", **{self._fields.item: item})
        return replace(await super().reset(task, seed), text=await self._first_observation(begun))

    async def close(self) -> None:
        """Close the instance; errors are ignored, since some servers cannot."""
        if self._instance is not None:
            try:
                await self._post("/close")
            except EnvironmentFault:
                return
            finally:
                self._instance = None

    def _complete(self, step: Step) -> Step:
        reward, self._reward = self._reward, None
        return replace(step, reward=reward, done=step.done or self._done)

    async def _first_observation(self, begun: Any) -> str:
        if isinstance(begun, Mapping) and self._fields.observation in begun:
            return "\n".join(str(begun[name]) for name in ("task_description", self._fields.observation) if name in begun)
        return str(_without_error(await self._service.get("/observation", **{self._fields.instance: self._instance})))

    async def _post(self, path: str, **body: Any) -> Any:
        return _without_error(await self._service.post(path, {self._fields.instance: self._instance, **body}))


def _without_error(answer: Any) -> Any:
    if isinstance(answer, Mapping) and "error" in answer:
        raise EnvironmentFault(f"the server reports: {answer['error']}")
    return answer


def create(resources: Resources) -> AgentGymEnvironment:
    options = resources.read(AgentGymOptions)
    if options.service not in SERVICES:
        raise RequestError(f"there is no AgentGym service {options.service!r}, only {', '.join(SERVICES)}.")
    service = resources.once("service", lambda: Service(options))
    return AgentGymEnvironment(service, SERVICES[options.service])
