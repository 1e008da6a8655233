"""What can be asked for in the world of flights and bookings."""

from __future__ import annotations

from typing import Any

from rl.environments.tool_world.world import NAMES
from synth.tool_worlds.draft import Draft, Goal, Unfit, only_best


def _route(draft: Draft) -> tuple[str, str]:
    """A route with a choice of flights."""
    routes = sorted((record["origin"], record["destination"]) for record in draft.world.state["flights"].values())
    several = sorted({route for route in routes if routes.count(route) > 1})
    if not several:
        raise Unfit
    return draft.rng.choice(several)


def _only_booking(draft: Draft) -> tuple[str, dict[str, Any]]:
    """A passenger with one booking, and that booking."""
    names = [record["passenger"] for record in draft.world.state["bookings"].values()]
    passenger = draft.pick(name for name in names if names.count(name) == 1)
    return passenger, draft.call("list_bookings", passenger=passenger)[0]


def _book_cheapest(draft: Draft) -> str:
    origin, destination = _route(draft)
    passenger = draft.pick(set(NAMES) - {record["passenger"] for record in draft.world.state["bookings"].values()})
    flights = draft.call("find_flights", origin=origin, destination=destination)
    flight = only_best([flight for flight in flights if flight["seats"]], lambda flight: flight["price"])
    draft.given["booking"] = draft.call("book", flight=flight["key"], passenger=passenger)["booking"]
    return f"Book {passenger} on the cheapest flight from {origin} to {destination} that has a seat."


def _rebook_latest(draft: Draft) -> str:
    passenger, booking = _only_booking(draft)
    now = draft.world.state["flights"][booking["flight"]]
    flights = draft.call("find_flights", origin=now["origin"], destination=now["destination"])
    latest = only_best(flights, lambda flight: -flight["hour"])
    if latest["key"] == booking["flight"] or not latest["seats"]:
        raise Unfit
    draft.given["booking"] = draft.call("rebook", booking=booking["key"], flight=latest["key"])["booking"]
    return f"Move {passenger}'s booking to the latest flight from {now['origin']} to {now['destination']}."


def _cancel(draft: Draft) -> str:
    passenger, booking = _only_booking(draft)
    draft.call("cancel", booking=booking["key"])
    return f"Cancel {passenger}'s booking."


def _bags(draft: Draft) -> str:
    bags = draft.rng.randrange(3, 6)
    draft.call("set_bags", booking=draft.given["booking"], bags=bags)
    return f"Put {bags} bags on that booking."


def _ask_price(draft: Draft) -> str:
    passenger, booking = _only_booking(draft)
    now = draft.world.state["flights"][booking["flight"]]
    flights = draft.call("find_flights", origin=now["origin"], destination=now["destination"])
    draft.answer = str(next(flight["price"] for flight in flights if flight["key"] == booking["flight"]))
    return f"What is the price of the flight from {now['origin']} to {now['destination']} that {passenger} is booked on?"


GOALS = (
    Goal("book_cheapest", _book_cheapest, gives="booking"),
    Goal("rebook_latest", _rebook_latest, gives="booking"),
    Goal("cancel", _cancel),
    Goal("bags", _bags, needs="booking"),
    Goal("ask_price", _ask_price, asks=True),
)
