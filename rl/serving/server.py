"""The endpoint as an HTTP server in the engines' event loop, and as a `with` block for synchronous code."""

from __future__ import annotations

import asyncio
import re
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import NonNegativeInt, model_validator
from starlette.exceptions import HTTPException
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.renderers.chat import ChatDialect
from rl.renderers.plain_text import PlainText
from rl.renderers.registry import open_dialect
from rl.rollouts.config import RolloutConfig
from rl.rollouts.rollout import Rollouts
from rl.serving.chat_renderer import ChatRenderer
from rl.serving.endpoint import Caller, Endpoint, Recorder, server_sent_events
from rl.serving.guard import Guard, error_response
from rl.serving.protocol import ChatRequest, CompletionRequest, Refused
from warehouse.errors import RequestError
from warehouse.records import Trajectory
from warehouse.settings import Section

if TYPE_CHECKING:
    from rl.serving.langgraph_loop import PolicyChatModel


class ServingConfig(Section):
    """OpenAI-compatible endpoint over the engines."""

    host: str = "127.0.0.1"
    port: NonNegativeInt = 0
    """Port to listen on; 0 picks a free one."""
    api_key: str | None = None
    """Bearer token that clients must send; required unless `host` is loopback."""
    dialect: str = "chat"
    """Dialect that renders messages: `chat`, or a key of `rollout.dialects` of kind `chat`."""
    stage: str = "rl"
    """Stage recorded in trajectories."""
    run: str | None = None
    """Id prefix of unnamed conversations; None: unique per server."""

    @model_validator(mode="after")
    def _check_key(self) -> ServingConfig:
        if self.api_key is None and self.host not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError("serving.api_key is required unless serving.host is loopback")
        return self


_TRAJECTORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_TASK = re.compile(r"[A-Za-z0-9._:@/-]{1,200}")


def create_app(endpoint: Endpoint, api_key: str | None) -> FastAPI:
    """Create the application with all routes; with `api_key`, every request needs it."""
    routes = _Routes(endpoint)
    app = FastAPI(title="policy", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, api_key=api_key)
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", routes.complete, methods=["POST"], response_model=None)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(RecursionError, _too_deep)
    app.add_exception_handler(HTTPException, _not_served)
    app.add_exception_handler(Exception, _failed)
    return app


def _caller(
    x_trajectory_id: Annotated[str | None, Header()] = None,
    x_task_key: Annotated[str | None, Header()] = None,
) -> Caller:
    _check_name("X-Trajectory-Id", x_trajectory_id)
    if x_task_key is not None and not _TASK.fullmatch(x_task_key):
        raise Refused("X-Task-Key must be 1 to 200 letters, digits and . : @ / _ -", param="X-Task-Key")
    return Caller(x_trajectory_id, x_task_key)


def _check_name(param: str, name: str | None) -> None:
    if name is not None and not _TRAJECTORY.fullmatch(name):
        raise Refused(
            f"{param} must be a letter or digit and up to 199 more of these or . : _ -, because it names the trajectory", param=param
        )


class _Routes:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._endpoint.model, "object": "model", "created": 0, "owned_by": "flywheel"}]}

    async def chat(self, request: ChatRequest, caller: Annotated[Caller, Depends(_caller)]) -> Response:
        return _respond(await self._endpoint.chat(request, _with_user(caller, request)), request)

    async def complete(self, request: CompletionRequest, caller: Annotated[Caller, Depends(_caller)]) -> Response:
        return _respond(await self._endpoint.complete(request, _with_user(caller, request)), request)


def _with_user(caller: Caller, request: ChatRequest | CompletionRequest) -> Caller:
    """The caller, with `user` as conversation if no header names one."""
    if caller.conversation is not None or not request.user:
        return caller
    _check_name("user", request.user)
    return Caller(request.user, caller.task_key)


def _respond(answer: dict[str, Any], request: ChatRequest | CompletionRequest) -> Response:
    if request.stream:
        return StreamingResponse(server_sent_events(answer, request.stream_options), media_type="text/event-stream")
    return JSONResponse(answer)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error_response(str(error), error.status, error.param)


async def _too_deep(request: Request, error: Exception) -> Response:
    return error_response("the body is nested too deeply", 400)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(f"{request.method} {request.url.path}: {error.detail}", error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    return error_response(f"the endpoint failed: {type(error).__name__}", 500)


async def _invalid(request: Request, error: Exception) -> Response:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": str(error), "type": ""}
    key = ".".join(str(part) for part in first["loc"][1:]) or "the request"
    problem = "is not supported" if first["type"] == "extra_forbidden" else f"is invalid: {first['msg']}"
    return error_response(f"{key} {problem}", 400, key)


class PolicyServer:
    """A running server; `start` must be called in the engines' event loop."""

    def __init__(self, endpoint: Endpoint, config: ServingConfig) -> None:
        self.endpoint = endpoint
        self._config = config
        app = create_app(endpoint, config.api_key)
        self._server = uvicorn.Server(uvicorn.Config(app, host=config.host, port=config.port, log_level="warning", lifespan="off"))
        self._task: asyncio.Task[None]

    @classmethod
    async def start(cls, endpoint: Endpoint, config: ServingConfig) -> PolicyServer:
        """Listen; return when requests are accepted.

        Raises:
            RequestError: the address is not available.
        """
        server = cls(endpoint, config)
        server._task = asyncio.ensure_future(server._serve())
        while not server._server.started:
            if server._task.done():
                raise RequestError(f"cannot listen on {config.host}:{config.port}; is the port in use?")
            await asyncio.sleep(0.01)
        return server

    @property
    def url(self) -> str:
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}/v1"

    async def close(self) -> None:
        """End requests in flight and stop listening."""
        self._server.should_exit = True
        await self._task

    async def _serve(self) -> None:
        try:
            await self._server.serve()
        except SystemExit:
            # uvicorn exits if it cannot bind; `start` detects the finished task.
            return


class Serving(AbstractContextManager["Serving"]):
    """A running endpoint, closed on leaving the `with` block; trajectories that were not taken are lost."""

    def __init__(self, server: PolicyServer, rollouts: Rollouts) -> None:
        self._server, self._rollouts = server, rollouts

    @property
    def url(self) -> str:
        return self._server.url

    def chat_model(self, **settings: Any) -> PolicyChatModel:
        """The policy as a LangChain chat model; `settings` are its fields, such as `conversation`."""
        from rl.serving.langgraph_loop import PolicyChatModel

        return PolicyChatModel(endpoint=self._server.endpoint, loop=self._rollouts.event_loop, **settings)

    def take(self, conversation: str | None = None) -> list[Trajectory]:
        """Trajectories since the last call, of one conversation or of all; conversations with a request in flight stay."""
        return self._rollouts.wait(self._take(conversation))

    def close(self) -> None:
        self._rollouts.wait(self._server.close())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def _take(self, conversation: str | None) -> list[Trajectory]:
        trajectories = self._server.endpoint.recorder.take(conversation)
        for trajectory in trajectories:
            self._rollouts.pool.release(trajectory.id)
        return trajectories


def serve(rollouts: Rollouts, folder: Path, policy: str, config: ServingConfig) -> Serving:
    """Serve the engines of `rollouts` as a model called `policy`, alongside other work; `folder` holds its tokenizer.

    A policy without an append-only chat template serves completions only; chat requests get the reason.

    Raises:
        RequestError: the address is not available.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    renderer, no_chat = _renderer(config.dialect, rollouts.config, tokenizer)
    recorder = Recorder(policy, config.stage, config.run or f"endpoint-{uuid.uuid4().hex[:8]}")
    context = rollouts.config.engine.longest_context(folder) or rollouts.config.limits.max_context_tokens
    endpoint = Endpoint(rollouts.pool, recorder, PlainText(tokenizer), renderer, no_chat, policy, context)
    return Serving(rollouts.wait(PolicyServer.start(endpoint, config)), rollouts)


def _renderer(name: str, config: RolloutConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[ChatRenderer | None, str]:
    try:
        dialect = open_dialect(name, config.dialects, tokenizer)
    except RequestError as error:
        return None, str(error)
    if not isinstance(dialect, ChatDialect):
        return None, f"the dialect {name!r} has no chat template; use /v1/completions, or set another as serving.dialect"
    return ChatRenderer(dialect), ""
