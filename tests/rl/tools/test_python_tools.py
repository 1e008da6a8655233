"""Tools that are Python functions and classes: their arguments, calls, results and instances."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from rl.content import ImagePart, TextPart
from rl.envs.base import EnvironmentFault, ToolOutcome
from rl.envs.tool_use import ToolEnvironment
from rl.renderers.base import Action
from rl.tools import Rewarded, ToolError, ToolFault, tool
from rl.tools.arguments import read_signature
from rl.tools.calls import check_health, dead_tools
from rl.tools.config import CallLimits, CallRules
from rl.tools.deadline import deadline, remaining
from rl.tools.file import by_name
from rl.tools.python_tools import ClassTool, FunctionTool
from rl.tools.tool import CUT_MARK, to_response
from tests.rl.hostile_images import png
from tests.rl.tools.calling import call, text_of
from tests.rl.tools.examples import HOSTILE, LIES, PNG, Notebook, lie, lie_slowly, look_up, over, repeat
from warehouse.errors import RequestError
from warehouse.records import Task


def test_the_schema_comes_from_annotations_and_docstring() -> None:
    function = repeat.schema["function"]
    assert (function["name"], function["description"]) == ("repeat", "Say a text again and again.")
    found = {name: (each["type"], each["description"]) for name, each in function["parameters"]["properties"].items()}
    assert found == {"text": ("string", "what to say."), "times": ("integer", "how often, at least once.")}
    assert (function["parameters"]["required"], function["parameters"]["additionalProperties"]) == (["text"], False)


def odd_names(json: str, schema: int, model_config: Annotated[int, Field(ge=1)], _of: Literal["a", "b"] = "a") -> list[str]:
    return [json, str(schema), str(model_config), _of]


def test_arguments_may_be_called_as_pydantic_calls_its_own() -> None:
    signature = read_signature(odd_names, "odd_names")
    assert set(signature.parameters["properties"]) == {"json", "schema", "model_config", "_of"}
    assert odd_names(**signature.check({"json": "x", "schema": "3", "model_config": 1})) == ["x", "3", "1", "a"]
    with pytest.raises(ToolError, match="model_config: Input should be greater than or equal to 1"):
        signature.check({"json": "x", "schema": 3, "model_config": 0})


def no_annotation(text) -> str:  # type: ignore[no-untyped-def]
    return text


def any_number(*texts: str) -> str:
    return "".join(texts)


class Opaque:
    """Nothing that JSON knows."""


def of_a_class(opaque: Opaque) -> str:
    return str(opaque)


def gives_a_class(text: str) -> Opaque:
    return Opaque()


def yields(text: str) -> Iterator[str]:
    yield text


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_annotation, "no type annotation for 'text'"),
        (any_number, "any number of arguments"),
        (of_a_class, "JSON cannot represent: .*Opaque"),
        (gives_a_class, "neither text nor JSON"),
        (yields, "yields"),
        (lambda text: text, "'<lambda>'"),
    ],
)
def test_a_signature_that_a_policy_could_not_call_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        tool(function)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "arguments",
    ['{"times": 2}', '{"text": "a", "times": "many"}', '{"text": "a", "sound": 1}', '{"text": "\\ud800"}', '{"text": "a", "times": 1e999}'],
)
async def test_wrong_arguments_are_the_callers_error(arguments: str) -> None:
    refusal = (await call(repeat, arguments)).refusal
    assert isinstance(refusal, ToolError) and "wrong arguments for repeat" in str(refusal)


FAULTS = {
    "wrong type": "int", "no type": "object", "endless": "count", "raise": "ValueError: broken", "raise much": "ValueError: xxx",
    "stop": "StopIteration", "leave": "SystemExit", "interrupt": "KeyboardInterrupt", "hang": "0.2 seconds",
}  # fmt: skip
SHOWN = {
    "100 MB": "x" * 996 + CUT_MARK, "surrogates": "half ? a pair", "hostile": HOSTILE, "nothing": "", "refuse": "Error: 4: not so",
    "refuse at length": "Error: " + "x" * 996 + CUT_MARK,
}  # fmt: skip


@pytest.mark.parametrize("function", [lie, lie_slowly])
@pytest.mark.parametrize("how", LIES)
async def test_every_lie_ends_in_a_bounded_observation_or_in_a_fault_that_names_the_tool(function: Any, how: str) -> None:
    rules = CallRules(timeout_seconds=0.2 if how == "hang" else 300.0, max_characters=1000)
    world = ToolEnvironment({"liar": FunctionTool(function, "liar", rules)})
    if how in SHOWN:
        step = await world.step(Action("liar", how))
        assert (step.observation, step.tool_outcome) == (SHOWN[how], ToolOutcome.ERROR if "refuse" in how else ToolOutcome.OK)
        return
    with pytest.raises(EnvironmentFault, match=rf"the tool 'liar' failed: .*{FAULTS[how]}") as fault:
        await world.step(Action("liar", how))
    assert len(str(fault.value)) < 1000 and "\n" not in str(fault.value)


async def test_a_tool_that_holds_on_to_its_call_times_out() -> None:
    with pytest.raises(ToolFault, match=r"0\.2 seconds"):  # it would hang until the next line
        await call(FunctionTool(lie_slowly, rules=CallRules(timeout_seconds=0.2)), "hang and hold on")
    over.set()


async def test_hanging_threads_do_not_block_other_calls() -> None:
    liar = FunctionTool(lie, rules=CallRules(timeout_seconds=500))
    hung = [asyncio.ensure_future(call(liar, "hang")) for _ in range(100)]
    await asyncio.sleep(0.05)
    assert await text_of(repeat, "a") == "aa"
    assert not any(task.done() for task in hung)
    for task in hung:
        task.cancel()
    await asyncio.wait(hung)


async def test_faults_are_tried_again_where_the_tool_allows_it_and_counted() -> None:
    calls: list[str] = []

    @tool(retries=3, backoff_seconds=0.01)
    def flaky(text: str) -> str:
        calls.append(text)
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return text

    done = await call(flaky, "a")
    assert (done.retries, len(calls)) == (2, 3)
    assert done.latency_seconds >= 0.03


async def test_a_deadline_is_inherited_and_bounds_all_attempts_of_a_call() -> None:
    seen: list[float] = []

    def slow(query: str) -> str:
        """In a thread, like every plain function."""
        seen.append(remaining() or 0.0)
        time.sleep(0.05)
        raise OSError("down")

    patient = FunctionTool(slow, rules=CallRules(timeout_seconds=30.0, retries=100, backoff_seconds=0.01))
    began = time.monotonic()
    with deadline(0.6), pytest.raises(ToolFault, match=r"longer than 0\.6 seconds"):
        await call(patient, "x")
    assert time.monotonic() - began < 2 and 1 < len(seen) < 13
    assert sorted(seen, reverse=True) == seen and seen[0] <= 0.6 and remaining() is None


async def test_the_health_check_names_dead_tools() -> None:
    @tool(probe={"text": "a"})
    def broken(text: str) -> str:
        raise ConnectionError("refused")

    @tool(probe={"text": 5, "more": 1})
    def strict(text: str) -> str:
        return text

    await check_health(look_up)
    of_broken, of_strict = await dead_tools(by_name([look_up, broken, strict]))
    assert of_broken == "the tool 'broken' is dead: ConnectionError: refused"
    assert "'strict' is dead: it refused its probe" in of_strict and "text: Input should be a valid string" in of_strict


TASK = Task("k", "tools", "?", ())


async def test_a_trajectory_has_an_instance_of_its_own_until_it_ends(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    notebook = ClassTool(Notebook, "notes", {"pages": 3, "journal": str(journal)})
    worlds = [ToolEnvironment({"notes": notebook}, name) for name in ("a", "b", "c")]
    for seed, world in enumerate(worlds):
        await world.reset(TASK, seed)
    for world, note in ((worlds[0], "one"), (worlds[1], "two"), (worlds[0], "three")):
        await world.step(Action("notes", note))
    assert (await worlds[0].step(Action("notes", "four"))).observation == "one; three; four"
    assert (await worlds[0].step(Action("notes", "five"))).tool_outcome is ToolOutcome.ERROR
    for world in worlds:
        await world.close()
        await world.close()
    assert sorted(journal.read_text().splitlines()) == ["create a 0", "create b 1", "release a", "release b"]


async def test_calls_of_one_turn_run_one_after_another_in_their_order() -> None:
    world = ToolEnvironment({"notes": ClassTool(Notebook, "notes", {"pages": 9})}, "a")
    steps = await asyncio.gather(*(world.step(Action("notes", text)) for text in "abc"))
    assert [step.observation for step in steps] == ["a", "a; b", "a; b; c"]


class Broken:
    def create(self, trajectory_id: str, seed: int) -> None:
        raise OSError("no room")

    def execute(self, text: str) -> str:
        return text

    def release(self) -> None:
        """Nothing."""


class Clinging(Broken):
    def create(self, trajectory_id: str, seed: int) -> None:
        """Nothing."""

    def release(self) -> None:
        raise OSError("it will not close")


async def test_a_class_that_cannot_be_opened_or_released_is_at_fault_and_the_others_are_released(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    notebook = ClassTool(Notebook, "notes", {"journal": str(journal)})
    world = ToolEnvironment({"clinging": ClassTool(Clinging, "clinging"), "broken": ClassTool(Broken, "broken"), "notes": notebook}, "a")
    with pytest.raises(EnvironmentFault, match="the tool 'broken' could not be opened: OSError: no room"):
        await world.step(Action("broken", "text"))
    for name in ("notes", "clinging"):
        assert (await world.step(Action(name, "text"))).tool_outcome is ToolOutcome.OK
    with pytest.raises(EnvironmentFault, match="the tool 'clinging' could not be released"):
        await world.close()
    assert journal.read_text().splitlines() == ["create a 0", "release a"]


LIMITS = CallLimits(max_characters=100, max_image_bytes=2000)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ({"found": ["a", 1, None]}, '{"found": ["a", 1, null]}'),
        ({"b", "a"}, '["a", "b"]'),
        ([TextPart("see:"), ImagePart(PNG, "image/png")], "see:\n[image/png, 69 bytes]"),
    ],
    ids=["text", "nothing", "json", "set", "parts"],
)
def test_results_of_every_kind_are_shown(result: Any, text: str) -> None:
    assert to_response(result, LIMITS).text == text


def test_what_is_too_long_is_cut_at_the_right_with_a_mark() -> None:
    shown = to_response("x" * 250, LIMITS)
    assert (shown.text, shown.cut) == ("x" * 96 + CUT_MARK, 150)
    assert len(to_response(list(range(10**6)), LIMITS).text) == 100
    parts = to_response([TextPart("x" * 70), TextPart("y" * 70), TextPart("z")], LIMITS)
    assert parts.parts == (TextPart("x" * 70), TextPart("y" * 26 + CUT_MARK), TextPart(CUT_MARK))


CYCLIC: list[Any] = []
CYCLIC.append(CYCLIC)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (CYCLIC, "Circular"),
        (ImagePart(b"GIF89a", "image/png"), "image/png"),
        (ImagePart(PNG + bytes(2000), "image/png"), "max_image_bytes"),
        (ImagePart(png(8_000, 8_000), "image/png"), "16,777,216 pixels"),
        ([ImagePart(PNG, "image/png")] * 17, "17 images"),
    ],
    ids=["cyclic", "no image", "large image", "many pixels", "many images"],
)
def test_what_cannot_be_shown_is_refused(result: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        to_response(result, LIMITS)


def lend(days: float) -> Rewarded:
    return {"lent": True}, days / 10, {"days": days}


def give() -> Rewarded:
    return "given", 1


def point() -> tuple[str, float]:
    return "here", 0.5


def short() -> Rewarded:
    return ("no reward",)  # type: ignore[return-value]


def endless() -> Rewarded:
    return "rich", float("inf")


async def test_a_tuple_is_a_reward_only_where_the_annotation_says_so() -> None:
    made = [(await call(FunctionTool(each), values)).response for each, values in ((lend, {"days": 4}), (give, {}), (point, {}))]
    lent, given, pointed = made
    assert lent is not None and (lent.text, lent.reward, lent.figures) == ('{"lent": true}', 0.4, {"days": 4.0})
    assert given is not None and (given.text, given.reward, given.figures) == ("given", 1.0, {})
    assert pointed is not None and (pointed.text, pointed.reward) == ('["here", 0.5]', None)
    for function in (short, endless):
        with pytest.raises(ToolFault):
            await call(FunctionTool(function), {})


class Exam:
    """Questions of a row."""

    def create(self, trajectory_id: str, seed: int, task: Task) -> None:
        self._hint = str(task.provenance["hint"])

    def execute(self) -> str:
        return self._hint

    def release(self) -> None: ...


async def test_a_class_that_asks_for_it_gets_the_task_of_its_trajectory() -> None:
    environment = ToolEnvironment({"exam": ClassTool(Exam, "exam")}, "t")
    await environment.reset(Task("k", "tools", "?", ("x",), provenance={"hint": "look left"}), 0)
    assert (await environment.step(Action("exam", "{}"))).observation == "look left"
    await environment.close()
