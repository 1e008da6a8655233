"""Images in the lake: each stored once, whatever shows it; trajectories come back with theirs, now and as of earlier snapshots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from warehouse import Image, Lake, Trajectory
from warehouse.digests import digest_bytes

pytestmark = pytest.mark.slow

MakeTrajectory = Callable[..., Trajectory]


def image(content: bytes) -> Image:
    return Image(digest_bytes(content), "image/png", 2, 1, content)


RED, BLUE = image(b"red\x00\xff"), image(b"blue")


def showing(trajectory: Trajectory, *images: tuple[Image, ...]) -> Trajectory:
    """`trajectory` whose turns show `images`."""
    return replace(trajectory, turns=tuple(replace(turn, images=shown) for turn, shown in zip(trajectory.turns, images, strict=True)))


def test_an_image_is_stored_once_and_every_turn_that_shows_it_comes_back_with_it(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    first = showing(make_trajectory("a", 3), (RED, BLUE, RED), (), (BLUE,))
    second = showing(make_trajectory("b", 1), (RED,))
    before = lake.snapshot()
    lake.add([first, make_trajectory("c", 2)])
    assert lake.snapshot() == before + 1, "images are of the same commit"
    lake.add([second])
    assert [each.images for each in lake.trajectories()] == [(RED, BLUE, RED, BLUE), (RED,), ()]
    assert [turn.images for turn in lake.trajectories("id = 'a'")[0].turns] == [(RED, BLUE, RED), (), (BLUE,)]
    assert sorted(lake.read(Image), key=lambda each: each.data) == [BLUE, RED]
    named = lake.query("SELECT images FROM turns WHERE trajectory_id = 'b'").to_pylist()
    assert named == [{"images": [RED.digest]}]


def test_an_image_stays_where_one_of_two_trajectories_that_show_it_goes(lake: Lake, make_trajectory: MakeTrajectory) -> None:
    lake.add([showing(make_trajectory("a", 1), (RED,)), showing(make_trajectory("b", 1), (RED,))])
    lake.remove(Trajectory, ["a"])
    lake.replace([showing(make_trajectory("b", 1), (BLUE, RED))])
    assert [each.images for each in lake.trajectories()] == [(BLUE, RED)]
    assert len(lake.read(Image)) == 2
