"""A conversation with a policy in a terminal, with the tools of an environment if there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl.envs.base import Environment, EnvironmentFault
from rl.renderers.base import Action, ContentRefused, Result, Schema, Truncation, text_of
from rl.serving.endpoint import Caller, Endpoint
from rl.serving.protocol import ChatMessage, ChatRequest, Delta, Refused
from rl.terminal import in_line, visible
from warehouse.records import Task


@dataclass(frozen=True, slots=True)
class Tools:
    """An environment whose tools the policy may call, at most `most_calls` times per message; `enter` opens it."""

    environment: str
    enter: Callable[[], Environment]
    most_calls: int
    cut: Truncation


class TerminalChat:
    """Messages of user and policy so far; an environment lives until it is done or fails.

    Args:
        show: prints text without a line break.
        opening: messages before the first of the user; None: each message of the user is a question of its own.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        show: Callable[[str], None],
        opening: Sequence[ChatMessage] | None,
        tools: Tools | None,
        temperature: float,
    ) -> None:
        self._endpoint, self._show, self._opening, self._tools, self._temperature = endpoint, show, opening, tools, temperature
        self._messages = list(opening or ())
        self._environment: Environment | None = None
        self._schemas: tuple[Schema, ...] = ()

    async def say(self, text: str) -> None:
        """Send a message of the user and show what the policy answers and calls. After a failure the next message begins anew."""
        if self._opening is None:
            await self.close()
        try:
            shown = await self._entered(text)
            self._messages.append(ChatMessage(role="user", content=f"{text}\n\n{shown}" if shown else text))
            calls = 0
            while (reply := await self._reply()).calls:
                for call in reply.calls:
                    result = await self._call(Action(call.function.name, call.function.arguments))
                    self._messages.append(ChatMessage(role="tool", content=result, tool_call_id=call.id))
                calls += len(reply.calls)
                if self._tools is not None and calls >= self._tools.most_calls:
                    raise Refused(f"the policy made {calls} calls without an answer")
        except (Refused, EnvironmentFault, ContentRefused) as error:
            self._show(f"[{in_line(str(error))}; a new conversation begins]\n")
            await self.close()

    async def close(self) -> None:
        """Forget the conversation and close its environment."""
        environment, self._environment = self._environment, None
        self._messages = list(self._opening or ())
        if environment is not None:
            await environment.close()

    async def _entered(self, question: str) -> str:
        """What a newly opened environment shows; nothing if it is open already, or there is none."""
        if self._tools is None or self._environment is not None:
            return ""
        self._environment = self._tools.enter()
        first = await self._environment.reset(Task("chat", self._tools.environment, question, ()), 0)
        self._schemas = first.tools
        return first.text

    async def _reply(self) -> ChatMessage:
        """The policy's message, shown while it is written."""
        schemas = [dict(schema) for schema in self._schemas]
        request = ChatRequest(model=self._endpoint.model, messages=self._messages, tools=schemas, temperature=self._temperature)
        kind = ""
        async for part in self._endpoint.stream(self._endpoint.ask(request, Caller(None, None))):
            if not isinstance(part, Delta):
                self._messages.append(part.message)
                continue
            if part.kind != kind:
                self._show("\n" * bool(kind) + "[thought] " * (part.kind == "thought"))
                kind = part.kind
            self._show(visible(part.text))
        self._show("\n" * bool(kind))
        return self._messages[-1]

    async def _call(self, action: Action) -> str:
        """The result of a call, shown in one line."""
        if self._tools is None or self._environment is None:
            raise Refused("the environment has ended")
        step = await self._environment.step(action)
        if step.done:
            environment, self._environment = self._environment, None
            await environment.close()
        result = self._endpoint.plain.cut(text_of(Result(step.observation, step.parts)), self._tools.cut)
        self._show(f"  {in_line(action.tool)} {in_line(action.arguments)}\n  = {in_line(result)}\n")
        return result
