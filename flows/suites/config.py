"""Settings of a suite: source of tasks, how they are attempted and judged, and the headline figure.

A suite is found by name in the home's configuration, or in a TOML file by name or path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, field_validator, model_validator

from eval.graders.choice import JUDGE, is_verifier, unknown
from eval.graders.verifiers import VERIFIERS
from eval.suites.figures import HEADLINES
from flows.config import PROFILES, FlywheelConfig, read_table
from flows.evaluation_config import RESERVED, SUITE_NAME, EvaluationConfig
from flows.overrides import describe
from rl.engines.config import Temperature
from rl.envs.config import EnvironmentKindConfig
from rl.rollouts.agent_loop import RolloutChoice
from rl.rollouts.config import Limits, RolloutConfig
from synth.questions.builder import QuestionConfig
from synth.worlds.world import WorldConfig
from warehouse.errors import RequestError
from warehouse.public_data.catalogue import locate
from warehouse.settings import Section, read_options

FOLDER = PROFILES / "suites"


class GeneratedSource(Section):
    """Questions over a generated world that shares no name with training worlds."""

    kind: Literal["generated"]
    world: WorldConfig = WorldConfig()
    questions: QuestionConfig = QuestionConfig()


class GraphSource(Section):
    """Questions over the film or country graph."""

    kind: Literal["films", "countries"]
    path: Path | None = None
    """Folder of the data; None: the public data set (`flywheel data list`)."""
    entities: Literal["held_out", "all"] = "held_out"
    """`held_out`: entities held out from training over this graph; `all`: all entities, for homes that train on other data."""
    longest_document: PositiveInt | None = None
    """Maximum characters of a film's document, cut at whole sentences."""
    questions: QuestionConfig = QuestionConfig()


class QuestionSetSource(Section):
    """A published question set: a file, or for MuSiQue the folder with its corpus."""

    kind: Literal["gsm8k", "humaneval", "mbpp", "musique"]
    path: Path | None = None
    """Path of the data; None: the public data set (`flywheel data list`)."""


class TaskSource(Section):
    """Tasks as JSON Lines, exported from a lake or written by hand."""

    kind: Literal["tasks"]
    path: Path
    documents: Path | None = None
    """Documents to search: a file of rows `id, title, text` or a folder of pages; None: the home's."""


class HomeSource(Section):
    """Held-out tasks already in the lake, over the home's documents."""

    kind: Literal["home"]
    splits: tuple[str, ...] = Field(min_length=1)

    @field_validator("splits")
    @classmethod
    def _check(cls, splits: tuple[str, ...]) -> tuple[str, ...]:
        if trained := [split for split in splits if split in RESERVED]:
            raise ValueError(f"{trained[0]} is not a held-out split")
        return splits


Source = Annotated[GeneratedSource | GraphSource | QuestionSetSource | TaskSource | HomeSource, Field(discriminator="kind")]


class SuiteConfig(Section):
    """A suite."""

    name: str = Field(pattern=SUITE_NAME)
    meaning: str
    """Meaning of the headline figure, in one sentence."""
    headline: str = "success"
    """Figure to quote: `success`, `pass@K`, `pass^K` or `majority@K`."""
    source: Source
    environment: str | None = None
    """Environment of the attempts; None: each task's own."""
    kind: EnvironmentKindConfig | None = None
    """Settings of that environment instead of the home's."""
    tools: tuple[str, ...] | None = None
    """Tools that may be called; None: all of the environment."""
    loop: str | None = None
    """Agent loop, built in or a key of `rollout.loops`; None: `rollout.loop`."""
    dialect: str | None = None
    """Dialect; None: `rollout.dialect`."""
    verifier: str | None = None
    """Verifier; None: each task's own, or the home's."""
    number: PositiveInt | None = None
    """Number of tasks; None: all of the source."""
    draw: Literal["random", "deepest"] = "random"
    """How to choose `number` tasks: at random, or the deepest that no single search finds."""
    samples: PositiveInt = 1
    """Attempts per task."""
    temperature: Temperature = 0.0
    horizon: PositiveInt = 8
    """Maximum turns per attempt."""
    limits: dict[str, Any] = Field(default_factory=dict)
    """Overrides of `rollout.limits`."""
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> SuiteConfig:
        if self.name in RESERVED:
            raise ValueError(f"name: {self.name!r} is a reserved name; choose another")
        if self.verifier is not None and not is_verifier(self.verifier):
            raise ValueError(f"verifier: {unknown(self.verifier)}")
        headline = HEADLINES.fullmatch(self.headline)
        if headline is None:
            raise ValueError(f"headline is {self.headline!r}; choose success, pass@K, pass^K or majority@K")
        if headline[2] is not None and int(headline[2]) > self.samples:
            raise ValueError(f"headline is {self.headline}, which needs samples of {headline[2]} or more")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("temperature 0 gives the same attempt each time; with several samples set a higher one")
        if self.kind is not None and self.environment is None:
            raise ValueError("kind configures an environment: set environment to its name")
        return self

    @property
    def own_verifier(self) -> dict[str, str]:
        """The verifier if it is custom code, in the form of `evaluation.verifiers`."""
        return {self.verifier: self.verifier} if self.verifier is not None and self.verifier not in (*VERIFIERS, JUDGE) else {}

    @property
    def rollout(self) -> dict[str, Any]:
        """Rollout options stored in the tasks' provenance."""
        return RolloutChoice(loop=self.loop, dialect=self.dialect, tools=self.tools).model_dump(exclude_none=True, mode="json")


def find_suite(name: str, evaluation: EvaluationConfig, overrides: Sequence[str] = ()) -> SuiteConfig:
    """Find a suite by `name`: the home's own, `profiles/suites/NAME.toml`, or the TOML file `name`.

    Raises:
        RequestError: No such suite, invalid TOML, a wrong key or value, or the name of a suite of the home.
    """
    if name in evaluation.all_suites:
        if overrides:
            raise RequestError(f"the suite {name} belongs to the home's configuration: --set only applies to suites of a TOML file.")
        return own_suite(name, evaluation)
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted([*evaluation.all_suites, *(file.stem for file in FOLDER.glob("*.toml"))]))
        raise RequestError(f"there is no suite {name!r}; choose one of {known}, or the path of a TOML file.")
    try:
        suite = SuiteConfig.model_validate(read_table(path, overrides))
    except ValidationError as error:
        raise RequestError(describe(error, str(path), overrides, SuiteConfig, "the suite")) from error
    if suite.name in evaluation.all_suites:
        raise RequestError(f"{path}: the home already has a suite {suite.name}; rename this one with --set name=NAME.")
    return suite


def own_suite(name: str, evaluation: EvaluationConfig) -> SuiteConfig:
    """Return a suite of the home's configuration, whose tasks are in the lake."""
    wanted = evaluation.all_suites[name].wanted()
    hops = [str(depth) for depth, count in wanted.items() if count]
    depths = f" of {hops[0]} to {hops[-1]} hops" if len(hops) > 1 else f" of {hops[0]} hops" if hops else ""
    return SuiteConfig(
        name=name,
        meaning=f"Share of held-out questions{depths} that the policy answers rightly in one greedy attempt.",
        source=HomeSource(kind="home", splits=(name,)),
        horizon=evaluation.horizon,
    )


def is_own(suite: SuiteConfig) -> bool:
    """Return whether the run itself evaluates the suite."""
    return isinstance(suite.source, HomeSource) and suite.source.splits == (suite.name,)


def place_of(source: GraphSource | QuestionSetSource | TaskSource) -> Path:
    """Return the path of a source. Raise RequestError if its public data set is missing."""
    return locate(source.kind) if source.path is None else source.path


def corpus_of(suite: SuiteConfig) -> str:
    """Describe the searched documents."""
    match suite.source:
        case GeneratedSource():
            return "those of the suite's own world"
        case TaskSource(documents=Path() as documents):
            return f"the suite's own, {documents}"
        case TaskSource() | HomeSource():
            return "those of the home"
        case QuestionSetSource(kind=kind) if kind != "musique":
            return "none"
        case source:
            return f"those of {source.kind}"


def limits_of(suite: SuiteConfig, rollout: RolloutConfig) -> Limits:
    """Return the home's limits with the suite's overrides. Raise RequestError for an unknown limit."""
    return read_options(Limits, {**rollout.limits.model_dump(), **suite.limits}, f"limits of the suite {suite.name}")


def check_limits(suite: SuiteConfig, config: FlywheelConfig) -> None:
    """Raise RequestError for an unknown limit."""
    limits_of(suite, config.rollout)


def check_data(suite: SuiteConfig) -> None:
    """Raise RequestError if the suite's data is missing."""
    if isinstance(suite.source, GeneratedSource | HomeSource):
        return
    path = place_of(suite.source)
    if not path.exists():
        raise RequestError(
            f"the suite {suite.name} needs {suite.source.kind} in {path}, which does not exist: put the data there, "
            f"or choose another path with --set source.path=PATH."
        )
    documents = suite.source.documents if isinstance(suite.source, TaskSource) else None
    if documents is not None and not documents.exists():
        raise RequestError(f"the suite {suite.name} searches {documents}, which does not exist: set its documents with source.documents.")
