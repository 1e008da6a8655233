"""A policy of a home behind an endpoint or in a terminal, with engines of its own; another process may use the home meanwhile."""

from __future__ import annotations

import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flows.config import FlywheelConfig
from flows.home import Home
from flows.lakes import open_lake
from flows.runtime import start_reaper
from rl.engines.config import EngineConfig, ServingEngineConfig
from rl.envs.base import check_environment
from rl.renderers.base import Truncation
from rl.renderers.chat import ChatDialect
from rl.rollouts.rollout import Rollouts
from rl.serving.protocol import ChatMessage
from rl.serving.server import ServingConfig, open_endpoint, serve
from rl.serving.terminal_chat import TerminalChat, Tools
from rl.terminal import say, visible
from warehouse import Document, Lake, Policy, Trajectory

STAGE = "serve"
SAVE_SECONDS = 2.0
"""Maximum delay after which a recorded turn is in the lake, apart from the commit."""
IDLE_SECONDS = 3600.0
"""Time without a request after which a conversation is closed, and its memory is freed."""


@dataclass(frozen=True, slots=True)
class OpenPolicy:
    """A policy with running engines, which can hold to JSON schemas."""

    folder: Path
    config: FlywheelConfig
    rollouts: Rollouts


@contextmanager
def open_policy(home: Path, policy: Policy, environment: str | None) -> Iterator[OpenPolicy]:
    """Start engines with a policy of a home, and `environment` over its documents. Raise RequestError if either cannot be used."""
    config, documents = Home(home).load(), list[Document]()
    if environment is not None:
        check_environment(environment, config.rollout.environments)
        with open_lake(home) as lake:
            documents = lake.documents()
    start_reaper()
    shared = {name: getattr(config.rollout.engine, name) for name in ServingEngineConfig.model_fields}
    rollout = config.rollout.model_copy(update={"engine": EngineConfig(**shared, structured=True)})
    folder = home / policy.path
    with Rollouts.start(rollout, folder, documents) as rollouts:
        if environment is not None:
            rollouts.wait(rollouts.environments.open(environment))
        yield OpenPolicy(folder, config, rollouts)


def serve_policy(home: Path, policy: Policy, config: ServingConfig, record: bool) -> None:
    """Serve a policy until Ctrl-C or SIGTERM; with `record`, conversations become trajectories of the stage `serve`."""
    run, stop = f"serve-{uuid.uuid4().hex[:8]}", threading.Event()
    with ExitStack() as stack:
        opened = stack.enter_context(open_policy(home, policy, None))
        config = config.model_copy(update={"dialect": opened.config.rollout.dialect, "stage": STAGE, "run": run})
        lake = stack.enter_context(Lake(home)) if record else None
        serving = stack.enter_context(serve(opened.rollouts, opened.folder, policy.id, config))
        say(f"{policy.id} at {serving.url} (Anthropic's clients: {serving.url.removesuffix('/v1')}); Ctrl-C ends it")
        if record:
            say(f"conversations become trajectories whose ids begin with {run}")
        sys.stdout.flush()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())  # a commit is never interrupted
        while not stop.wait(SAVE_SECONDS):
            save(serving.changed(), lake, policy, run)
            serving.forget(IDLE_SECONDS)
        serving.close()
        save(serving.changed(), lake, policy, run)


def save(grown: Sequence[Trajectory], lake: Lake | None, policy: Policy, run: str) -> None:
    """Store conversations that have grown, in place of their earlier states. Ids that clients chose get the server's prefix."""
    if lake is not None and grown:
        ids = [each.id if each.id.startswith(run) else f"{run}-{each.id}" for each in grown]
        lake.replace(replace(each, id=id, wheel_turn=policy.wheel_turn) for id, each in zip(ids, grown, strict=True))


def chat(home: Path, policy: Policy, environment: str | None, temperature: float) -> None:
    """Talk to a policy in the terminal until the end of the input."""
    with open_policy(home, policy, environment) as opened:
        rollouts, config = opened.rollouts, opened.config
        endpoint = open_endpoint(rollouts, opened.folder, policy.id, ServingConfig(dialect=config.rollout.dialect, stage=STAGE))
        dialect = rollouts.dialect
        opening = [ChatMessage.model_validate(message) for message in dialect.system_messages] if isinstance(dialect, ChatDialect) else None
        tools = None if environment is None else _tools(opened, environment)
        conversation = TerminalChat(endpoint, _show, opening, tools, temperature)
        say(f"{policy.id}: Ctrl-D ends" + ("" if opening is not None else "; each line is a question of its own"))
        while (line := _line()) is not None:
            if line.strip():
                rollouts.wait(conversation.say(line))
        rollouts.wait(conversation.close())


def _tools(opened: OpenPolicy, environment: str) -> Tools:
    limits, environments = opened.config.rollout.limits, opened.rollouts.environments
    return Tools(
        environment,
        lambda: environments.client(environment, f"chat-{uuid.uuid4().hex}"),
        opened.config.evaluation.horizon,
        Truncation(limits.max_observation_tokens, limits.truncate),
    )


def _line() -> str | None:
    """The user's next line; None at the end of the input."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _show(text: str) -> None:
    print(visible(text), end="", flush=True)
