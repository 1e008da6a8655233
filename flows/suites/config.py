"""What a suite is, as its TOML says it: where its tasks come from, how they are tried and judged, and which one figure it is about.

Suites are found by name: a home's own, which its configuration has, and those of a TOML file, by name or by path.
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
from warehouse.public_data.places import locate
from warehouse.settings import Section, read_options

FOLDER = PROFILES / "suites"


class GeneratedSource(Section):
    """Proven questions over a generated world of its own, whose names no training world has."""

    kind: Literal["generated"]
    world: WorldConfig = WorldConfig()
    questions: QuestionConfig = QuestionConfig()


class GraphSource(Section):
    """Proven questions over real facts and texts."""

    kind: Literal["films", "countries"]
    path: Path | None = None
    """Another folder than that of the public data set of this name (`flywheel data list`)."""
    entities: Literal["held_out", "all"] = "held_out"
    """What questions may touch: entities that a home over this graph never trains on, or all, for homes that train on something else."""
    longest_document: PositiveInt | None = None
    """Characters of a film's document at most, in whole sentences."""
    questions: QuestionConfig = QuestionConfig()


class QuestionSetSource(Section):
    """A question set of others: a file, or for MuSiQue the folder with its closed corpus."""

    kind: Literal["gsm8k", "humaneval", "mbpp", "musique"]
    path: Path | None = None
    """Another place than that of the public data set of this name (`flywheel data list`)."""


class TaskSource(Section):
    """Tasks as JSON lines, exported from a lake or written by anybody."""

    kind: Literal["tasks"]
    path: Path
    documents: Path | None = None
    """What its searches read: a file of rows `id, title, text`, or a folder of pages; the documents of the home without it."""


class HomeSource(Section):
    """Held-out tasks that the home's lake has already, over the home's own documents."""

    kind: Literal["home"]
    splits: tuple[str, ...] = Field(min_length=1)

    @field_validator("splits")
    @classmethod
    def _check(cls, splits: tuple[str, ...]) -> tuple[str, ...]:
        if trained := [split for split in splits if split in RESERVED]:
            raise ValueError(f"{trained[0]} is no held-out split")
        return splits


Source = Annotated[GeneratedSource | GraphSource | QuestionSetSource | TaskSource | HomeSource, Field(discriminator="kind")]


class SuiteConfig(Section):
    """One suite."""

    name: str = Field(pattern=SUITE_NAME)
    meaning: str
    """What the headline figure means, in one sentence."""
    headline: str = "success"
    """The one figure to quote: `success`, `pass@K`, `pass^K` or `majority@K`."""
    source: Source
    environment: str | None = None
    """The environment that tasks are tried in; each one's own without it."""
    kind: EnvironmentKindConfig | None = None
    """Options and limits of that environment, in the place of the home's."""
    tools: tuple[str, ...] | None = None
    """The tools that may be called; all that the environment has without it."""
    dialect: str | None = None
    """How actions stand in tokens; the home's `rollout.dialect` without it."""
    verifier: str | None = None
    """The verifier, a kind, `judge` or code of your own; each task's own, or the home's, without it."""
    number: PositiveInt | None = None
    """Tasks; all that the source has without it."""
    draw: Literal["random", "deepest"] = "random"
    """Which tasks where there are more than `number`: any, by the seed, or the deepest proven ones that no single search finds."""
    samples: PositiveInt = 1
    """Attempts a task."""
    temperature: Temperature = 0.0
    horizon: PositiveInt = 8
    """Turns of an attempt."""
    limits: dict[str, Any] = Field(default_factory=dict)
    """Limits of `rollout.limits` that are other than the home's."""
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> SuiteConfig:
        if self.name in RESERVED:
            raise ValueError(f"name: {self.name!r} is what other tasks are called; choose another")
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
            raise ValueError("kind says how an environment is set up: name it under environment")
        return self

    @property
    def own_verifier(self) -> dict[str, str]:
        """The verifier where it is code of somebody's own, as the configuration lists such for the tasks that name it."""
        return {self.verifier: self.verifier} if self.verifier is not None and self.verifier not in (*VERIFIERS, JUDGE) else {}

    @property
    def rollout(self) -> dict[str, Any]:
        """What its tasks ask for beside their environment, as their provenance holds it."""
        return RolloutChoice(dialect=self.dialect, tools=self.tools).model_dump(exclude_none=True, mode="json")


def find_suite(name: str, evaluation: EvaluationConfig, overrides: Sequence[str] = ()) -> SuiteConfig:
    """The suite called `name`: the home's own, that of `profiles/suites/NAME.toml`, or that of the TOML file at `name`.

    Raises:
        RequestError: there is none, it is no TOML, a key or value is wrong, or its name is that of a suite of the home.
    """
    if name in evaluation.all_suites:
        if overrides:
            raise RequestError(f"the suite {name} belongs to the home's configuration: --set is for suites of a TOML file.")
        return own_suite(name, evaluation)
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted([*evaluation.all_suites, *(file.stem for file in FOLDER.glob("*.toml"))]))
        raise RequestError(f"there is no suite {name!r}; choose one of {known}, or name a TOML file.")
    try:
        suite = SuiteConfig.model_validate(read_table(path, overrides))
    except ValidationError as error:
        raise RequestError(describe(error, str(path), overrides, SuiteConfig, "the suite")) from error
    if suite.name in evaluation.all_suites:
        raise RequestError(f"{path}: the home has a suite {suite.name} of its own; give this one another name with --set name=NAME.")
    return suite


def own_suite(name: str, evaluation: EvaluationConfig) -> SuiteConfig:
    """A suite of the home's configuration: its tasks are in the lake already."""
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
    """Whether a suite is one that the wheel evaluates: its tasks are a split of that name."""
    return isinstance(suite.source, HomeSource) and suite.source.splits == (suite.name,)


def place_of(source: GraphSource | QuestionSetSource | TaskSource) -> Path:
    """The file or folder of a source: its own, or that of the public data set of its kind. Raises RequestError where that is not here."""
    return locate(source.kind) if source.path is None else source.path


def corpus_of(suite: SuiteConfig) -> str:
    """Whose documents its searches read, in a few words."""
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
    """The home's limits with the suite's own. Raises RequestError for one that is none."""
    return read_options(Limits, {**rollout.limits.model_dump(), **suite.limits}, f"limits of the suite {suite.name}")


def check_limits(suite: SuiteConfig, config: FlywheelConfig) -> None:
    """Raises RequestError where a suite has a limit that is none: known before anything is started."""
    limits_of(suite, config.rollout)


def check_data(suite: SuiteConfig) -> None:
    """Raises RequestError where the data of the suite is absent: known before anything is started."""
    if isinstance(suite.source, GeneratedSource | HomeSource):
        return
    path = place_of(suite.source)
    if not path.exists():
        raise RequestError(
            f"the suite {suite.name} needs {suite.source.kind} in {path}, and there is no such file or folder: put the data there, "
            f"or name another place with --set source.path=PATH."
        )
    documents = suite.source.documents if isinstance(suite.source, TaskSource) else None
    if documents is not None and not documents.exists():
        raise RequestError(f"the suite {suite.name} searches {documents}, and there is nothing: name its documents with source.documents.")
