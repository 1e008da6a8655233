"""A policy being served beside rollouts, for the synchronous code around it."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from rl.config import RolloutConfig, ServingConfig
from rl.dialects.chat import ChatDialect
from rl.dialects.opening import open_dialect
from rl.dialects.plain_text import PlainText
from rl.rollouts.rollout import Rollouts
from rl.serving.endpoint import Endpoint
from rl.serving.recorder import Recorder
from rl.serving.rendering import ChatRenderer
from rl.serving.server import PolicyServer
from warehouse.errors import RequestError
from warehouse.records import Trajectory

if TYPE_CHECKING:
    from rl.rollouts.langchain_model import PolicyChatModel


class Serving:
    """A running endpoint. Leaving the `with` block ends it; what was not taken by then is lost."""

    def __init__(self, server: PolicyServer, rollouts: Rollouts) -> None:
        self._server, self._rollouts = server, rollouts

    @property
    def url(self) -> str:
        """The base URL that clients are given."""
        return self._server.url

    def chat_model(self, **settings: Any) -> PolicyChatModel:
        """The policy as a LangChain chat model; `settings` are its fields, such as `conversation`."""
        from rl.rollouts.langchain_model import PolicyChatModel

        return PolicyChatModel(endpoint=self._server.endpoint, loop=self._rollouts.event_loop, **settings)

    def take(self, conversation: str | None = None) -> list[Trajectory]:
        """What was recorded since the last time, of one conversation or of all; one with a request under way stays for later."""
        return self._rollouts.wait(self._take(conversation))

    def close(self) -> None:
        """Listen no more."""
        self._rollouts.wait(self._server.close())

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def _take(self, conversation: str | None) -> list[Trajectory]:
        trajectories = self._server.endpoint.recorder.take(conversation)
        for trajectory in trajectories:
            self._rollouts.pool.release(trajectory.id)
        return trajectories


def serve(rollouts: Rollouts, folder: Path, policy: str, config: ServingConfig) -> Serving:
    """Serve the engines of `rollouts` as a model called `policy`, beside whatever else they do; `folder` holds its tokenizer.

    A policy without a chat template that can be appended to is served for completions alone; its chat says why.

    Raises:
        RequestError: the address cannot be listened on.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    renderer, no_chat = _renderer(config.dialect, rollouts.config, tokenizer)
    recorder = Recorder(policy, config.stage, config.run or f"endpoint-{uuid.uuid4().hex[:8]}")
    longest = rollouts.config.engine.max_model_len or AutoConfig.from_pretrained(folder, local_files_only=True).max_position_embeddings
    endpoint = Endpoint(rollouts.pool, recorder, PlainText(tokenizer), renderer, no_chat, policy, int(longest))
    return Serving(rollouts.wait(PolicyServer.start(endpoint, config)), rollouts)


def _renderer(name: str, config: RolloutConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[ChatRenderer | None, str]:
    try:
        dialect = open_dialect(name, config.dialects, tokenizer)
    except RequestError as error:
        return None, str(error)
    if not isinstance(dialect, ChatDialect):
        return None, f"the dialect {name!r} has no chat template; use /v1/completions, or name another as serving.dialect"
    return ChatRenderer(dialect), ""
