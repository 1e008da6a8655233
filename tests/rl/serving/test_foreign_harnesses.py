"""Agents and environments of others, unchanged, as harnesses: smolagents, openai-agents, mini-swe-agent, verifiers.

`HARNESS_PYTHON` is a Python that has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eval.graders.state import EnvironmentReward
from rl.envs.tool_use import ToolEnvironment
from tests.rl.serving.stated import Stated
from tests.rl.serving.test_harness_loop import LIMITS, run
from warehouse.records import Outcome, StopReason, Task

PYTHON = os.environ.get("HARNESS_PYTHON", sys.executable)
EXAMPLE = Path(__file__).parents[3] / "examples" / "verifiers"
WIDE = LIMITS.model_copy(update={"max_context_tokens": 60_000, "max_action_tokens": 400})
SMOLAGENTS = """
import os, sys
from smolagents import {kind}, OpenAIModel, tool

@tool
def multiply(first: int, second: int) -> int:
    '''Multiply two numbers.

    Args:
        first: a factor.
        second: the other.
    '''
    return first * second

model = OpenAIModel(os.environ["FLYWHEEL_MODEL"], api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
print({kind}(tools=[multiply], model=model, verbosity_level=0).run(sys.stdin.read()))
"""
AGENTS = """
import os, sys
from agents import Agent, Runner, function_tool, set_tracing_disabled
set_tracing_disabled(True)

@function_tool
def multiply(first: int, second: int) -> int:
    return first * second

helper = Agent(name="helper", instructions="Multiply.", tools=[multiply], model=os.environ["FLYWHEEL_MODEL"])
tools = [helper.as_tool("ask_helper", "Ask a colleague.")]
main = Agent(name="main", instructions="Answer.", tools=tools, model=os.environ["FLYWHEEL_MODEL"])
print(Runner.run_sync(main, sys.stdin.read()).final_output)
"""
MINI = """
import os, sys, yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
given = {name: config["agent"][name] for name in ("system_template", "instance_template")}
settings = config["model"] | {"model_name": "openai/" + os.environ["FLYWHEEL_MODEL"], "cost_tracking": "ignore_errors"}
agent = DefaultAgent(LitellmModel(**settings), LocalEnvironment(**config["environment"]), **given)
print(agent.run(sys.stdin.read())["submission"])
"""


def bash(command: str) -> str:
    return named("bash", command=command)


def named(tool: str, **arguments: object) -> str:
    return f"<think>\nHm.\n</think>\n\n<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


HARNESSES = {
    "smolagents, code": (
        "smolagents",
        SMOLAGENTS.format(kind="CodeAgent"),
        (
            "Thought: I multiply.\n<code>\nx = multiply(6, 7)\nprint(x)\n</code> and more",
            "Thought: done.\n<code>\nfinal_answer(x)\n</code>",
        ),
        ["first", "does_not_extend"],
    ),
    "smolagents, calls": (
        "smolagents",
        SMOLAGENTS.format(kind="ToolCallingAgent"),
        (named("multiply", first=6, second=7), named("final_answer", answer="42")),
        ["first", "does_not_extend"],
    ),
    "openai-agents, with a sub-agent": (
        "agents",
        AGENTS,
        (named("ask_helper", input="6 * 7?"), named("multiply", first=6, second=7), "It is 42.", "42"),
        ["does_not_extend", "first"],
    ),
    "mini-swe-agent, corrected once": (
        "minisweagent",
        MINI,
        (
            bash("echo 42 > answer"),
            "<think>\nHm.\n</think>\n\nI forget to call.",
            bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer"),
        ),
        ["first", "branch"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("package", "script", "texts", "contexts"), HARNESSES.values(), ids=HARNESSES)
def test_agents_of_others_are_recorded_as_sampled(
    tmp_path: Path, package: str, script: str, texts: tuple[str, ...], contexts: list[str]
) -> None:
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if subprocess.run([PYTHON, "-c", find]).returncode:
        pytest.skip(f"{PYTHON} has no {package}: set HARNESS_PYTHON")
    engine = Stated(*texts)
    made = run(tmp_path, engine, script, limits=WIDE, bare=True, python=PYTHON)
    assert (made.error, made.stop_reason, made.answer, len(made.turns)) == (None, StopReason.ANSWERED, "42", len(texts))
    assert sorted(made.context_of(turn.index) for turn in made.turns) == sorted(engine.contexts)
    assert made.provenance["contexts"] == contexts, "in the order in which they ended"
    assert (made.provenance["rerendered_tokens"] > 0) == (package == "smolagents"), "it writes its calls into the replies that it repeats"


TASKSET = """
import verifiers.v1 as vf

class Words(vf.TaskData):
    answer: str

class Reverse(vf.Task[Words]):
    @vf.reward
    async def same(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 20)

class Reversals(vf.Taskset[Reverse, vf.TasksetConfig]):
    def load(self):
        for words in ("one two", "red blue green"):
            yield Reverse(Words(prompt=f"Reverse: {words}", answer=" ".join(reversed(words.split()))), self.config.task)

__all__ = ["Reversals"]
"""


@pytest.mark.slow
@pytest.mark.parametrize(("reply", "reward"), [("green blue red", 1.5), ("red", 0.5)])
def test_a_taskset_of_verifiers_plays_and_pays(tmp_path: Path, reply: str, reward: float) -> None:
    if subprocess.run([PYTHON, "-c", "import verifiers.v1"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no verifiers: set HARNESS_PYTHON")
    (tmp_path / "reversals.py").write_text(TASKSET)
    passed = {name: os.environ[name] for name in os.environ if name.startswith(("UV_", "PIP_", "SSL_", "HTTP"))}
    variables = {"PYTHONPATH": str(tmp_path), "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", ""), **passed}
    tasks = [PYTHON, str(EXAMPLE / "tasks.py"), "reversals"]
    listed = subprocess.run(tasks, env={**os.environ, **variables}, capture_output=True, text=True, check=True).stdout
    row = json.loads(listed.splitlines()[1])
    more = {"task": Task(f"words-{row['id']}", "none", row["question"], ()), "answer": "reward", "variables": variables}
    engine, script = Stated(reply), (EXAMPLE / "play.py").read_text().replace("sys.argv[1]", "'reversals'")
    made = run(tmp_path, engine, script, ToolEnvironment({}), limits=WIDE, bare=True, python=PYTHON, **more)
    assert made.error is None
    assert (made.answer, made.turns[-1].reward) == (reply, reward)
    score = EnvironmentReward().verify(more["task"], made)
    assert (score.value, score.verdict) == (reward, Outcome.SUCCESS if reward >= 1 else Outcome.FAILURE)
    assert [made.context_of(turn.index) for turn in made.turns] == engine.contexts
