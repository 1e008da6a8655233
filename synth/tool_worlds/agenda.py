"""What can be asked for in the world of meetings."""

from __future__ import annotations

from rl.environments.tool_world.agenda import DAYS, SUBJECTS, people_of
from synth.tool_worlds.draft import Draft, Goal, Unfit


def _people(draft: Draft) -> list[str]:
    """All who have a meeting."""
    return sorted({person for record in draft.world.state["meetings"].values() for person in people_of(record)})


def _first_common_hour(draft: Draft, people: list[str], day: str) -> int:
    """The first hour at which all of them are free."""
    free = [set(draft.call("free_hours", person=person, day=day)) for person in people]
    common = set.intersection(*free)
    if not common:
        raise Unfit
    return min(common)


def _schedule(draft: Draft) -> str:
    subject = draft.pick(set(SUBJECTS) - draft.world.state["meetings"].keys())
    people, day = sorted(draft.rng.sample(_people(draft), 2)), draft.rng.choice(DAYS)
    hour = _first_common_hour(draft, people, day)
    draft.call("schedule", subject=subject, day=day, hour=hour, people=people)
    draft.given["meeting"] = subject
    return f"Set up a meeting about the {subject} with {' and '.join(people)} on {day}, at the first hour that both are free."


def _postpone(draft: Draft) -> str:
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


def _invite(draft: Draft) -> str:
    subject = draft.given["meeting"]
    meeting = draft.world.state["meetings"][subject]
    person = draft.rng.choice([name for name in _people(draft) if name not in people_of(meeting)])
    if meeting["hour"] not in draft.call("free_hours", person=person, day=meeting["day"]):
        raise Unfit
    draft.call("invite", subject=subject, person=person)
    return f"Then invite {person} to that meeting."


def _call_off(draft: Draft) -> str:
    meetings = draft.world.state["meetings"]
    subject = draft.pick(meetings)
    person = draft.rng.choice(people_of(meetings[subject]))
    same_day = [record for record in draft.call("meetings_of", person=person) if record["day"] == meetings[subject]["day"]]
    if [record["subject"] for record in same_day] != [subject]:
        raise Unfit
    draft.call("call_off", subject=subject)
    return f"Call off the meeting that {person} has on {same_day[0]['day']}."


def _ask_time(draft: Draft) -> str:
    person = draft.pick(_people(draft))
    days = [record["day"] for record in draft.call("meetings_of", person=person)]
    busiest = max(DAYS, key=days.count)
    if sum(days.count(day) == days.count(busiest) for day in DAYS) > 1:
        raise Unfit
    draft.answer = busiest
    return f"On which day does {person} have most meetings?"


GOALS = (
    Goal("schedule", _schedule, gives="meeting"),
    Goal("postpone", _postpone, gives="meeting"),
    Goal("invite", _invite, needs="meeting"),
    Goal("call_off", _call_off),
    Goal("ask_time", _ask_time, asks=True),
)
