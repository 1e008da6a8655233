"""Tools that are Python functions and classes: their arguments, calls, results and instances."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from transformers import AutoTokenizer

from rl.content import TextPart
from rl.envs.base import EnvironmentFault, Step, ToolOutcome
from rl.envs.tool_use import ToolEnvironment
from rl.renderers.base import Action, Truncation
from rl.renderers.tags import TagDialect
from rl.tools import Tool, ToolError, ToolFault, tool
from rl.tools.arguments import read_signature
from rl.tools.calls import CallOutcome, call_tool, check_health, dead_tools
from rl.tools.config import CallLimits, CallRules
from rl.tools.deadline import deadline, remaining
from rl.tools.file import by_name
from rl.tools.python_tools import ClassTool, FunctionTool
from rl.tools.tool import CUT_MARK, to_response
from tests.rl.tools.examples import HOSTILE, LIES, Notebook, give, lie, lie_slowly, look_up, over, repeat
from warehouse.errors import RequestError
from warehouse.records import Task


def test_the_schema_comes_from_annotations_and_docstring() -> None:
    function = repeat.schema["function"]
    assert function["name"] == "repeat"
    assert function["description"] == "Say a text again and again."
    properties = function["parameters"]["properties"]
    assert properties["text"]["type"] == "string"
    assert properties["text"]["description"] == "what to say."
    assert properties["times"]["type"] == "integer"
    assert properties["times"]["description"] == "how often, at least once."
    assert function["parameters"]["required"] == ["text"]
    assert function["parameters"]["additionalProperties"] is False


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
        (no_annotation, "has no type annotation for 'text': add one"),
        (any_number, "takes any number of arguments"),
        (of_a_class, "takes an argument that JSON cannot hold: .*Opaque"),
        (gives_a_class, "returns what is neither text nor JSON nor content parts"),
        (yields, "yields: a tool returns its result whole"),
        (lambda text: text, "is called '<lambda>': a name is a letter"),
    ],
)
def test_a_signature_that_a_policy_could_not_call_is_refused(function: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        tool(function)
    assert "\n" not in str(refused.value)


QUICK = CallRules(timeout_seconds=0.2)


async def call(called: Tool, arguments: Any) -> CallOutcome:
    return await call_tool(called, await called.open("t", 0), arguments)


async def text_of(called: Tool, arguments: Any) -> str:
    shown = (await call(called, arguments)).response
    assert shown is not None
    return shown.text


@pytest.mark.parametrize(
    "arguments",
    ['{"times": 2}', '{"text": "a", "times": "many"}', '{"text": "a", "sound": 1}', '{"text": "\\ud800"}', '{"text": "a", "times": 1e999}'],
)
async def test_wrong_arguments_are_the_callers_error(arguments: str) -> None:
    refusal = (await call(repeat, arguments)).refusal
    assert isinstance(refusal, ToolError)
    assert str(refusal).startswith("wrong arguments for repeat: ")


@pytest.mark.parametrize("function", [lie, lie_slowly])
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("wrong type", "it returned a int, which is not what it says it returns"),
        ("endless", "it returned a count, which is not"),
        ("raise", "'{name}' failed: ValueError: broken$"),
        ("raise much", "ValueError: x{{400}}"),
        ("leave", "it tried to end the process: SystemExit"),
        ("interrupt", "it tried to end the process: KeyboardInterrupt"),
    ],
)
async def test_a_misbehaving_tool_is_a_fault_and_named(function: Any, how: str, reason: str) -> None:
    liar = FunctionTool(function, rules=CallRules(max_characters=1000))
    with pytest.raises(ToolFault, match=reason.format(name=liar.name)) as fault:
        await call(liar, how)
    assert f"the tool {liar.name!r} failed" in str(fault.value)
    assert len(str(fault.value)) < 1000
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(("function", "how"), [(lie, "hang"), (lie_slowly, "hang"), (lie_slowly, "hang and hold on")])
async def test_a_hanging_tool_times_out(function: Any, how: str) -> None:
    with pytest.raises(ToolFault, match=r"took longer than 0\.2 seconds"):  # it would hang until the next line
        await call(FunctionTool(function, rules=QUICK), how)
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


@pytest.mark.parametrize("function", [lie, lie_slowly])
async def test_tool_output_is_bounded_and_valid_unicode(function: Any) -> None:
    liar = FunctionTool(function, rules=CallRules(max_characters=1000))
    assert len(await text_of(liar, "100 MB")) == 1000
    assert await text_of(liar, "surrogates") == "half ? a pair"
    assert await text_of(liar, "hostile") == HOSTILE
    refused = await call(liar, "refuse at length")
    assert isinstance(refused.refusal, ToolError)
    assert len(str(refused.refusal)) == 1000
    assert str((await call(liar, "refuse")).refusal) == "4: not so"


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
    assert await dead_tools(by_name([look_up, broken, strict])) == (
        "the tool 'broken' is dead: ConnectionError: refused",
        'the tool \'strict\' is dead: it refused its probe {"text": 5, "more": 1}: '
        "wrong arguments for strict: text: Input should be a valid string",
    )


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
    steps = await asyncio.gather(*(world.step(Action("notes", str(number))) for number in range(5)))
    assert [step.observation for step in steps] == ["0", "0; 1", "0; 1; 2", "0; 1; 2; 3", "0; 1; 2; 3; 4"]


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
    ("what", "text"),
    [
        ("text", "plain"),
        ("nothing", ""),
        ("json", '{"found": ["a", 1, null]}'),
        ("set", '["a", "b"]'),
        ("parts", "see:\n[image/png, 69 bytes]"),
    ],
)
def test_results_of_every_kind_are_shown(what: str, text: str) -> None:
    assert to_response(give(what), LIMITS).text == text


def test_what_is_too_long_is_cut_at_the_right_with_a_mark() -> None:
    shown = to_response("x" * 250, LIMITS)
    assert shown.text == "x" * 96 + CUT_MARK
    assert shown.cut == 150
    assert len(to_response(give("much json"), LIMITS).text) == 100
    parts = to_response([TextPart("x" * 70), TextPart("y" * 70), TextPart("z")], LIMITS)
    assert parts.parts == (TextPart("x" * 70), TextPart("y" * 26 + CUT_MARK), TextPart(CUT_MARK))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("cyclic", "Circular"),
        ("no image", "are not image/png"),
        ("large image", "larger than max_image_bytes"),
        ("image of many pixels", "larger than the 16,777,216 pixels"),
        ("many images", "holds 17 images, and 16 are the most"),
    ],
)
def test_what_cannot_be_shown_is_refused(what: str, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        to_response(give(what), LIMITS)


TOOL_USE_QUICK, PATIENT = (CallRules(timeout_seconds=seconds, max_characters=1000) for seconds in (0.2, 60.0))
"""For tools that may hang, and for those that do not."""


async def answer_of(function: Callable[..., Any], argument: str, rules: CallRules = PATIENT) -> Step:
    return await ToolEnvironment({"tool": FunctionTool(function, rules=rules)}).step(Action("tool", argument))


@pytest.mark.parametrize("how", sorted(LIES))
async def test_every_lie_ends_in_an_observation_or_in_a_fault_that_names_the_tool(how: str) -> None:
    try:
        step = await answer_of(lie, how, TOOL_USE_QUICK)
    except EnvironmentFault as fault:
        assert "the tool 'lie' failed: " in str(fault)
        return
    assert step.tool_outcome in (ToolOutcome.OK, ToolOutcome.ERROR)
    assert len(step.observation) <= 1000 + len("Error: ")
    step.observation.encode()


async def test_what_a_tool_returns_never_becomes_a_control_token(tiny_policy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    dialect = TagDialect(tokenizer)
    ids = dialect.observation_ids((await answer_of(lie, "hostile")).observation, Truncation(100))
    assert HOSTILE.split("\x00")[0] in dialect.decode(ids)
    assert not set(tokenizer.get_added_vocab().values()) & set(ids[1:-1])
