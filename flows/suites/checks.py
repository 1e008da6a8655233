"""The seven traits of a good evaluation, checked for one suite against its own tasks and what a home has of it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from eval.graders.choice import Verifiers
from eval.suites.figures import Figure, headline
from eval.suites.validation import Trait, grading, label_quality, meaning, not_saturated, one_command, one_headline, size
from flows.screen import Screen
from flows.suites.config import SuiteConfig
from flows.suites.results import policies_on, read_coverage, read_trials
from flows.suites.tasks import SuiteTasks, digest_of
from flows.verification import validate_tasks
from warehouse import Lake


def check_suite(lake: Lake, suite: SuiteConfig, drawn: SuiteTasks, verifiers: Verifiers, command: str) -> list[Trait]:
    """The seven traits; `verifiers` judge them, `command` is what evaluates a policy on the suite."""
    proven = validate_tasks(drawn.tasks, verifiers)
    best, figure, objection = _best(lake, suite, verifiers)
    ran = bool(policies_on(lake, suite.name))
    stored = digest_of(lake.tasks(split=suite.name)) if ran else None
    return [
        size(len(drawn.tasks)),
        label_quality(proven),
        one_headline(suite.headline, figure, objection),
        one_command(command, drawn.digest, stored),
        meaning(suite.meaning),
        grading(proven),
        not_saturated(best, figure),
    ]


def print_traits(suite: str, traits: Sequence[Trait]) -> None:
    """The seven traits."""
    table = Table("trait", "", "why", title=f"{suite}: the traits of a good evaluation", title_justify="left")
    for trait in traits:
        table.add_row(trait.name, trait.state.value, escape(trait.reason))
    Screen().print(table)


def _best(lake: Lake, suite: SuiteConfig, verifiers: Verifiers) -> tuple[str | None, Figure | None, str | None]:
    """The policy with the highest headline among those with a result; without one, a policy's figure and why it is no result."""
    results: list[tuple[float, str, Figure]] = []
    without: tuple[str | None, Figure | None, str | None] = (None, None, None)
    for policy in policies_on(lake, suite.name):
        trials = read_trials(lake, policy, suite.name, verifiers)
        objection, figure = read_coverage(lake, suite, trials).objection, headline(trials, suite.headline)
        if objection is None and figure.estimate is not None:
            results.append((figure.estimate.value, policy, figure))
        else:
            without = (None, figure, objection)
    if not results:
        return without
    _, policy, figure = max(results)
    return policy, figure, None
