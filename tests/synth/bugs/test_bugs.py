"""Mutations change one piece of a function; those that tests notice become tasks that undoing them solves."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from eval.graders.repository import read_task, verify_patch, why_not_admitted
from eval.sandbox.sandbox import isolation
from synth.bugs.config import BugsConfig
from synth.bugs.mutations import mutate, mutations
from synth.bugs.packages import check_package, read_package
from synth.bugs.tasks import plant_bugs
from warehouse.errors import RequestError

isolated = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")

FILES = {
    "setup.py": "raise SystemExit('packaging is never run')\n",
    "src/shop/__init__.py": "",
    "src/shop/prices.py": "def total(prices):\n    return sum(prices)\n\n\ndef cheap(price):\n    return not price > 9\n",
    "tests/test_prices.py": "from shop.prices import cheap\n\n\ndef test_limit():\n    assert cheap(9) and not cheap(10)\n",
    "tests/test_totals.py": "from shop.prices import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--cov=shop'\n",
}


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("x < 1", {"x <= 1", "x < 2", "x < 0"}),
        ("x is not None", {"x is None"}),
        ("x  not in  y", {"x  in  y"}),
        ("f(x, y=2)", {"f(x, y=3)", "f(x, y=1)"}),
        ("f(x, 'ü')", {"f('ü', x)"}),
        ("not x", {"x"}),
        ("x and y", {"x or y"}),
        ("(x) + (y)", {"(x) - (y)"}),
        ("x # + y\n     - y", {"x # + y\n     + y"}),
        ("True", {"False"}),
        ("'1 < 2'", set()),
    ],
)
def test_an_expression_has_these_mutations(body: str, changed: set[str]) -> None:
    source = f"LIMIT = 3\n\n\ndef ü(x, y=1):\n    z = ({body})\n".encode()
    made = [mutate(source, mutation) for mutation in mutations(source)]
    found = {text.decode().partition("z = (")[2].removesuffix(")\n") for text in made if text is not None}
    assert found == changed


def test_a_return_is_dropped_and_what_is_no_python_has_no_mutation() -> None:
    source = b"class A:\n    def f(self):\n        return 'x'\n"
    (mutation,) = mutations(source)
    assert (mutation.kind, mutation.function, mutation.line) == ("return", "A.f", 3)
    assert mutate(source, mutation) == b"class A:\n    def f(self):\n        'x'\n"
    assert mutations(b"def f(") == mutations(b"\xff") == mutations(b"x = 1 < 2") == []


def archived(folder: Path, name: str) -> Path:
    path = folder / name
    if name.endswith(".whl"):
        with zipfile.ZipFile(path, "w") as wheel:
            for file, text in FILES.items():
                wheel.writestr(file, text)
        return path
    with tarfile.open(path, "w:gz") as archive:
        for file, text in FILES.items():
            member = tarfile.TarInfo(f"shop-1.0/{file}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_package_is_read_from_a_folder_an_archive_or_what_is_installed(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = [
        read_package(str(path)) for path in (tmp_path / "shop", archived(tmp_path, "shop-1.0.tar.gz"), archived(tmp_path, "shop-1.0.whl"))
    ]
    assert all(package == found[0] for package in found) and found[0].name == "shop"
    assert found[0].tests == ["tests/test_prices.py", "tests/test_totals.py"]
    assert found[0].modules == ["src/shop/__init__.py", "src/shop/prices.py"]
    assert "iniconfig/__init__.py" in read_package("iniconfig").modules
    with pytest.raises(RequestError, match="nor an installed package"):
        check_package(str(tmp_path / "absent"))


@isolated
@pytest.mark.slow
def test_planted_bugs_are_tasks_that_hold_and_the_rest_is_counted(tmp_path: Path) -> None:
    package = read_package(str(archived(tmp_path, "shop-1.0.tar.gz")))
    made = plant_bugs(package, BugsConfig(packages=("shop",), count=2, tries=1), 3, tmp_path / "snapshots")
    assert made.tried == len(made.tasks) + len(made.failures) == 2
    assert {failure.kind for failure in made.failures} <= {"not_noticed", "nothing_passes", "no_outcome"}
    task = next(task for task in made.tasks if "total" in task.question)
    assert "assert total([1, 2]) == 3" in task.question and "line" not in task.question
    read = read_task(tmp_path / "snapshots", task.provenance)
    assert read.fail_to_pass == ("tests/test_totals.py::test_total",) and read.pass_to_pass == ("tests/test_prices.py::test_limit",)
    assert "tests/test_totals.py" not in read.files and "tests/test_prices.py" in read.files
    assert why_not_admitted(read, task.proofs["patch"]) is None
    assert why_not_admitted(read, "") == "it has no reference patch"
    assert "do not pass" in str(why_not_admitted(read, "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n"))


@isolated
@pytest.mark.slow
def test_a_package_without_passing_tests_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    package = read_package(str(archived(tmp_path, "shop-1.0.tar.gz")))
    broken = {**package.files, "src/shop/prices.py": b"import absent\n"}
    config = BugsConfig(packages=("shop",))
    for files, kind, told in ((broken, "no_passing_test", "No module named 'absent'"), ({}, "no_tests", "no file test_")):
        made = plant_bugs(type(package)("shop", files), config, 0, tmp_path)
        assert [failure.kind for failure in made.failures] == [kind] and told in made.failures[0].reason and not made.tasks


@isolated
@pytest.mark.slow
def test_partial_credit_is_the_share_of_repaired_tests_unless_something_breaks(tmp_path: Path) -> None:
    files = {
        "a.py": "def f(x):\n    return x\n",
        "t.py": "from a import f\n" + "".join(f"def test_{n}():\n    assert f({n}) == {n * n}\n" for n in range(4)),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    described = {"snapshot": ".", "fail_to_pass": ["t.py::test_2", "t.py::test_3"], "pass_to_pass": ["t.py::test_0", "t.py::test_1"]}
    task = read_task(tmp_path, described)
    for returned, share in (("x * x", 1.0), ("x * x if x < 3 else 0", 0.5), ("4", 0.0)):
        patch = f"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def f(x):\n-    return x\n+    return {returned}\n"
        verdict = verify_patch(task, patch)
        assert (verdict.share, verdict.resolved) == (share, share == 1.0)
    assert why_not_admitted(task, patch.replace("return 4", "return x")) is not None
    with pytest.raises(RequestError, match="names no test"):
        read_task(tmp_path, {**described, "fail_to_pass": []})
