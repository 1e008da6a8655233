"""The policy as a LangChain chat model, so that agents written for LangChain and LangGraph run on it and their tokens are recorded.

It asks the same `Endpoint` that serves HTTP, without HTTP in between: requests are assigned to trajectories and recorded the same way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ConfigDict, ValidationError

from rl.serving.endpoint import Caller, Endpoint
from rl.serving.protocol import ChatRequest, Refused
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.settings import first_error

try:
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.language_models import BaseChatModel, LanguageModelInput
    from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.runnables import Runnable
    from langchain_core.tools import BaseTool
    from langchain_core.utils.function_calling import convert_to_openai_tool
except ImportError as error:
    raise RequestError("LangChain is not installed: install agent-flywheel[langchain] to run its agents on a policy.") from error


SCHEMA = "flywheel_schema"
"""Where a tool of LangChain's carries the schema that the policy is to be shown."""


class PolicyChatModel(BaseChatModel):
    """A chat model over an endpoint. `loop` is the event loop that the engines live in; any thread and any other loop may ask.

    `conversation` and `task_key` name the trajectory. With `seed`, each request is sampled by a seed of its own that follows from it.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    endpoint: Endpoint
    loop: asyncio.AbstractEventLoop
    conversation: str | None = None
    task_key: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None

    @property
    def _llm_type(self) -> str:
        return "flywheel-policy"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools that it is shown and may call; it cannot be made to call one."""
        return self.bind(tools=[_schema(tool) for tool in tools], tool_choice=tool_choice, **kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any
    ) -> ChatResult:
        work = self.endpoint.chat(self._request(messages, stop, kwargs), Caller(self.conversation, self.task_key))
        return _result(asyncio.run_coroutine_threadsafe(work, self.loop).result())

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        work = self.endpoint.chat(self._request(messages, stop, kwargs), Caller(self.conversation, self.task_key))
        if asyncio.get_running_loop() is self.loop:
            return _result(await work)
        return _result(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop)))

    def _request(self, messages: list[BaseMessage], stop: list[str] | None, settings: dict[str, Any]) -> ChatRequest:
        asked = {
            "model": self.endpoint.model,
            "messages": convert_to_openai_messages(messages),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "seed": None if self.seed is None else seed_from(self.seed, len(messages)),
            "return_token_ids": True,
            **settings,
        }
        try:
            return ChatRequest.model_validate(asked | ({"stop": stop} if stop else {}))
        except ValidationError as error:
            raise Refused(first_error(error)) from error


def _schema(tool: dict[str, Any] | type | Callable[..., Any] | BaseTool) -> dict[str, Any]:
    """The schema that a tool brings along in its metadata, or the one that LangChain makes of it, which leaves out titles and the like."""
    metadata = tool.metadata if isinstance(tool, BaseTool) else None
    return metadata[SCHEMA] if metadata and SCHEMA in metadata else convert_to_openai_tool(tool)


def _result(answer: dict[str, Any]) -> ChatResult:
    (choice,) = answer["choices"]
    said, usage = choice["message"], answer["usage"]
    message = AIMessage(
        content=said["content"] or "",
        tool_calls=[
            {"name": call["function"]["name"], "args": json.loads(call["function"]["arguments"]), "id": call["id"], "type": "tool_call"}
            for call in said.get("tool_calls", ())
        ],
        additional_kwargs={"reasoning_content": said["reasoning_content"]} if "reasoning_content" in said else {},
        response_metadata={"finish_reason": choice["finish_reason"], "token_ids": choice["token_ids"], "model_name": answer["model"]},
        usage_metadata={
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
        },
    )
    return ChatResult(generations=[ChatGeneration(message=message)])
