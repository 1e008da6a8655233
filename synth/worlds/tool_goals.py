"""What can be asked for in the tool worlds: the goals of each, and the draft of a task that they are carried out in.

A goal is one thing to be done. It looks at the world through the world's own tools, as a policy will have to, and so its calls are a
solution that works. What one goal gives (a booking, a meeting) another may need: goals are joined where the types fit, as AutoForge
joins tools by their inputs and outputs (arXiv 2512.22857).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from rl.envs.tool_world.agenda import DAYS, SUBJECTS, people_of
from rl.envs.tool_world.environment import NAMES, World
from rl.envs.tool_world.inventory import STORES

T = TypeVar("T")


class Unfit(Exception):
    """The goal cannot be set in this world, or not with one solution alone."""


@dataclass(slots=True)
class TaskDraft:
    """The world as the goals so far left it, and the record of how they did."""

    world: World
    rng: Random
    calls: list[dict[str, Any]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    """Type → the newest thing of that type that a goal gave."""
    answer: str | None = None
    touched: set[str] = field(default_factory=set)
    """Names that a goal was about: the next is about others, unless it needs what was given."""

    def call(self, tool: str, **arguments: Any) -> Any:
        """Carry out a call in the world, note it, and read what it returns."""
        self.calls.append({"tool": tool, "arguments": arguments})
        return json.loads(self.world.call(tool, arguments))

    def pick(self, names: Iterable[str]) -> str:
        """One of the names that no goal was about yet.

        Raises:
            Unfit: where there is none.
        """
        free = sorted(set(names) - self.touched)
        if not free:
            raise Unfit
        picked = self.rng.choice(free)
        self.touched.add(picked)
        return picked


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing to be done. `act` does it and puts it into words; `needs` and `gives` are types of things."""

    name: str
    act: Callable[[TaskDraft], str]
    needs: str | None = None
    gives: str | None = None
    asks: bool = False
    """Whether it asks for an answer and changes nothing; it then stands alone."""


def only_best(records: Sequence[T], value: Callable[[T], float]) -> T:
    """The record with the lowest value.

    Raises:
        Unfit: where there is none, or several share it.
    """
    ranked = sorted(records, key=value)
    if not ranked or (len(ranked) > 1 and value(ranked[0]) == value(ranked[1])):
        raise Unfit
    return ranked[0]


def _route(draft: TaskDraft) -> tuple[str, str]:
    """A route with a choice of flights."""
    routes = sorted((record["origin"], record["destination"]) for record in draft.world.state["flights"].values())
    several = sorted({route for route in routes if routes.count(route) > 1})
    if not several:
        raise Unfit
    return draft.rng.choice(several)


def _only_booking(draft: TaskDraft) -> tuple[str, dict[str, Any]]:
    """A passenger with one booking, and that booking."""
    names = [record["passenger"] for record in draft.world.state["bookings"].values()]
    passenger = draft.pick(name for name in names if names.count(name) == 1)
    return passenger, draft.call("list_bookings", passenger=passenger)[0]


def _book_cheapest(draft: TaskDraft) -> str:
    origin, destination = _route(draft)
    passenger = draft.pick(set(NAMES) - {record["passenger"] for record in draft.world.state["bookings"].values()})
    flights = draft.call("find_flights", origin=origin, destination=destination)
    flight = only_best([flight for flight in flights if flight["seats"]], lambda flight: flight["price"])
    draft.given["booking"] = draft.call("book", flight=flight["key"], passenger=passenger)["booking"]
    return f"Book {passenger} on the cheapest flight from {origin} to {destination} that has a seat."


def _rebook_latest(draft: TaskDraft) -> str:
    passenger, booking = _only_booking(draft)
    now = draft.world.state["flights"][booking["flight"]]
    flights = draft.call("find_flights", origin=now["origin"], destination=now["destination"])
    latest = only_best(flights, lambda flight: -flight["hour"])
    if latest["key"] == booking["flight"] or not latest["seats"]:
        raise Unfit
    draft.given["booking"] = draft.call("rebook", booking=booking["key"], flight=latest["key"])["booking"]
    return f"Move {passenger}'s booking to the latest flight from {now['origin']} to {now['destination']}."


def _cancel(draft: TaskDraft) -> str:
    passenger, booking = _only_booking(draft)
    draft.call("cancel", booking=booking["key"])
    return f"Cancel {passenger}'s booking."


def _bags(draft: TaskDraft) -> str:
    bags = draft.rng.randrange(3, 6)
    draft.call("set_bags", booking=draft.given["booking"], bags=bags)
    return f"Put {bags} bags on that booking."


def _ask_price(draft: TaskDraft) -> str:
    passenger, booking = _only_booking(draft)
    now = draft.world.state["flights"][booking["flight"]]
    flights = draft.call("find_flights", origin=now["origin"], destination=now["destination"])
    draft.answer = str(next(flight["price"] for flight in flights if flight["key"] == booking["flight"]))
    return f"What is the price of the flight from {now['origin']} to {now['destination']} that {passenger} is booked on?"


_BOOKINGS = (
    Goal("book_cheapest", _book_cheapest, gives="booking"),
    Goal("rebook_latest", _rebook_latest, gives="booking"),
    Goal("cancel", _cancel),
    Goal("bags", _bags, needs="booking"),
    Goal("ask_price", _ask_price, asks=True),
)


def _restock(draft: TaskDraft) -> str:
    store = draft.pick(STORES)
    scarce = only_best(draft.call("stock_in", store=store), lambda record: record["count"])["item"]
    supplier = only_best(draft.call("offers_for", item=scarce), lambda record: record["cost"])["supplier"]
    count = draft.rng.randrange(5, 40)
    draft.call("order", item=scarce, supplier=supplier, store=store, count=count)
    draft.touched.add(scarce)
    draft.given["item"] = scarce
    return f"Order {count} of the item that the {store} store has fewest of, from its cheapest supplier, for that store."


def _level(draft: TaskDraft) -> str:
    item = draft.pick(draft.world.state["items"])
    stock = draft.call("stock_of", item=item)
    most, least = only_best(stock, lambda record: -record["count"]), only_best(stock, lambda record: record["count"])
    count = most["count"] // 2
    if not count:
        raise Unfit
    draft.call("transfer", item=item, source=most["store"], target=least["store"], count=count)
    draft.given["item"] = item
    return f"Move {count} {item}s from the store that has most of them to the one that has fewest."


def _raise_price(draft: TaskDraft) -> str:
    item = draft.given["item"]
    more = draft.rng.randrange(2, 20)
    price = draft.call("get_item", item=item)["price"]
    draft.call("set_price", item=item, price=price + more)
    return f"Then raise the price of that item by {more}."


def _take_off(draft: TaskDraft) -> str:
    item = draft.pick(name for name, record in draft.world.state["items"].items() if record["listed"])
    draft.call("set_listed", item=item, listed=False)
    return f"Take the {item} off the list."


def _ask_total(draft: TaskDraft) -> str:
    item = draft.pick(draft.world.state["items"])
    draft.answer = str(sum(record["count"] for record in draft.call("stock_of", item=item)))
    return f"How many {item}s are there in all stores together?"


_INVENTORY = (
    Goal("restock", _restock, gives="item"),
    Goal("level", _level, gives="item"),
    Goal("raise_price", _raise_price, needs="item"),
    Goal("take_off", _take_off),
    Goal("ask_total", _ask_total, asks=True),
)


def _people(draft: TaskDraft) -> list[str]:
    """All who have a meeting."""
    return sorted({person for record in draft.world.state["meetings"].values() for person in people_of(record)})


def _first_common_hour(draft: TaskDraft, people: list[str], day: str) -> int:
    """The first hour at which all of them are free."""
    free = [set(draft.call("free_hours", person=person, day=day)) for person in people]
    common = set.intersection(*free)
    if not common:
        raise Unfit
    return min(common)


def _schedule(draft: TaskDraft) -> str:
    subject = draft.pick(set(SUBJECTS) - draft.world.state["meetings"].keys())
    people, day = sorted(draft.rng.sample(_people(draft), 2)), draft.rng.choice(DAYS)
    hour = _first_common_hour(draft, people, day)
    draft.call("schedule", subject=subject, day=day, hour=hour, people=people)
    draft.given["meeting"] = subject
    return f"Set up a meeting about the {subject} with {' and '.join(people)} on {day}, at the first hour that both are free."


def _postpone(draft: TaskDraft) -> str:
    subject = draft.pick(draft.world.state["meetings"])
    meeting = draft.call("find_meeting", subject=subject)
    later = DAYS[DAYS.index(meeting["day"]) + 1 :]
    if not later:
        raise Unfit
    day = draft.rng.choice(later)
    hour = _first_common_hour(draft, people_of(meeting), day)
    draft.call("move", subject=subject, day=day, hour=hour)
    draft.given["meeting"] = subject
    return f"Move the meeting about the {subject} to {day}, to the first hour at which all who take part are free."


def _invite(draft: TaskDraft) -> str:
    subject = draft.given["meeting"]
    meeting = draft.world.state["meetings"][subject]
    person = draft.rng.choice([name for name in _people(draft) if name not in people_of(meeting)])
    if meeting["hour"] not in draft.call("free_hours", person=person, day=meeting["day"]):
        raise Unfit
    draft.call("invite", subject=subject, person=person)
    return f"Then invite {person} to that meeting."


def _call_off(draft: TaskDraft) -> str:
    meetings = draft.world.state["meetings"]
    subject = draft.pick(meetings)
    person = draft.rng.choice(people_of(meetings[subject]))
    same_day = [record for record in draft.call("meetings_of", person=person) if record["day"] == meetings[subject]["day"]]
    if [record["subject"] for record in same_day] != [subject]:
        raise Unfit
    draft.call("call_off", subject=subject)
    return f"Call off the meeting that {person} has on {same_day[0]['day']}."


def _ask_time(draft: TaskDraft) -> str:
    person = draft.pick(_people(draft))
    days = [record["day"] for record in draft.call("meetings_of", person=person)]
    busiest = max(DAYS, key=days.count)
    if sum(days.count(day) == days.count(busiest) for day in DAYS) > 1:
        raise Unfit
    draft.answer = busiest
    return f"On which day does {person} have most meetings?"


_AGENDA = (
    Goal("schedule", _schedule, gives="meeting"),
    Goal("postpone", _postpone, gives="meeting"),
    Goal("invite", _invite, needs="meeting"),
    Goal("call_off", _call_off),
    Goal("ask_time", _ask_time, asks=True),
)

GOALS: dict[str, tuple[Goal, ...]] = {"bookings": _BOOKINGS, "inventory": _INVENTORY, "agenda": _AGENDA}
"""What can be asked for, by the domain of the world."""
