"""Packages in which bugs are planted: their files, read as data, and which of them are tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from eval.graders.repository import CONFIGURES_TESTS, Files, read_snapshot
from warehouse.errors import RequestError

_TEST = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|tests)\.py$")
_TEST_FOLDERS = frozenset(("test", "tests", "testing"))
_NO_CODE = frozenset(("docs", "doc", "examples", "benchmarks", "scripts", "tools", "setup.py", "noxfile.py", "build"))
_ARCHIVE = re.compile(r"(-[0-9][^/]*)?(\.tar(\.[a-z0-9]+)?|\.tgz|\.whl|\.zip)$")


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    files: Files

    @property
    def tests(self) -> list[str]:
        return sorted(name for name in self.files if _TEST.search(name))

    @property
    def modules(self) -> list[str]:
        """Names of the package's own Python files, as far as a diff can hold them."""
        return sorted(name for name in self.files if re.fullmatch(r"[\w./-]+\.py", name) and not _is_support(PurePosixPath(name)))


def check_package(source: str) -> None:
    """Raise RequestError if `source` is neither a path nor an installed package."""
    if not Path(source).exists():
        _installed(source)


def read_package(source: str) -> Package:
    """Read a package from a folder, an archive, or this Python's installed packages. Raise RequestError if that is not possible."""
    path = Path(source)
    if not path.exists():
        return Package(source, _installed(source))
    files = read_snapshot(path)
    tops = {name.partition("/")[0] for name in files}
    if path.is_file() and len(tops) == 1 and f"{next(iter(tops))}/__init__.py" not in files:  # an archive of one folder
        files = {name.partition("/")[2]: content for name, content in files.items() if "/" in name}
    return Package(_ARCHIVE.sub("", path.resolve().name), files)


def _installed(name: str) -> Files:
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError) as error:
        raise RequestError(
            f"--package {name!r:.200} is neither a file or folder nor an installed package: give the path of a source distribution, "
            "for example one that `pip download --no-deps --no-binary :all: NAME` writes."
        ) from error
    files = [(str(file), Path(str(file.locate()))) for file in found.files or () if file.suffix == ".py" and ".." not in file.parts]
    return {name: path.read_bytes() for name, path in files if path.is_file()}


def _is_support(path: PurePosixPath) -> bool:
    """Whether a Python file belongs to tests, documentation or packaging."""
    is_test = _TEST.search(path.name) is not None or path.name in CONFIGURES_TESTS
    return is_test or bool(_TEST_FOLDERS.intersection(path.parts)) or path.parts[0] in _NO_CODE
