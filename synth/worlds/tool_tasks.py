"""Seeded tasks in the packaged tool worlds: random goals, executed with the world's own tools and proven by replay.

A goal consists of a query whose rows are its possible instances, a question about such a row, and the calls that reach it. The query
excludes ambiguous instances, such as two flights at the lowest price. One goal may need what the previous one created (a booking, a
meeting): goals are joined as AutoForge joins tools by inputs and outputs (arXiv 2512.22857).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pydantic import Field, PositiveInt

from eval.graders.state import REFERENCE
from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import Parameter, WorldDefinition
from rl.envs.tool_world.environment import find_world
from rl.envs.tool_world.packaged import DAYS, HOURS, NAMES, SUBJECTS
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import Task
from warehouse.settings import Section

ENVIRONMENT = "tool_world"
VERIFIER = "state"
TRIES = 60
"""Worlds tried per task before RequestError is raised."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing to do in a world.

    `candidates` is a query for instances; it may use `:some`, a number drawn from 5 to 39, and the columns of the previous goal. `question`
    names columns of the chosen row in braces. A call is a tool and its arguments: column names, or `parameter=column`. Values in the
    columns `about` are not reused by later goals, unless a goal `needs` what the previous one `gives`.
    """

    name: str
    question: str
    candidates: str
    calls: tuple[str, ...]
    about: tuple[str, ...] = ()
    needs: str | None = None
    gives: str | None = None

    @property
    def asks(self) -> bool:
        """Whether it asks for an answer (column `answer`) and changes nothing; it is then the task's only goal."""
        return " AS answer" in self.candidates


_ONLY_BOOKING = "(SELECT passenger, flight FROM bookings GROUP BY passenger HAVING count(*) = 1)"
_BOOKINGS = (
    Goal(
        "book_cheapest",
        "Book {passenger} on the cheapest flight from {origin} to {destination} that has a seat.",
        f"""SELECT origin, destination, flight, value AS passenger FROM flights f, json_each('{json.dumps(NAMES)}')
        WHERE seats > 0 AND value NOT IN (SELECT passenger FROM bookings)
        AND (SELECT count(*) FROM flights g WHERE (g.origin, g.destination) = (f.origin, f.destination)) > 1 AND NOT EXISTS (
            SELECT 1 FROM flights g WHERE (g.origin, g.destination) = (f.origin, f.destination) AND g.flight <> f.flight
            AND g.seats > 0 AND g.price <= f.price)""",
        ("find_flights origin destination", "book flight passenger"),
        about=("passenger",),
        gives="booking",
    ),
    Goal(
        "rebook_latest",
        "Move {passenger}'s booking to the latest flight from {origin} to {destination}.",
        f"""SELECT passenger, b.flight AS old, n.origin, n.destination, f.flight
        FROM {_ONLY_BOOKING} b JOIN flights n ON n.flight = b.flight
        JOIN flights f ON (f.origin, f.destination) = (n.origin, n.destination) AND f.flight <> n.flight
        WHERE f.seats > 0 AND NOT EXISTS (
            SELECT 1 FROM flights g WHERE (g.origin, g.destination) = (f.origin, f.destination) AND g.flight <> f.flight
            AND g.hour >= f.hour)""",
        ("list_bookings passenger", "find_flights origin destination", "rebook passenger flight=old new_flight=flight"),
        about=("passenger",),
        gives="booking",
    ),
    Goal(
        "cancel",
        "Cancel {passenger}'s booking.",
        f"SELECT passenger, flight FROM {_ONLY_BOOKING}",
        ("list_bookings passenger", "cancel passenger flight"),
        about=("passenger",),
    ),
    Goal(
        "bags",
        "Put {new_bags} bags on that booking.",
        """SELECT passenger, flight, 3 + :some % 3 AS new_bags FROM bookings
        WHERE passenger = :passenger AND flight = :flight AND bags <> 3 + :some % 3""",
        ("set_bags passenger flight bags=new_bags",),
        needs="booking",
    ),
    Goal(
        "ask_price",
        "What is the price of the flight from {origin} to {destination} that {passenger} is booked on?",
        f"SELECT passenger, origin, destination, price AS answer FROM {_ONLY_BOOKING} JOIN flights USING (flight)",
        ("list_bookings passenger", "find_flights origin destination"),
    ),
)
_INVENTORY = (
    Goal(
        "restock",
        "Order {count} of the item that the {store} store has fewest of, from its cheapest supplier, for that store.",
        """SELECT store, item, supplier, :some AS count FROM stock s JOIN offers o USING (item)
        WHERE NOT EXISTS (SELECT 1 FROM stock t WHERE t.store = s.store AND t.item <> s.item AND t.count <= s.count)
        AND NOT EXISTS (SELECT 1 FROM offers p WHERE p.item = s.item AND p.supplier <> o.supplier AND p.cost <= o.cost)""",
        ("stock_in store", "offers_for item", "order item supplier store count"),
        about=("store", "item"),
        gives="item",
    ),
    Goal(
        "level",
        "Move {count} {item}s from the store that has most of them to the one that has fewest.",
        """SELECT item, m.store AS source, f.store AS target, m.count / 2 AS count FROM stock m JOIN stock f USING (item)
        WHERE m.count > 1 AND m.store <> f.store
        AND NOT EXISTS (SELECT 1 FROM stock t WHERE t.item = m.item AND t.store <> m.store AND t.count >= m.count)
        AND NOT EXISTS (SELECT 1 FROM stock t WHERE t.item = m.item AND t.store <> f.store AND t.count <= f.count)""",
        ("stock_of item", "transfer item source target count"),
        about=("item",),
        gives="item",
    ),
    Goal(
        "raise_price",
        "Then raise the price of that item by {more}.",
        "SELECT item, 2 + :some % 18 AS more, price + 2 + :some % 18 AS price FROM items WHERE item = :item",
        ("get_item item", "set_price item price"),
        needs="item",
    ),
    Goal(
        "take_off",
        "Take the {item} off the list.",
        "SELECT item, 0 AS listed FROM items WHERE items.listed",
        ("set_listed item listed",),
        about=("item",),
    ),
    Goal(
        "ask_total",
        "How many {item}s are there in all stores together?",
        "SELECT item, sum(count) AS answer FROM stock GROUP BY item",
        ("stock_of item",),
    ),
)
_PEOPLE = "(SELECT DISTINCT person FROM attendees)"
_FIRST_FREE = f"""(
    SELECT min(h.value) FROM json_each('{list(HOURS)}') h WHERE NOT EXISTS (
        SELECT 1 FROM meetings JOIN attendees USING (subject)
        WHERE person IN (a.person, b.person) AND meetings.day = d.value AND meetings.hour = h.value))"""
_AGENDA = (
    Goal(
        "schedule",
        "Set up a meeting about the {subject} with {first} and {second} on {day}, at the first hour that both are free.",
        f"""SELECT s.value AS subject, a.person AS first, b.person AS second, d.value AS day, json_array(a.person, b.person) AS people,
        {_FIRST_FREE} AS hour FROM json_each('{json.dumps(SUBJECTS)}') s, {_PEOPLE} a, {_PEOPLE} b, json_each('{json.dumps(DAYS)}') d
        WHERE a.person < b.person AND s.value NOT IN (SELECT subject FROM meetings) AND hour IS NOT NULL""",
        ("free_hours person=first day", "free_hours person=second day", "schedule subject day hour people"),
        about=("subject",),
        gives="meeting",
    ),
    Goal(
        "postpone",
        "Move the meeting about the {subject} to {day}, to the first hour at which all who take part are free.",
        f"""SELECT m.subject, a.person AS first, b.person AS second, d.value AS day, {_FIRST_FREE} AS hour
        FROM meetings m JOIN attendees a USING (subject) JOIN attendees b USING (subject), json_each('{json.dumps(DAYS)}') d
        WHERE a.person < b.person AND (SELECT count(*) FROM attendees c WHERE c.subject = m.subject) = 2
        AND d.key > (SELECT e.key FROM json_each('{json.dumps(DAYS)}') e WHERE e.value = m.day) AND {_FIRST_FREE} IS NOT NULL""",
        ("find_meeting subject", "free_hours person=first day", "free_hours person=second day", "move subject day hour"),
        about=("subject",),
        gives="meeting",
    ),
    Goal(
        "invite",
        "Then invite {person} to that meeting.",
        f"""SELECT m.subject, m.day, p.person FROM meetings m, {_PEOPLE} p WHERE m.subject = :subject AND NOT EXISTS (
            SELECT 1 FROM attendees JOIN meetings o USING (subject)
            WHERE person = p.person AND (o.subject = m.subject OR (o.day, o.hour) = (m.day, m.hour)))""",
        ("free_hours person day", "invite subject person"),
        needs="meeting",
    ),
    Goal(
        "call_off",
        "Call off the meeting that {person} has on {day}.",
        "SELECT person, day, subject FROM meetings JOIN attendees USING (subject) GROUP BY person, day HAVING count(*) = 1",
        ("meetings_of person", "call_off subject"),
        about=("subject", "person"),
    ),
    Goal(
        "ask_time",
        "On which day does {person} have most meetings?",
        """WITH counted AS (SELECT person, day, count(*) AS n FROM meetings JOIN attendees USING (subject) GROUP BY person, day)
        SELECT person, day AS answer FROM counted c
        WHERE NOT EXISTS (SELECT 1 FROM counted o WHERE o.person = c.person AND o.day <> c.day AND o.n >= c.n)""",
        ("meetings_of person",),
    ),
)
GOALS: dict[str, tuple[Goal, ...]] = {"bookings": _BOOKINGS, "inventory": _INVENTORY, "agenda": _AGENDA}


class ToolWorldConfig(Section):
    """Generation of tasks in packaged tool worlds."""

    domains: tuple[str, ...] = tuple(GOALS)
    size: int = Field(default=12, ge=4)
    """Approximate number of rows in a world's largest tables."""
    max_goals: PositiveInt = 3
    """Maximum goals per task."""
    asked_share: float = Field(default=0.2, ge=0, le=1)
    """Share of tasks that ask for an answer and change nothing."""


def generate_tasks(count: int, seed: int, config: ToolWorldConfig | None = None, split: str = "train") -> Iterator[Task]:
    """Yield `count` tasks with distinct keys, deterministic per seed.

    Raises:
        RequestError: a domain is unknown, or its worlds are too small for such tasks.
    """
    config = config or ToolWorldConfig()
    unknown = sorted(set(config.domains) - GOALS.keys())
    if unknown:
        raise RequestError(f"there are no tasks in the domains {', '.join(unknown)}; choose from {', '.join(GOALS)}.")
    seen: set[str] = set()
    for number in range(count):
        domain = config.domains[number % len(config.domains)]
        for attempt in range(TRIES):
            task = _attempt(domain, seed_from(seed, split, number, attempt), config, split)
            if task is not None and task.key not in seen:
                seen.add(task.key)
                yield task
                break
        else:
            raise RequestError(f"no task could be made in {domain} in {TRIES} worlds of size {config.size}: set a larger size.")


def replay(definition: WorldDefinition, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Changes that the calls make in a fresh world."""
    database = ToolDatabase(definition)
    for call in calls:
        database.call(call["tool"], call["arguments"])
    made = database.changes()
    database.close()
    return made


@dataclass(slots=True)
class _Draft:
    database: ToolDatabase
    rng: Random
    calls: list[dict[str, Any]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    touched: set[Any] = field(default_factory=set)

    def reach(self, goal: Goal) -> bool:
        """Execute a goal; False if it has no instance in this world."""
        rows = self.database.query(goal.candidates, {**self.last, "some": self.rng.randrange(5, 40)})
        rows = [row for row in rows if not any(row[name] in self.touched for name in goal.about)]
        if not rows:
            return False
        self.last = self.rng.choice(sorted(rows, key=lambda row: json.dumps(row)))
        self.touched |= {self.last[name] for name in goal.about}
        self.sentences.append(goal.question.format_map(self.last))
        for call in goal.calls:
            tool, *names = call.split()
            parameters = self.database.definition.tools[tool].parameters
            pairs = (name.partition("=") for name in names)
            arguments = {name: _argument(parameters[name], self.last[column or name]) for name, _, column in pairs}
            self.calls.append({"tool": tool, "arguments": arguments})
            self.database.call(tool, arguments)
        return True


def _argument(parameter: Parameter, value: Any) -> Any:
    if parameter.type == "array":
        return json.loads(value)
    return bool(value) if parameter.type == "boolean" else value


def _attempt(domain: str, seed: int, config: ToolWorldConfig, split: str) -> Task | None:
    definition = find_world(domain, {}).definition(seed, config.size)
    draft = _Draft(ToolDatabase(definition), Random(seed_from(seed, "goals")))
    if not all(draft.reach(goal) for goal in _goals(draft.rng, GOALS[domain], config)):
        return None
    reference = draft.database.changes()
    draft.database.close()
    answers = (str(draft.last["answer"]),) if "answer" in draft.last else ()
    if replay(definition, draft.calls) != reference or bool(reference) == bool(answers):
        return None
    question = " ".join(draft.sentences)
    world = {"domain": domain, "seed": seed, "size": config.size, "digest": definition.digest}
    return Task(
        key=f"tool-world-{domain}-{digest([question, definition.digest, reference, answers])}",
        environment=ENVIRONMENT,
        question=question,
        answers=answers,
        split=split,
        hops=len(draft.calls),
        constraints=len(draft.sentences),
        provenance={"world": world, "verifier": VERIFIER, REFERENCE: reference, "calls": draft.calls},
    )


def _goals(rng: Random, goals: Sequence[Goal], config: ToolWorldConfig) -> list[Goal]:
    """Draw a question, or goals in an order that satisfies their needs."""
    if rng.random() < config.asked_share:
        return [rng.choice([goal for goal in goals if goal.asks])]
    chosen: list[Goal] = []
    for _ in range(rng.randint(1, config.max_goals)):
        fitting = [goal for goal in goals if not goal.asks and goal not in chosen]
        # A goal that needs the last one's result must follow it directly: only then is «that booking» unambiguous.
        joined = [goal for goal in fitting if chosen and goal.needs is not None and goal.needs == chosen[-1].gives]
        free = [goal for goal in fitting if goal.needs is None]
        if not joined and not free:
            break
        chosen.append(rng.choice(joined or free))
    return chosen
