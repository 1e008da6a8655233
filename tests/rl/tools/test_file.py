"""Files that name tools, and the environment that is made of them by configuration alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rl.envs.base import Environment, Resources, ToolOutcome, find_environment
from rl.renderers.base import Action
from rl.tools.file import load_tools
from warehouse.errors import RequestError
from warehouse.records import Task

EXAMPLES = Path(__file__).parent / "examples.py"


def write(folder: Path, text: str) -> Path:
    path = folder / "tools.toml"
    path.write_text(text)
    return path


def test_functions_and_classes_are_found_by_module_and_by_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('def greet(name: str) -> str:\n    """Greet."""\n    return f"Hello {name}"\n')
    path = write(
        tmp_path,
        f"""
        [tools.greet]
        function = "mine.py:greet"
        timeout_seconds = 2.5

        [tools.find]
        function = "tests.rl.tools.examples:look_up"
        retries = 4

        [tools.notes]
        class = "{EXAMPLES}:Notebook"
        options = {{ pages = 1 }}
        """,
    )
    tools = load_tools(path).tools
    assert list(tools) == ["greet", "find", "notes"]
    assert tools["greet"].rules.timeout_seconds == 2.5
    assert (tools["find"].rules.retries, tools["find"].rules.probe) == (4, {"key": "known"})
    assert tools["find"].schema["function"]["name"] == "find"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lists no tools: add a table"),
        ("[tools.a", "is not TOML"),
        ('[tools.a]\nfunction = "a:b"\nclass = "a:b"', "tools.a: set either `function` or `class`"),
        ('[tools.a]\nfunction = "a:b"\noptions = { b = 1 }', "`options` need a `class`"),
        ('[tools.a]\nfunction = "no.such.module:b"', "function or class of the tool 'a' .*cannot be imported"),
        ('[tools.a]\nfunction = "a:b"\nworker = { gpu = 1 }', r"unknown key tools.a.worker.gpu \(did you mean gpus\?\)"),
        ('[tools.a]\nfunction = "missing.py:b"', "names a file that does not exist: .*missing.py"),
        ('[tools.a]\nfunction = "tests.rl.tools.examples:Notebook"', "but that is a class: set it as `class`"),
        ('[tools.answer]\nfunction = "tests.rl.tools.examples:look_up"', "is called 'answer'"),
        ('[tools.a]\nfunction = "tests.rl.tools.examples:look_up"\nworker = {}', "runs in a Ray worker, but Ray is not running"),
        ("[servers.a]", "servers.a: set either `command` or `url`"),
    ],
)
def test_errors_in_a_tools_file_are_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        load_tools(write(tmp_path, text))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_tools_of_one_name_are_refused_wherever_they_come_from(tmp_path: Path) -> None:
    server = f'[servers.tests]\ncommand = ["{sys.executable}", "{Path(__file__).with_name("mcp_server.py")}"]\n'
    with pytest.raises(RequestError, match=r"two tools of .* are called 'look_up': rename one, or give its server a prefix"):
        load_tools(write(tmp_path, f'{server}[tools.look_up]\nfunction = "tests.rl.tools.examples:look_up"'))


def environment(folder: Path, text: str) -> Environment:
    return find_environment("tools")(Resources(options={"file": str(write(folder, text))}, trajectory_id="t"))


async def test_the_environment_tools_is_made_of_a_file(tmp_path: Path) -> None:
    world = environment(tmp_path, '[tools.find]\nfunction = "tests.rl.tools.examples:look_up"')
    await world.reset(Task("k", "tools", "?", ()), seed=0)
    found, missed, wrong = [await world.step(Action("find", text)) for text in ("known", "unknown", '{"lock": 1}')]
    assert (found.observation, found.tool_outcome, found.info) == ("value", ToolOutcome.OK, {"arguments": {"key": "known"}})
    assert (missed.observation, missed.tool_outcome) == ("nothing is known of it", ToolOutcome.MISS)
    assert wrong.tool_outcome is ToolOutcome.ERROR
    assert (await world.step(Action("answer", "x"))).done
    await world.close()
