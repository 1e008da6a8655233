"""The agent loop `harness`: a command per task, an agent as it is, whose requests to an endpoint are the trajectory.

    reset   the task's environment; its tools are served next to the endpoint
    run     the command, in a folder and a process group of its own, with the endpoint's address in its environment
    join    the contexts that the endpoint recorded: conversations, branches, sub-agents, what follows a compaction
    answer  what the command printed, judged by the environment

Sampling is the rollout's, whatever the client asks for. Every context holds exactly the sampled ids; all share the trajectory's outcome.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import APIRouter

from rl.content import PlacedImage
from rl.engines.base import EngineFault, Generation, Generator, Sampling, StreamingGenerator
from rl.engines.pool import EnginePool
from rl.envs.base import EnvironmentFault, ToolOutcome
from rl.renderers.base import Action, Dialect, Result, Schema, Truncation, text_of
from rl.renderers.chat import ChatDialect
from rl.rollouts.agent_loop import RolloutRequest, choice_of, uses_lagged_policy
from rl.rollouts.calls import EnvironmentHandle, call_record, take_record
from rl.rollouts.config import HarnessConfig, Limits
from rl.serving.chat_renderer import ChatRenderer
from rl.serving.command import run_command
from rl.serving.endpoint import Asked, Caller, Endpoint
from rl.serving.protocol import ChatRequest, CompletionRequest, ContextFull, Refused
from rl.serving.recorder import Recorder
from rl.serving.server import PolicyServer, ServingConfig
from rl.serving.working_folder import hand_back, write_files
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import ANSWER, RERENDERED, Call, StopReason, Trajectory, Turn

_PASSED = ("PATH", "LANG", "LC_ALL")


class _Sampler:
    """The engine, with the rollout's sampling settings in place of the client's."""

    def __init__(self, engine: Generator, request: RolloutRequest, limits: Limits) -> None:
        self._engine, self._request, self._limits = engine, request, limits
        self.turns = 0
        self.names = set[str]()
        """Ids under which the engine knows the contexts."""

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        return await self._engine.generate(request_id, prompt_ids, self._own(request_id, sampling))

    async def stream(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[tuple[int, ...] | Generation, None]:
        if not isinstance(self._engine, StreamingGenerator):
            raise EngineFault(f"{type(self._engine).__name__} does not stream")
        async with aclosing(self._engine.stream(request_id, prompt_ids, self._own(request_id, sampling))) as parts:
            async for part in parts:
                yield part

    def _own(self, request_id: str, sampling: Sampling) -> Sampling:
        request, turn = self._request, self.turns
        self.names.add(request_id)
        self.turns += 1
        return replace(
            sampling,
            temperature=self._limits.temperature if request.temperature is None else request.temperature,
            top_p=self._limits.top_p,
            seed=seed_from(request.seed, turn),
            older=uses_lagged_policy(request, turn),
        )


class _Endpoint(Endpoint):
    """Endpoint of one trajectory: any model name is the policy, replies are cut to the limits, and the horizon ends it."""

    limits: Limits
    horizon: int
    caller: Caller
    """The attempt, whatever a client names."""
    stop: StopReason | None = None
    """Limit that a request met."""
    fault: str | None = None
    """What broke the environment."""

    def ask(self, request: ChatRequest, caller: Caller, clamped: bool = False) -> Asked:
        self._check_horizon()
        return super().ask(request, self.caller, True)

    async def complete(self, request: CompletionRequest, caller: Caller) -> dict[str, Any]:
        self._check_horizon()
        return await super().complete(request, self.caller)

    def _check_choice(self, request: ChatRequest) -> None:
        """Accept `required`: many harnesses ask for a call always, and see for themselves whether there is one."""

    def check_model(self, model: str) -> None:
        """Accept every name: harnesses have their own defaults."""

    def _check_horizon(self) -> None:
        if self.recorder.recorded >= self.horizon:
            self.stop = StopReason.MAX_TURNS
            raise Refused(f"the task's horizon of {self.horizon} replies is used up")

    def _reply_limit(self, prompt_tokens: int, wanted: int | None, clamped: bool = False) -> int:
        most = self.limits.max_action_tokens
        try:
            return super()._reply_limit(prompt_tokens, min(wanted or most, most), True)
        except ContextFull:
            self.stop = StopReason.MAX_CONTEXT_TOKENS
            raise


class HarnessLoop:
    """Runs a command per trajectory.

    Raises:
        RequestError: no command is configured, the dialect is not of kind chat, or a limit of total tokens is set.
    """

    def __init__(self, engine: Generator, dialect: Dialect, limits: Limits, harness: HarnessConfig | None = None) -> None:
        if harness is None:
            raise RequestError("the agent loop harness needs a command: set rollout.harness.command.")
        if not isinstance(dialect, ChatDialect):
            raise RequestError("the agent loop harness needs a dialect of kind chat: set one for the task or the rollout.")
        if limits.totals:
            raise RequestError(f"the agent loop harness does not support rollout.limits.{limits.totals[0]}: unset it.")
        self._engine, self._dialect, self._limits, self._harness = engine, dialect, limits, harness
        self._seconds = min(harness.seconds, limits.max_seconds or harness.seconds)

    async def run(self, request: RolloutRequest, environment: EnvironmentHandle) -> Trajectory:
        started, clock = datetime.now(UTC), time.perf_counter()
        recorder = Recorder(request.policy, request.stage, request.trajectory_id)
        calls: list[Call] = []
        try:
            if request.replay is not None:
                raise EnvironmentFault("the agent loop harness does not replay")
            stop, error = await self._run(request, environment, recorder, calls)
        except EnvironmentFault as fault:
            stop, error = StopReason.FAULT, str(fault)
        recorder.withdraw_all()
        segments = sorted((each for each in recorder.take() if each.turns or each.error), key=_ended)
        error = next((segment.error for segment in segments if segment.error), error)
        prompt_ids, turns = joined(segments, calls)
        seconds = time.perf_counter() - clock
        made = request.trajectory(prompt_ids, turns, StopReason.FAULT if error else stop, started, seconds, error)
        return replace(made, provenance={**made.provenance, **_origins(segments)})

    async def _run(
        self, request: RolloutRequest, environment: EnvironmentHandle, recorder: Recorder, calls: list[Call]
    ) -> tuple[StopReason, str | None]:
        """Stop reason, and what broke the run."""
        first = await environment.reset(request.task, request.seed)
        plain, sampler = self._dialect.template.plain, _Sampler(self._engine, request, self._limits)
        endpoint = _Endpoint(sampler, recorder, plain, ChatRenderer(self._dialect), "", request.policy, self._limits.max_context_tokens)
        endpoint.limits, endpoint.horizon = self._limits, request.horizon
        endpoint.caller = Caller(request.trajectory_id, request.task.key)
        key = secrets.token_urlsafe(16)
        server = await PolicyServer.start(endpoint, ServingConfig(api_key=key))
        chosen = choice_of(request.task).tools
        schemas = [schema for schema in first.tools if chosen is None or schema["function"]["name"] in chosen]
        server.app.include_router(self._tools(environment, schemas, calls, endpoint))
        question = f"{request.task.question}\n\n{first.text}" if first.text else request.task.question
        command = [part.replace("{question}", question) for part in self._harness.command]
        try:
            with TemporaryDirectory(prefix="harness-", ignore_cleanup_errors=True) as folder:
                work, private = Path(folder, "work"), Path(folder, "home")
                work.mkdir()
                private.mkdir()
                files = await write_files(environment, work) if first.has_files else None
                variables = _variables(server.url, key, request, str(private)) | self._harness.variables
                ran = await run_command(command, question, variables, work, self._seconds, key)
                if files is not None and ran.status == 0:
                    await hand_back(environment, work, files)
        except OSError as error:
            raise EnvironmentFault(f"the harness's folder cannot be used: {error}") from error
        finally:
            await server.close()
            if isinstance(self._engine, EnginePool):
                for name in sampler.names:
                    self._engine.release(name)
        if endpoint.fault is not None:
            return StopReason.FAULT, endpoint.fault
        if ran.status is None:
            return StopReason.MAX_SECONDS, None
        said = _last_line(ran.output)
        answer = said if self._harness.answer == "output" else _reply(recorder.latest)
        reward = _number(said) if self._harness.answer == "reward" else None
        if endpoint.stop is not None and (ran.status or answer is None):
            return endpoint.stop, None
        if ran.status:
            return StopReason.FAULT, f"harness: exit status {ran.status}: {ran.errors.strip()[-300:] or 'it said nothing'}"
        if not sampler.turns:
            return StopReason.FAULT, "harness: the command made no request of the policy"
        if self._harness.answer == "reward" and reward is None:
            return StopReason.FAULT, f"harness: its last line is no reward: {(said or '')[:100]!r}"
        if answer is None and files is None and reward is None:
            return StopReason.LEFT, None
        action = Action(ANSWER, answer or "")
        step = await environment.step(action)
        calls.append(call_record(action, step if reward is None else replace(step, reward=reward)))
        return StopReason.ANSWERED, None

    def _tools(self, environment: EnvironmentHandle, schemas: Sequence[Schema], calls: list[Call], endpoint: _Endpoint) -> APIRouter:
        """Routes of the environment's tools: `GET /tools` lists them, `POST /tools/NAME` calls one with its arguments."""
        router, cut = APIRouter(), Truncation(self._limits.max_observation_tokens, self._limits.truncate)
        names = [schema["function"]["name"] for schema in schemas]

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            if name not in names:
                raise Refused(f"there is no tool {name!r:.100}, only {', '.join(names) or 'none'}", status=404)
            action = Action(name, json.dumps(arguments, ensure_ascii=False))
            try:
                step = await environment.step(action)
            except EnvironmentFault as fault:
                endpoint.fault = str(fault)
                raise Refused(f"the environment failed: {fault}", status=503) from fault
            calls.append(call_record(action, step))
            return {"result": self._dialect.template.plain.cut(text_of(Result(step.observation, step.parts)), cut)}

        router.add_api_route("/tools", lambda: list(schemas), methods=["GET"], response_model=None)
        router.add_api_route("/tools/{name}", call, methods=["POST"], response_model=None)
        return router


def _variables(url: str, key: str, request: RolloutRequest, home: str) -> dict[str, str]:
    """The command's environment: the endpoint under the names that clients read, and what tells it the task."""
    base = url.removesuffix("/v1")
    return {
        **{name: os.environ[name] for name in _PASSED if name in os.environ},
        "HOME": home,
        "TMPDIR": home,
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": key,
        "FLYWHEEL_API_KEY": key,
        "FLYWHEEL_MODEL": request.policy,
        "FLYWHEEL_TASK": request.task.key,
        "FLYWHEEL_TOOLS": f"{base}/tools",
    }


def _origins(segments: Sequence[Trajectory]) -> dict[str, Any]:
    """Why each context began, and the tokens of replies that they hold as rendered."""
    if len(segments) < 2:
        return {}
    rendered = sum(segment.provenance.get(RERENDERED, 0) for segment in segments)
    return {"contexts": [segment.provenance["segment"] for segment in segments], RERENDERED: rendered}


def _last_line(text: str) -> str | None:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if isfinite(value) else None


def _reply(turn: Turn | None) -> str | None:
    return turn.arguments if turn is not None and turn.tool == ANSWER else None


def _ended(segment: Trajectory) -> float:
    return 0.0 if segment.started is None else segment.started.timestamp() + (segment.seconds or 0.0)


def joined(segments: Sequence[Trajectory], records: Sequence[Call]) -> tuple[tuple[int, ...], tuple[Turn, ...]]:
    """The first context's prompt, and the turns of all contexts, the one that was continued last at the end.

    Args:
        records: executed calls of the environment's tools in order, and the answer; each belongs to the first turn that asked for it, or to
            the last turn if the harness called by itself.
    """
    waiting, turns = [call for call in records if call.tool != ANSWER], list[Turn]()
    for segment in segments:
        for turn in segment.turns:
            calls = tuple(take_record(call, waiting) or call for call in turn.calls)
            context = segment.prompt_ids if turns and turn is segment.turns[0] else ()
            turns.append(_with_calls(replace(turn, index=len(turns), context_ids=context), calls))
    given = [call for call in records if call.tool == ANSWER]
    if turns and (given or waiting):
        turns[-1] = _with_calls(turns[-1], (*(call for call in turns[-1].calls if call.tool != ANSWER or not given), *waiting, *given))
    return (segments[0].prompt_ids if segments else ()), tuple(turns)


def _with_calls(turn: Turn, calls: tuple[Call, ...]) -> Turn:
    if not calls:
        return replace(turn, tool_outcome=ToolOutcome.UNPARSABLE.value)
    rewards = [call.reward for call in calls if call.reward is not None]
    first, reward = calls[0], sum(rewards) if rewards else None
    return replace(turn, calls=calls, tool=first.tool, arguments=first.arguments, tool_outcome=first.outcome, reward=reward)
