"""People, and their meetings in the hours of five days."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from rl.envs.tool_world.environment import NAMES, Schema, World, as_json
from rl.envs.tool_world.steps import Tables
from rl.tools import ToolError, ToolMiss

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
HOURS = range(9, 17)
SUBJECTS = ("budget", "launch", "hiring", "review", "survey", "planning", "training", "retreat", "audit", "demo", "kickoff", "handover")


class Agenda(World):
    """A team's calendar. The people of a meeting are names in the order of the alphabet, separated by commas."""

    domain = "agenda"
    schema: ClassVar[Schema] = {"meetings": {"subject": str, "day": str, "hour": int, "people": str}}
    tools = ("find_meeting", "meetings_of", "free_hours", "schedule", "move", "invite", "call_off")

    @classmethod
    def _populate(cls, rng: Random, size: int) -> Tables:
        people = rng.sample(NAMES, min(len(NAMES), max(4, size // 2)))
        busy: set[tuple[str, str, int]] = set()
        meetings: dict[str, dict[str, Any]] = {}
        for subject in rng.sample(SUBJECTS, min(size, len(SUBJECTS))):
            day, hour, invited = rng.choice(DAYS), rng.choice(HOURS), sorted(rng.sample(people, 2))
            if not any((person, day, hour) in busy for person in invited):
                busy |= {(person, day, hour) for person in invited}
                meetings[subject] = {"subject": subject, "day": day, "hour": hour, "people": ", ".join(invited)}
        return {"meetings": meetings}

    def find_meeting(self, subject: str) -> str:
        """Show a meeting.

        Args:
            subject: what it is about.
        """
        return as_json(self._meeting(subject))

    def meetings_of(self, person: str) -> str:
        """List the meetings of a person.

        Args:
            person: the person's name.
        """
        found = [record for _, record in sorted(self.state["meetings"].items()) if person in people_of(record)]
        if not found:
            raise ToolMiss(f"{person} has no meetings.")
        return as_json(found)

    def free_hours(self, person: str, day: str) -> str:
        """List the hours at which a person has no meeting on a day.

        Args:
            person: the person's name.
            day: Monday to Friday.
        """
        self._check(day, HOURS[0])
        return as_json([hour for hour in HOURS if not self._busy(person, day, hour)])

    def schedule(self, subject: str, day: str, hour: int, people: list[str]) -> str:
        """Set up a meeting of an hour.

        Args:
            subject: what it is about; no other meeting may have it.
            day: Monday to Friday.
            hour: the hour that it begins at, 9 to 16.
            people: the names of all who take part.
        """
        if subject in self.state["meetings"]:
            raise ToolError(f"there is a meeting about {subject!r} already")
        if not people:
            raise ToolError("a meeting needs people")
        self._check_free(people, day, hour)
        self.state["meetings"][subject] = {"subject": subject, "day": day, "hour": hour, "people": ", ".join(sorted(set(people)))}
        return as_json(self.state["meetings"][subject])

    def move(self, subject: str, day: str, hour: int) -> str:
        """Move a meeting to another time.

        Args:
            subject: what it is about.
            day: Monday to Friday.
            hour: the hour that it begins at, 9 to 16.
        """
        meeting = self._meeting(subject)
        self._check_free(people_of(meeting), day, hour)
        meeting.update(day=day, hour=hour)
        return as_json(meeting)

    def invite(self, subject: str, person: str) -> str:
        """Add a person to a meeting.

        Args:
            subject: what it is about.
            person: the person's name.
        """
        meeting = self._meeting(subject)
        if person in people_of(meeting):
            raise ToolError(f"{person} is invited already")
        self._check_free([person], meeting["day"], meeting["hour"])
        meeting["people"] = ", ".join(sorted([*people_of(meeting), person]))
        return as_json(meeting)

    def call_off(self, subject: str) -> str:
        """Call a meeting off.

        Args:
            subject: what it is about.
        """
        self._meeting(subject)
        del self.state["meetings"][subject]
        return as_json({"called off": subject})

    def _meeting(self, subject: str) -> dict[str, Any]:
        if subject not in self.state["meetings"]:
            raise ToolError(f"there is no meeting about {subject!r}")
        return self.state["meetings"][subject]

    def _busy(self, person: str, day: str, hour: int) -> bool:
        meetings = self.state["meetings"].values()
        return any(person in people_of(record) and (record["day"], record["hour"]) == (day, hour) for record in meetings)

    def _check(self, day: str, hour: int) -> None:
        if day not in DAYS or hour not in HOURS:
            raise ToolError(f"a meeting is on {', '.join(DAYS)}, from {HOURS[0]} to {HOURS[-1]}")

    def _check_free(self, people: list[str], day: str, hour: int) -> None:
        self._check(day, hour)
        busy = [person for person in people if self._busy(person, day, hour)]
        if busy:
            raise ToolError(f"{', '.join(busy)} cannot at {hour} on {day}")


def people_of(meeting: dict[str, Any]) -> list[str]:
    """The names of those who take part."""
    return str(meeting["people"]).split(", ")
