"""Load user code by name: environments, tools, agent loops, rewards and more.

Loaded code has all rights of this process. A name in the *configuration* may be built in, an entry point of an installed package,
`module:attribute`, or `path/to/file.py:attribute`. A name in a *record* (a task, a row of a file) may only be built in, installed, or
listed in the configuration; it never names a module or file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from warehouse.account import expanded
from warehouse.digests import digest
from warehouse.errors import RequestError, first_line


@dataclass(frozen=True, slots=True)
class Registry:
    """Named objects of one kind.

    Attributes:
        what: name of the kind in errors.
        built_in: built-in names, each with its `module:attribute`.
        group: entry point group for installed packages.
        setting: configuration key that lists names for records.
        arguments: positional arguments that each entry is called with; None if entries are not functions.
    """

    what: str
    built_in: Mapping[str, str]
    group: str
    setting: str = ""
    arguments: tuple[str, ...] | None = None

    def resolve(self, name: str) -> str:
        """Resolve a configuration name to `module:attribute` or `/absolute/file.py:attribute`, which remote workers can load.

        Raises RequestError for an unknown name.
        """
        found = self._known(name) or name
        module, _, attribute = found.rpartition(":")
        if not module or not attribute:
            raise RequestError(
                f"there is no {self.what} {name!r:.200}; choose one of {', '.join(sorted(self.built_in))}, an entry point of {self.group}, "
                "or give module:attribute or file.py:attribute."
            )
        if not module.endswith(".py"):
            return found
        path = expanded(module).resolve()
        if not path.is_file():
            raise RequestError(f"the {self.what} {name!r} names a file that does not exist: {path}.")
        return f"{path}:{attribute}"

    def resolve_recorded(self, name: object, listed: Mapping[str, str] | None = None) -> str:
        """Resolve a name from a record; `listed` maps the names that the configuration allows to their code. Raises RequestError."""
        listed = listed or {}
        if isinstance(name, str) and name in listed:
            return self.resolve(listed[name])
        found = self._known(name) if isinstance(name, str) else None
        if found is None:
            code = ": it is code that the configuration does not list" if isinstance(name, str) and ":" in name else ""
            hint = f", or list it under {self.setting}" if self.setting else ""
            known = ", ".join(sorted({*self.built_in, *listed}))
            raise RequestError(f"there is no {self.what} {name!r:.200} that data can name{code}; choose one of {known}{hint}.")
        return found

    def load(self, name: str) -> Any:
        """Import a name from the configuration. Raises RequestError."""
        return self._import(self.resolve(name))

    def load_recorded(self, name: object, listed: Mapping[str, str] | None = None) -> Any:
        """Import a name from a record. Raises RequestError."""
        return self._import(self.resolve_recorded(name, listed))

    def installed(self, name: str) -> bool:
        """Whether an installed package provides this name; nothing is imported."""
        return bool(entry_points(group=self.group, name=name))

    def _import(self, reference: str) -> Any:
        module, _, attribute = reference.rpartition(":")
        try:
            loaded = _load_file(Path(module)) if module.endswith(".py") else import_module(module)
        except Exception as error:  # foreign code may raise anything on import
            kind = "" if isinstance(error, ImportError | SyntaxError | RequestError) else f"{type(error).__name__}: "
            why = first_line(error).rstrip(".")[:300]
            raise RequestError(f"the {self.what} {reference!r} cannot be imported: {kind}{why}.") from error
        try:
            found = getattr(loaded, attribute)
        except AttributeError as error:
            there = [name for name, value in vars(loaded).items() if not name.startswith("_") and _is_own(value, loaded)]
            close = get_close_matches(attribute, there, 1)
            has = f"it has {', '.join(there[:20])}" if there else "it has no function and no class"
            hint = f"; did you mean {close[0]}?" if close else "."
            why = f"module {module} has no attribute {attribute!r}; {has}{hint}"
            raise RequestError(f"the {self.what} {reference!r} cannot be imported: {why}") from error
        if self.arguments is not None:
            check_call(found, self.arguments, f"the {self.what} {reference!r}")
        return found

    def _known(self, name: str) -> str | None:
        return self.built_in.get(name) or self._entry_point(name)

    def _entry_point(self, name: str) -> str | None:
        found = sorted({point.value for point in entry_points(group=self.group, name=name)})
        if len(found) > 1:
            raise RequestError(
                f"several installed packages have {self.what} {name!r}: {', '.join(found)}; choose one of them as module:attribute."
            )
        return found[0] if found else None


def check_call(function: Any, arguments: Sequence[str], what: str) -> None:
    """Raise RequestError, starting with `what`, unless `function` accepts these positional arguments."""
    if not callable(function):
        raise RequestError(f"{what} is of the type {type(function).__name__}: it must be callable with ({', '.join(arguments)}).")
    try:
        signature(function).bind(*arguments)
    except TypeError as error:
        raise RequestError(f"{what} takes {signature(function)}, but is called with ({', '.join(arguments)}): {error}.") from error
    except ValueError:  # some C functions have no signature
        return


def _is_own(value: Any, module: ModuleType) -> bool:
    if isinstance(value, type | FunctionType):
        return value.__module__ == module.__name__
    return not isinstance(value, ModuleType) and type(value).__module__ != "__future__"


def _load_file(path: Path) -> ModuleType:
    """Module of a file, run once per process; registered in `sys.modules` for dataclasses and pickle."""
    name = f"file_{path.stem}_{digest(str(path))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
