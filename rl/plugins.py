"""Code of one's own by its name: built in, an entry point of an installed package, `module:attribute`, or `path/to/file.py:attribute`.

What a name stands for is code that then runs with all rights of this process: names come from the configuration. A task may name what
is built in, installed, or named there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from warehouse.digests import digest
from warehouse.errors import RequestError


def resolve(name: str, what: str, built_in: Mapping[str, str], group: str) -> str:
    """What `name` stands for, as `module:attribute` or, with an absolute path, as `file.py:attribute`.

    Built-in names come first, then entry points of `group`; of a file the path is made absolute, so that workers elsewhere on this
    machine find it. `what` is what the thing is called in errors.

    Raises:
        RequestError: where there is nothing of that name.
    """
    found = built_in.get(name) or _entry_point(name, what, group) or name
    module, _, attribute = found.rpartition(":")
    if not module or not attribute:
        raise RequestError(
            f"there is no {what} {name!r}; name one of {', '.join(sorted(built_in))}, an entry point of {group}, "
            "or give module:attribute or file.py:attribute."
        )
    if not module.endswith(".py"):
        return found
    path = Path(module).expanduser().resolve()
    if not path.is_file():
        raise RequestError(f"the {what} {name!r} names a file that is not there: {path}.")
    return f"{path}:{attribute}"


def load(name: str, what: str, built_in: Mapping[str, str], group: str) -> Any:
    """What `name` stands for, imported.

    Raises:
        RequestError: where there is nothing of that name, or it cannot be imported.
    """
    module, _, attribute = resolve(name, what, built_in, group).rpartition(":")
    try:
        return getattr(_load_file(Path(module)) if module.endswith(".py") else import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise RequestError(f"the {what} {name!r} cannot be imported: {error}.") from error


def _entry_point(name: str, what: str, group: str) -> str | None:
    found = sorted({point.value for point in entry_points(group=group, name=name)})
    if len(found) > 1:
        raise RequestError(f"several installed packages have {what} {name!r}: {', '.join(found)}; name one of them as module:attribute.")
    return found[0] if found else None


def _load_file(path: Path) -> ModuleType:
    """The module in a file, run once in a process; it stands in `sys.modules` because dataclasses and pickle look there."""
    name = f"file_{path.stem}_{digest(str(path))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
