"""`flywheel policy serve` on a real engine: what the official clients are sent is what the lake has, token for token."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anthropic
import openai
import pytest

from flows.config import load_config
from flows.home import Home
from rl.policies.policy import load_policy
from tests.flows.homes import SMALL
from tests.rl.engines.test_engines import create_chat_policy
from tests.rl.policies.logprob_check import max_logprob_difference
from warehouse import Lake, Policy, Trajectory
from warehouse.digests import digest_files

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}


def test_served_conversations_are_in_the_lake_token_for_token(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.claim(load_config(SMALL, ["rollout.dialect=chat", "rollout.engine.kv_cache_gib=0.1"]))
    folder = create_chat_policy(home.policies / "mine", 0)
    with Lake(home.root) as lake:
        lake.add([Policy("mine", None, "init", "policies/mine", digest_files(folder), None)])
    command = [sys.executable, "-m", "flows.cli", "policy", "serve", "mine", "--home", str(home.root), "--port", "0", "--record"]
    environment = {**os.environ, "FLYWHEEL_API_KEY": "secret", "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+/v1", server.stdout.readline())
            assert found is not None
            streamed, said = talk(found[0])
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(120) == 0
    with Lake(home.root, read_only=True) as lake:
        stored = lake.trajectories("stage = 'serve' AND policy = 'mine'")
    assert [len(each.turns) for each in stored] == [2, 1, 1]
    assert list(stored[0].turns[0].action_ids) == streamed
    assert json.loads(stored[1].turns[0].arguments or "")["n"] in (1, 2)
    assert len(stored[2].turns[0].action_ids) == said
    free = [each for number, each in enumerate(stored) if number != 1]  # a schema changes the distribution
    assert max_logprob_difference(load_policy(folder)[0], free, 1.0) < 1e-4
    assert all(isinstance(each, Trajectory) and each.error is None for each in stored)


def talk(url: str) -> tuple[list[int], int]:
    """Two turns of chat, a reply held to a schema, and a message; the ids of the first turn, and the tokens of the last."""
    oai = openai.OpenAI(base_url=url, api_key="secret", max_retries=0)
    messages = [{"role": "user", "content": "Where is Amber Stone?"}]
    asked = {"model": "mine", "messages": messages, "seed": 1}
    chunks = list(oai.chat.completions.create(**asked, max_tokens=40, stream=True, extra_body={"return_token_ids": True}))  # type: ignore[call-overload]
    ids = chunks[-1].choices[0].model_extra["token_ids"]
    assert len(chunks) > 3 and 0 < len(ids) <= 40
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
    oai.chat.completions.create(**asked, max_tokens=10)  # type: ignore[call-overload]
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    held = oai.chat.completions.create(**asked | {"messages": messages[:1]}, max_tokens=60, response_format=form)  # type: ignore[call-overload]
    assert json.loads(held.choices[0].message.content)["n"] in (1, 2)
    ant = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="secret", max_retries=0)
    with ant.messages.stream(model="mine", max_tokens=20, messages=[{"role": "user", "content": "Hello"}]) as stream:
        return ids, stream.get_final_message().usage.output_tokens
