"""Harbor tasks: what of a Dockerfile the sandbox can be, working copies that last, and tests that judge them out of a policy's reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eval.graders.harbor import HarborTask, Unsupported, read_folder, run_command, verify_copy, why_not_admitted
from eval.sandbox.sandbox import isolation

isolated = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")

FILES = {"tests/test.sh": b"", "environment/a.txt": b"a", "environment/src/b.py": b"b", "environment/src/deep/c.py": b"c"}


@pytest.mark.parametrize(
    ("dockerfile", "image", "workdir"),
    [
        ("FROM ubuntu:24.04\nWORKDIR /app", set(), "/app"),
        ("# a comment\nfrom python\nWORKDIR /data\nWORKDIR in\nCOPY a.txt .\n", {"data/in/a.txt"}, "/data/in"),
        ("FROM x\nWORKDIR /app\nCOPY src/ /app/lib/\nCMD bash", {"app/lib/b.py", "app/lib/deep/c.py"}, "/app"),
        ('FROM x\nWORKDIR /app\nCOPY --chown=me ["a.txt", "renamed.txt"]', {"app/renamed.txt"}, "/app"),
        ("FROM x\nWORKDIR /app\nCOPY src/*.py \\\n  a.txt /opt/", {"opt/b.py", "opt/a.txt"}, "/app"),
    ],
)
def test_a_dockerfile_of_a_base_image_and_copies_is_read(dockerfile: str, image: set[str], workdir: str) -> None:
    found = read_folder({**FILES, "environment/Dockerfile": dockerfile.encode()})
    assert (set(found["image"]), found["workdir"]) == (image, workdir)


def test_variables_of_a_dockerfile_are_kept() -> None:
    found = read_folder({**FILES, "environment/Dockerfile": b"FROM x\nWORKDIR /app\nENV A=1 B='2 3'\nENV C 4 5\n"})
    assert found["variables"] == {"A": "1", "B": "2 3", "C": "4 5"}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {"environment/Dockerfile": b"FROM x\nWORKDIR /app\nRUN apt-get update && \\\n  apt-get install gcc"},
            "runs `RUN apt-get update && apt-get",
        ),
        ({"environment/Dockerfile": b"FROM x AS a\nFROM y\nWORKDIR /app"}, "2 stages"),
        ({"environment/Dockerfile": b"FROM x\nWORKDIR /app\nCOPY --from=uv /uv /bin/"}, "not among the task's files"),
        ({"environment/Dockerfile": b"FROM x\nWORKDIR /app\nCOPY absent.txt ."}, "not in environment/"),
        ({"environment/Dockerfile": b"FROM x\nWORKDIR /app\nCOPY a.txt /usr/bin/a"}, "works in /usr"),
        ({"environment/Dockerfile": b"FROM x\nWORKDIR /app\nCOPY a.txt /tests/test.sh"}, "works in /tests"),
        ({"environment/Dockerfile": b"FROM x\nWORKDIR /app/../../etc"}, "works in /app"),
        ({"environment/Dockerfile": b"FROM x\n"}, "works in /,"),
        ({"environment/docker-compose.yaml": b"", "environment/Dockerfile": b"FROM x"}, "docker compose"),
        ({}, "no environment/Dockerfile"),
        ({"environment/Dockerfile": b"FROM x\nWORKDIR /app", "tests/test.sh": None}, "no tests/test.sh"),
    ],
)
def test_what_a_task_needs_beyond_that_is_named(files: dict[str, bytes | None], told: str) -> None:
    given = {name: content for name, content in {**FILES, **files}.items() if content is not None}
    with pytest.raises(Unsupported, match=told):
        read_folder(given)


JUDGE = b"""#!/bin/bash
uvx --with pytest==8.4.1 pytest --ctrf /logs/verifier/ctrf.json /tests/test_state.py -q
[ $? -eq 0 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
STATE = b"from pathlib import Path\n\n\ndef test_state():\n    assert Path('/app/count.txt').read_text() == '3'\n"
TASK = HarborTask(
    {"app/count.txt": b"1"},
    {"test.sh": JUDGE, "test_state.py": STATE},
    {"solve.sh": b"cd /app\nprintf $WANTED > count.txt\n"},
    "/app",
    {"WANTED": "3"},
)


@isolated
@pytest.mark.slow
def test_a_working_copy_lasts_from_command_to_command_and_its_tests_are_not_in_it() -> None:
    first = run_command(TASK, None, "cat count.txt; printf 2 > count.txt; ln -s /app/count.txt link; exit 3")
    assert (first.status, first.output) == (3, "1")
    script = "printf x > /tests/test.sh; printf 1 > /logs/verifier/reward.txt; printf 'echo ran' > run; chmod +x run"
    second = run_command(TASK, first.state, script)
    hidden = "ls -A /tests/ /solution/ /logs/verifier/ | wc -w"
    third = run_command(TASK, second.state, f"cat link; ./run; {hidden}; python3 -c 'print(6 * 7)'; sleep 60 &")
    assert (third.status, third.output) == (0, "2ran\n3\n42\n")
    assert verify_copy(TASK, third.state)[0] == 0
    done = run_command(TASK, third.state, "printf 3 > count.txt")
    assert verify_copy(TASK, done.state)[0] == 1


@isolated
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"solution": {}}, "it has no solution/solve.sh"),
        ({"image": {"app/count.txt": b"3"}}, "its tests pass without any change"),
        ({"variables": {"WANTED": "4"}}, "its own solution gets the reward 0"),
        ({"tests": {"test.sh": b"echo no reward"}}, "its own solution gets no reward: no reward"),
        (
            {"tests": {"test.sh": b"""cat /app/count.txt > /logs/verifier/x; echo '{"reward": 0.5}' > /logs/verifier/reward.json"""}},
            "the reward 0.5",
        ),
    ],
)
def test_a_task_is_admitted_if_its_solution_passes_and_nothing_fails(change: dict[str, object], why: str | None) -> None:
    found = why_not_admitted(replace(TASK, **change))  # type: ignore[arg-type]
    assert found == why or (why is not None and why in str(found))
