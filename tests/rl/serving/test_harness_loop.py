"""Agents as they are, as commands: what they ask of the endpoint is recorded by token, and what breaks them is told apart."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.sandbox.sandbox import isolation
from rl.advantages import grpo
from rl.engines.base import EngineFault
from rl.envs.base import EnvironmentFault, FileExchange, Resources, Step, find_environment
from rl.envs.tool_use import ToolEnvironment
from rl.learner.batches import rows_of
from rl.renderers.base import Action
from rl.renderers.chat import ChatDialect
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.config import HarnessConfig, Limits
from rl.serving.harness_loop import HarnessLoop
from tests.rl.envs.test_environments import write_shop
from tests.rl.serving.stated import TEMPLATE, Stated
from tests.rl.serving.test_langgraph_loop import call, multiply
from warehouse import RequestError
from warehouse.records import Outcome, StopReason, Task, Trajectory

DIALECT = ChatDialect(TEMPLATE)
TASK = Task("k", "multiplying", "What is 6 * 7?", ("42",))
LIMITS = Limits(max_action_tokens=200, max_observation_tokens=64, max_context_tokens=4000)
AGENT = """
import json, os, sys, threading, time, urllib.request
import openai
client = openai.OpenAI(max_retries=0)
question = sys.stdin.read()
tools_at, key = os.environ["FLYWHEEL_TOOLS"], os.environ["OPENAI_API_KEY"]

def tools(path="", body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(tools_at + path, data, headers)) as reply:
        return json.load(reply)

def ask(messages, **more):
    return client.chat.completions.create(model="gpt-x", messages=messages, **more).choices[0].message

def work(messages):
    while True:
        said = ask(messages, tools=tools(), max_tokens=4096, temperature=0.3)
        messages.append(said.to_dict())
        if not said.tool_calls:
            return said.content
        for one in said.tool_calls:
            result = tools("/" + one.function.name, json.loads(one.function.arguments))["result"]
            messages.append({"role": "tool", "tool_call_id": one.id, "content": result})

user = lambda text: [{"role": "user", "content": text}]
"""


def run(
    folder: Path,
    engine: Any,
    script: str,
    environment: Any = None,
    horizon: int = 6,
    limits: Limits = LIMITS,
    task: Task = TASK,
    name: str = "t",
    seed: int = 1,
    python: str = sys.executable,
    bare: bool = False,
    **more: Any,
) -> Trajectory:
    (folder / "agent.py").write_text(script if bare else AGENT + script)
    harness = HarnessConfig(command=(python, str(folder / "agent.py")), **more)
    request = RolloutRequest(name, task, "p", horizon, seed=seed, step=3, sample=2)
    loop = HarnessLoop(engine, DIALECT, limits, harness)
    return asyncio.run(loop.run(request, environment or ToolEnvironment({"multiply": multiply})))


def test_a_command_that_uses_the_environments_tools_is_one_context(tmp_path: Path) -> None:
    engine = Stated(call((6, 7)), "It is 42.")
    made = run(tmp_path, engine, "print('thinking'); print(work(user(question))); print()")
    assert made.error is None
    assert (made.stop_reason, made.answer, made.step, made.sample) == (StopReason.ANSWERED, "It is 42.", 3, 2)
    first, last = made.turns
    assert [(one.tool, one.outcome, one.observation) for one in first.calls] == [("multiply", "ok", "42")]
    assert (last.tool, last.observation_ids) == ("answer", ()) and len(made.segments) == 1
    assert [made.context_of(0), made.context_of(1)] == engine.contexts, "what was sampled is what is recorded"
    shown = asyncio.run(ToolEnvironment({"multiply": multiply}).reset(TASK, 0)).tools
    assert engine.contexts[0] == DIALECT.prompt_ids(TASK.question, tools=shown), "the prompt is that of the house's own loop"
    assert {(one.temperature, one.max_tokens) for one in engine.samplings} == {(1.0, 200)}, "sampling is the rollout's"


@pytest.mark.parametrize(
    ("printed", "reward", "error"),
    [
        ("0.25", 0.25, None),
        ("42", 42.0, None),
        ("nan", None, "its last line is no reward"),
        ("It is 42.", None, "its last line is no reward"),
    ],
)
def test_the_last_line_of_a_command_is_the_reward_where_it_shall_be(
    tmp_path: Path, printed: str, reward: float | None, error: str | None
) -> None:
    made = run(tmp_path, Stated("It is 42."), f"work(user(question)); print({printed!r})", answer="reward")
    if error is None:
        assert (made.error, made.answer, made.turns[-1].reward) == (None, "It is 42.", reward)
    else:
        assert made.error is not None and error in made.error and made.stop_reason is StopReason.FAULT


SEVERAL = {
    "a sub-agent": ("helped = ask(user('help')).content; print(work(user(question + helped)))", ("six", "42"), "does_not_extend"),
    "a compaction": ("one = ask(user(question)); print(ask(user('In short: ' + one.content)).content)", ("long", "42"), "does_not_extend"),
    "a rewritten history": (
        "m = user(question); m += [{'role': 'assistant', 'content': 'Not ' + ask(m).content}] + user('on'); print(ask(m).content)",
        ("one", "42"),
        "does_not_extend",
    ),
    "a branch": (
        "m = user(question); a = ask(m); m.append(a.to_dict()); ask(m + user('left')); print(ask(m + user('right')).content)",
        ("<think>\nHm.\n</think>\n\none", "two", "42"),
        "branch",
    ),
    "a lost reply": (
        "m = user(question); m += [ask(m).to_dict()] + user('on'); ask(m); print(ask(m).content)",
        ("<think>\nHm.\n</think>\n\none", "lost", "42"),
        "branch",
    ),
    "two at once": (
        "threads = [threading.Thread(target=ask, args=(user(str(n)),)) for n in range(2)]; [t.start() for t in threads]; "
        "[t.join() for t in threads]; print(42)",
        ("one", "two"),
        None,
    ),
    "two at once that go on": (
        "m = user(question); m += [ask(m).to_dict()] + user('on'); threads = [threading.Thread(target=ask, args=(m,)) for n in range(2)]; "
        "[t.start() for t in threads]; [t.join() for t in threads]; print(42)",
        ("<think>\nHm.\n</think>\n\none", "two", "three"),
        "branch",
    ),
}


@pytest.mark.parametrize(("script", "texts", "reason"), SEVERAL.values(), ids=SEVERAL)
def test_every_context_of_an_attempt_is_trained_on_with_its_one_outcome(
    tmp_path: Path, script: str, texts: tuple[str, ...], reason: str | None
) -> None:
    engine, contexts = Stated(*texts), 2
    made = run(tmp_path, engine, script)
    assert (made.error, made.stop_reason, made.answer, len(made.segments)) == (None, StopReason.ANSWERED, "42", contexts)
    assert reason in (None, made.provenance["contexts"][1])
    if reason == "branch":
        (_, (first, *_)), (begun, _) = made.segments
        assert begun[: len(engine.contexts[0]) + len(first.action_ids)] == (*engine.contexts[0], *first.action_ids), (
            "as sampled, not as shown"
        )
    assert made.provenance["rerendered_tokens"] == (len(TEMPLATE.plain.ids("Not one")) if "Not " in script else 0)
    assert sorted(made.context_of(turn.index) for turn in made.turns) == sorted(engine.contexts)
    good, bad = (_judged(made, name, reward) for name, reward in (("good", 1.0), ("bad", 0.0)))
    rows = rows_of([good, bad], grpo)
    assert len(rows) == 2 * contexts and sum(row.action_tokens for row in rows) == 2 * sum(len(turn.action_ids) for turn in made.turns)
    assert {row.trajectory_id: {value for value in row.advantages if value} for row in rows} == {
        row.trajectory_id: {max(row.advantages, key=abs)} for row in rows
    }, "one advantage for all contexts of an attempt"
    assert all(sum(row.turn_rewards) == pytest.approx(float(row.trajectory_id == "good")) for row in rows)


def _judged(made: Trajectory, name: str, reward: float) -> Trajectory:
    return replace(made, id=name, reward=reward, outcome=Outcome.SUCCESS if reward else Outcome.FAILURE)


class Broken(ToolEnvironment):
    async def step(self, action: Action) -> Step:
        raise EnvironmentFault("the world broke")


FAULTS = {
    "died": ("ask(user(question)); sys.exit('no idea')", Stated("one"), "harness: exit status 1: no idea"),
    "killed": ("ask(user(question)); os.kill(os.getpid(), 9)", Stated("one"), "harness: exit status -9: it said nothing"),
    "silent": ("print(42)", Stated(), "harness: the command made no request of the policy"),
    "an engine": ("ask(user(question))", Stated(EngineFault("no engine is left")), "no engine is left"),
}


@pytest.mark.parametrize(("script", "engine", "error"), FAULTS.values(), ids=FAULTS)
def test_what_breaks_an_attempt_makes_it_invalid_and_says_so(tmp_path: Path, script: str, engine: Stated, error: str) -> None:
    made = run(tmp_path, engine, script)
    assert (made.outcome, made.stop_reason, made.error) == (Outcome.INVALID, StopReason.FAULT, error)


def test_clients_of_every_style_are_served(tmp_path: Path) -> None:
    script = """
import anthropic
said = anthropic.Anthropic(max_retries=0).messages.create(model="claude-x", max_tokens=9_000, messages=user("a"))
answer = client.responses.create(model="gpt-x", input="b", store=False)
print(said.content[-1].text, answer.output_text, ask(user("c"), tool_choice="required", tools=tools()).content)
"""
    engine = Stated("one", "two", "three")
    made = run(tmp_path, engine, script)
    assert (made.error, made.answer, [made.context_of(number) for number in range(3)]) == (None, "one two three", engine.contexts)


REPAIR = """
from pathlib import Path
ask(user(question))
prices = Path("shop/prices.py")
prices.write_text(prices.read_text().replace("prices[1:]", "prices"))
Path("notes.md").write_text("done")
Path("README.md").unlink()
Path("picture").write_bytes(bytes(range(256)))
Path("link").symlink_to("/etc/passwd")
"""


@pytest.mark.slow
@pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")
@pytest.mark.parametrize(("script", "reward"), [(REPAIR, 1.0), ("ask(user(question))", 0.0)], ids=["repaired", "untouched"])
def test_the_working_folder_is_judged_if_the_environment_has_files(tmp_path: Path, script: str, reward: float) -> None:
    task = Task("shop", "repository", "The total leaves out the first price.", (), provenance=write_shop(tmp_path))
    environment = find_environment("repository")(Resources(options={"folder": tmp_path}))
    made = run(tmp_path, Stated("I do."), script, environment, task=task)
    assert (made.error, made.stop_reason, made.answer, made.turns[-1].reward) == (None, StopReason.ANSWERED, "", reward)
    assert "files" not in asyncio.run(environment.step(Action("files", ""))).info, "a policy cannot ask for them"
    changed = asyncio.run(environment.step(FileExchange())).info["files"]
    assert ("notes.md" in changed, "README.md" in changed) == ((True, False) if reward else (False, True))
    assert changed.keys().isdisjoint({"picture", "link"})


def test_calls_that_no_turn_asked_for_are_kept(tmp_path: Path) -> None:
    made = run(tmp_path, Stated("I multiply in code."), "ask(user(question)); print(tools('/multiply', {'a': 6, 'b': 7})['result'])")
    (turn,) = made.turns
    assert ([(one.tool, one.outcome) for one in turn.calls], made.answer) == ([("multiply", "ok"), ("answer", turn.calls[1].outcome)], "42")


RETRIED = {
    "a first request": ("print(ask(user(question)).content)", (EngineFault("busy"), "42")),
    "a later request": (
        "m = user(question); m += [ask(m).to_dict()] + user('on'); print(ask(m).content)",
        ("one", EngineFault("busy"), "42"),
    ),
    "a branch": (
        "m = user(question); m += [ask(m).to_dict()] + user('on'); ask(m); print(ask(m).content)",
        ("one", "two", EngineFault("busy"), "42"),
    ),
}


@pytest.mark.parametrize(("script", "texts"), RETRIED.values(), ids=RETRIED)
def test_a_failure_that_the_client_repeats_leaves_no_trace(tmp_path: Path, script: str, texts: tuple[Any, ...]) -> None:
    made = run(tmp_path, Stated(*texts), "client = openai.OpenAI()\n" + script)
    assert (made.error, made.stop_reason, made.answer, len(made.turns)) == (None, StopReason.ANSWERED, "42", len(texts) - 1)


def test_a_stop_text_ends_the_recorded_tokens_where_it_ends(tmp_path: Path) -> None:
    engine = Stated("Thought. Observation: I made it up.", "42")
    script = "m = user(question); a = ask(m, stop=['Observation:']); m += [a.to_dict()] + user('on'); print(a.content, ask(m).content)"
    made = run(tmp_path, engine, script)
    first, _ = made.turns
    assert (made.answer, len(made.segments)) == ("Thought.  42", 1)
    assert first.action.startswith("Thought. Observation:") and "made" not in first.action
    assert len(first.action_ids) == len(first.action_logprobs)
    assert made.context_of(1) == engine.contexts[1]


def test_a_stream_that_is_cut_is_no_reply(tmp_path: Path) -> None:
    engine = Stated("word " * 300, "42")
    engine.pause = 0.02
    script = """
with client.chat.completions.create(model="p", messages=user(question), stream=True) as parts:
    next(iter(parts))
print(ask(user(question)).content)
"""
    made = run(tmp_path, engine, script)
    assert (made.error, made.answer, len(made.turns), engine.cuts) == (None, "42", 1, 1)


def test_a_command_ends_with_what_it_started_even_in_other_sessions(tmp_path: Path) -> None:
    """The child keeps standard output open, which must not keep the attempt waiting."""
    script = f"""
import subprocess
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
print("word " * 500_000)
print(ask(user(question)).content, flush=True)
os._exit(0)
"""
    made = run(tmp_path, Stated("42"), script, seconds=300)
    assert (made.stop_reason, made.answer, made.error) == (StopReason.ANSWERED, "42", None)
    assert is_gone(tmp_path / "child")


def is_gone(file: Path) -> bool:
    status = Path(f"/proc/{file.read_text()}/stat")
    return not status.exists() or status.read_text().split()[2] == "Z"


def test_a_broken_environment_is_no_fault_of_the_policy(tmp_path: Path) -> None:
    made = run(tmp_path, Stated(call((6, 7))), "work(user(question))", Broken({"multiply": multiply}))
    assert (made.outcome, made.error, len(made.turns)) == (Outcome.INVALID, "error: the world broke", 1)


def test_limits_end_an_attempt_as_what_they_are(tmp_path: Path) -> None:
    made = run(tmp_path, Stated(*[call((6, 7))] * 3), "work(user(question))", horizon=2)
    assert (made.stop_reason, made.error, len(made.turns), made.answer) == (StopReason.MAX_TURNS, None, 2, None)
    small = LIMITS.model_copy(update={"max_context_tokens": 40})
    full = run(tmp_path, Stated("one"), "m = user('x'); m.append(ask(m).to_dict()); ask(m + user('word ' * 60))", limits=small)
    assert (full.stop_reason, full.error, len(full.turns)) == (StopReason.MAX_CONTEXT_TOKENS, None, 1)
    left = run(tmp_path, Stated("one"), "ask(user(question))")
    assert (left.stop_reason, left.outcome, left.answer) == (StopReason.LEFT, None, "one"), "it printed nothing"


def test_a_command_whose_time_is_up_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script = (
        f"import subprocess; child = subprocess.Popen(['sleep', '60']); open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); "
        "ask(user(question)); time.sleep(60)"
    )
    made = run(tmp_path, Stated("one"), script, seconds=20)
    assert (made.stop_reason, made.error, len(made.turns)) == (StopReason.MAX_SECONDS, None, 1)
    assert is_gone(tmp_path / "child")


def test_a_command_that_ends_with_a_request_in_flight_keeps_what_came_before(tmp_path: Path) -> None:
    """The engine takes a while to notice, as one elsewhere does."""
    asked = tmp_path / "asked"

    class Stubborn(Stated):
        async def generate(self, *args: Any) -> Any:
            if self.contexts:
                asked.touch()
                try:
                    await asyncio.sleep(600)
                finally:
                    await asyncio.sleep(1)
            return await super().generate(*args)

    script = f"""
m = user(question)
m += [ask(m).to_dict()] + user("on")
threading.Thread(target=ask, args=(m,)).start()
while not os.path.exists({str(asked)!r}):
    time.sleep(0.05)
print(42, flush=True)
os._exit(0)
"""
    made = run(tmp_path, Stubborn("first"), script)
    assert (made.error, made.stop_reason, made.answer, len(made.turns)) == (None, StopReason.ANSWERED, "42", 1)
    assert made.turns[0].observation_ids == ()


def test_a_retry_after_a_timeout_neither_orphans_nor_invalidates(tmp_path: Path) -> None:
    script = """
m = user(question)
m.append(ask(m).to_dict())
m += user("more")
open(os.environ["SLOW"], "w").close()
try:
    ask(m, timeout=0.5)
except openai.APITimeoutError:
    os.remove(os.environ["SLOW"])
    print(ask(m).content)
"""
    slow = tmp_path / "slow"

    class Slow(Stated):
        async def generate(self, *args: Any) -> Any:
            self.delay = 60.0 if slow.exists() else 0.0
            return await super().generate(*args)

    engine = Slow("first", "lost", "42")
    made = run(tmp_path, engine, script, variables={"SLOW": str(slow)})
    assert (made.error, made.answer, len(made.turns), len(made.segments)) == (None, "42", 2, 1)
    assert made.context_of(1) == engine.contexts[2]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"harness": None}, "set rollout.harness.command"),
    ({"limits": LIMITS.model_copy(update={"max_total_action_tokens": 10})}, "does not support rollout.limits.max_total_action_tokens"),
]


@pytest.mark.parametrize(("changed", "named"), WRONG)
def test_what_the_loop_cannot_do_is_said_before_it_runs(changed: dict[str, Any], named: str) -> None:
    given = {"limits": LIMITS, "harness": HarnessConfig(command=("true",))} | changed
    with pytest.raises(RequestError, match=named):
        HarnessLoop(Stated(), DIALECT, given["limits"], given["harness"])


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    request = RolloutRequest("t", TASK, "p", 6, seed=1)
    loop = HarnessLoop(Stated(), DIALECT, LIMITS, HarnessConfig(command=("no-such-agent",)))
    made = asyncio.run(loop.run(request, ToolEnvironment({})))
    assert made.outcome is Outcome.INVALID and "'no-such-agent' cannot be started" in str(made.error)
