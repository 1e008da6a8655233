"""What a model is asked: the other half of a `Completion`, and as much a value as that one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warehouse.digests import digest


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a teacher is asked. Equal requests have equal digests, and a cached one is not asked twice.

    `max_tokens` bounds the completion alone. `stop` are texts at which it ends; they are not part of it. Differing seeds ask for
    differing samples of one prompt.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """The request as JSON-able data."""
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        rest = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed, "stop": list(self.stop)}
        return {"messages": messages, **rest}

    @property
    def digest(self) -> str:
        """Digest of all that is asked; the teacher's name does not enter it."""
        return digest(self.content)


def user(
    text: str, system: str = "", max_tokens: int = 512, temperature: float = 0.0, seed: int = 0, stop: tuple[str, ...] = ()
) -> Request:
    """A request of one user message, after a system message where there is one."""
    messages = ((Message("system", system),) if system else ()) + (Message("user", text),)
    return Request(messages, max_tokens, temperature, seed, stop)
