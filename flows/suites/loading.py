"""Suites by name: a home's own, which its configuration has, and those of a TOML file, by name or by path."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from flows.config import PROFILES, EvaluationConfig, describe
from flows.overrides import apply_overrides
from flows.suites.config import HomeSource, SuiteConfig
from warehouse.errors import RequestError

FOLDER = PROFILES / "suites"


def find_suite(name: str, evaluation: EvaluationConfig, overrides: Sequence[str] = ()) -> SuiteConfig:
    """The suite called `name`: the home's own, that of `profiles/suites/NAME.toml`, or that of the TOML file at `name`.

    Raises:
        RequestError: there is none, it is no TOML, a key or value is wrong, or its name is that of a suite of the home.
    """
    if name in evaluation.suites:
        if overrides:
            raise RequestError(f"the suite {name} belongs to the home's configuration: --set is for suites of a TOML file.")
        return own_suite(name, evaluation)
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted([*evaluation.suites, *(file.stem for file in FOLDER.glob("*.toml"))]))
        raise RequestError(f"there is no suite {name!r}; choose one of {known}, or name a TOML file.")
    try:
        suite = SuiteConfig.model_validate(apply_overrides(tomllib.loads(path.read_text()), overrides))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not TOML: {error}.") from error
    except ValidationError as error:
        raise RequestError(describe(error, str(path), "the suite")) from error
    if suite.name in evaluation.suites:
        raise RequestError(f"{path}: the home has a suite {suite.name} of its own; give this one another name with --set name=NAME.")
    return suite


def own_suite(name: str, evaluation: EvaluationConfig) -> SuiteConfig:
    """A suite of the home's configuration: its tasks are in the lake already."""
    wanted = evaluation.suites[name].wanted()
    hops = [str(depth) for depth, count in wanted.items() if count]
    depths = f"{hops[0]} to {hops[-1]} hops" if len(hops) > 1 else f"{', '.join(hops) or 'no'} hops"
    return SuiteConfig(
        name=name,
        meaning=f"Share of held-out questions of {depths} that the policy answers rightly in one greedy attempt.",
        source=HomeSource(kind="home", splits=(name,)),
        horizon=evaluation.horizon,
    )


def is_own(suite: SuiteConfig) -> bool:
    """Whether a suite is one that the wheel evaluates: its tasks are a split of that name."""
    return isinstance(suite.source, HomeSource) and suite.source.splits == (suite.name,)


def check_data(suite: SuiteConfig) -> None:
    """Raises RequestError where the data of the suite is absent: known before anything is started."""
    path = getattr(suite.source, "path", None)
    if path is not None and not path.exists():
        raise RequestError(
            f"the suite {suite.name} needs {suite.source.kind} in {path}, and there is no such file or folder: put the data there, "
            f"or name another place with --set source.path=PATH."
        )
