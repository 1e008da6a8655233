"""Rejection sampling: the shortest success of each task, deeper tasks first, in the ids that were sampled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from synth.demonstrations.cold_start import choose_successes, example_of, without_images
from warehouse.records import Image, Outcome, PartKind, StopReason, Trajectory, Turn


def turn(index: int) -> Turn:
    observation = (9, 9) if index == 0 else ()
    return Turn(index, (5 + index, 6), (-0.1, -0.2), "a", "search", "q", observation, "o", None, "ok", 0.1, 3)


def trajectory(name: str, task: str, turns: int, step: int = 1) -> Trajectory:
    made = tuple(turn(index) for index in range(turns))
    return Trajectory(
        name, task, "p", "rl", 5, (1, 2), made, StopReason.ANSWERED, Outcome.SUCCESS, 1.0, 0, datetime.now(UTC), 0.1, step=step
    )


def test_one_for_each_task_the_shortest_and_the_deeper_first() -> None:
    given = [trajectory("long", "x", 3), trajectory("short", "x", 2), trajectory("deep", "y", 3), trajectory("other", "z", 2)]
    chosen = choose_successes(given, {"x": 1, "y": 3, "z": 2}, 2, 0, 2)
    assert [example.sources for example in chosen] == [("deep",), ("other",)]
    assert [e.sources for e in choose_successes(given, {"x": 1}, 9, 0, 2) if e.sources[0] in ("long", "short")] == [("short",)]


def test_what_showed_images_is_left_out_with_the_reason() -> None:
    plain, seeing = trajectory("plain", "x", 2), trajectory("seeing", "x", 2)
    seeing = replace(seeing, turns=(replace(seeing.turns[0], images=(Image("d", "image/png", 1, 1, b""),)), seeing.turns[1]))
    kept, left_out = without_images([seeing, plain])
    assert kept == [plain]
    assert [(failure.kind, failure.item) for failure in left_out] == [("rejection_of_images", "seeing")]


def test_the_ids_are_those_sampled_and_only_actions_are_trained() -> None:
    example = example_of(trajectory("t", "x", 2), 2)
    assert all(part.kind is PartKind.TOKENS for part in example.parts)
    assert [(part.ids, part.learnt) for part in example.parts] == [((1, 2), False), ((5, 6), True), ((9, 9), False), ((6, 6), True)]
    assert [part.text for part in example.parts] == ["", "a", "o", "a"]


def test_the_choice_does_not_depend_on_the_order_of_what_is_given() -> None:
    given = [trajectory(f"t{i}", f"x{i}", 2) for i in range(20)]
    assert choose_successes(given, {}, 5, 1, 2) == choose_successes(given[::-1], {}, 5, 1, 2)
