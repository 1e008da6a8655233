"""Flights with seats, and bookings on them."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any, ClassVar

from rl.envs.tool_world.environment import NAMES, Schema, World, as_json, records_where
from rl.envs.tool_world.steps import Tables
from rl.tools import ToolError

CITIES = ("Aveiro", "Bergen", "Cusco", "Dakar", "Ghent", "Hanoi")


class Bookings(World):
    """An airline's desk."""

    domain = "bookings"
    schema: ClassVar[Schema] = {
        "flights": {"origin": str, "destination": str, "hour": int, "price": int, "seats": int},
        "bookings": {"flight": str, "passenger": str, "bags": int},
    }
    tools = ("find_flights", "list_bookings", "book", "rebook", "cancel", "set_bags")

    @classmethod
    def _populate(cls, rng: Random, size: int) -> Tables:
        routes = rng.sample(list(permutations(CITIES, 2)), max(2, size // 3))
        flights = {}
        for number in range(size):
            origin, destination = routes[number % len(routes)]
            price, hour, seats = rng.randrange(60, 400), rng.randrange(5, 23), rng.choice((0, 1, 2, 5, 9))
            flights[f"F{number + 100}"] = {"origin": origin, "destination": destination, "hour": hour, "price": price, "seats": seats}
        bookings = {}
        for passenger in rng.sample(NAMES, min(len(NAMES) - 4, size)):
            flight = rng.choice(sorted(flights))
            bookings[f"{passenger}@{flight}"] = {"flight": flight, "passenger": passenger, "bags": rng.randrange(3)}
        return {"flights": flights, "bookings": bookings}

    def find_flights(self, origin: str, destination: str) -> str:
        """List the flights from one city to another.

        Args:
            origin: the city that they leave from.
            destination: the city that they go to.
        """
        return as_json(records_where(self.state, "flights", origin=origin, destination=destination))

    def list_bookings(self, passenger: str) -> str:
        """List the bookings of a passenger.

        Args:
            passenger: the passenger's name.
        """
        return as_json(records_where(self.state, "bookings", passenger=passenger))

    def book(self, flight: str, passenger: str) -> str:
        """Book a seat on a flight.

        Args:
            flight: the key of the flight.
            passenger: the passenger's name.
        """
        key = f"{passenger}@{flight}"
        if key in self.state["bookings"]:
            raise ToolError(f"{passenger} has a booking on {flight} already")
        self._take_seat(flight)
        self.state["bookings"][key] = {"flight": flight, "passenger": passenger, "bags": 0}
        return as_json({"booking": key})

    def rebook(self, booking: str, flight: str) -> str:
        """Move a booking to another flight; the bags stay.

        Args:
            booking: the key of the booking.
            flight: the key of the new flight.
        """
        record = self._booking(booking)
        key = f"{record['passenger']}@{flight}"
        if key in self.state["bookings"]:
            raise ToolError(f"{record['passenger']} has a booking on {flight} already")
        self._take_seat(flight)
        self.state["flights"][record["flight"]]["seats"] += 1
        del self.state["bookings"][booking]
        self.state["bookings"][key] = {**record, "flight": flight}
        return as_json({"booking": key})

    def cancel(self, booking: str) -> str:
        """Cancel a booking; its seat is free again.

        Args:
            booking: the key of the booking.
        """
        self.state["flights"][self._booking(booking)["flight"]]["seats"] += 1
        del self.state["bookings"][booking]
        return as_json({"cancelled": booking})

    def set_bags(self, booking: str, bags: int) -> str:
        """Set how many bags go with a booking.

        Args:
            booking: the key of the booking.
            bags: how many, from 0 to 5.
        """
        if not 0 <= bags <= 5:
            raise ToolError("a booking has 0 to 5 bags")
        self._booking(booking)["bags"] = bags
        return as_json({"booking": booking, "bags": bags})

    def _booking(self, key: str) -> dict[str, Any]:
        if key not in self.state["bookings"]:
            raise ToolError(f"there is no booking {key!r}")
        return self.state["bookings"][key]

    def _take_seat(self, flight: str) -> None:
        record = self.state["flights"].get(flight)
        if record is None:
            raise ToolError(f"there is no flight {flight!r}")
        if record["seats"] == 0:
            raise ToolError(f"{flight} has no seat left")
        record["seats"] -= 1
