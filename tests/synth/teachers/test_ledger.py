"""What a teacher has cost: to the token, over faults, over processes, and over kills."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import FILE, Ledger, ModelTeacher, Spent, open_teacher
from synth.teachers.source import largest_cost
from tests.synth.teachers import asking_process
from tests.synth.teachers.asking_process import CONCURRENCY, QUESTIONS
from tests.synth.teachers.faulty_server import FaultyServer
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Completion, Failure, Lake
from warehouse.records import user

ROOT = Path(__file__).parents[3]
NO_LIMITS = (None, None)


def test_what_a_process_left_open_counts_for_the_next_and_what_was_known_counts_once(tmp_path: Path) -> None:
    Ledger(tmp_path / FILE, "m", Spent(2, 30)).begin(100, NO_LIMITS)
    assert Ledger(tmp_path / FILE, "m", Spent(9, 999)).spent == Spent(3, 130)
    assert Ledger(tmp_path / FILE, "other", Spent()).spent == Spent()


def test_two_that_have_the_file_open_share_one_limit(tmp_path: Path) -> None:
    one, other = (Ledger(tmp_path / FILE, "m", Spent()) for _ in range(2))
    assert isinstance(one.begin(60, (None, 100)), int)
    assert other.begin(60, (None, 100)) == "max_tokens: 60 of 100 are used, and this request may cost 60"
    assert isinstance(other.begin(40, (None, 100)), int)
    assert one.begin(0, (2, None)) == "max_requests: all 2 are used"


@pytest.mark.long
@pytest.mark.slow
def test_with_a_third_of_faults_all_is_retried_or_recorded_and_no_token_is_forgotten(tmp_path: Path) -> None:
    wanted = [user(f"question {number}", max_tokens=40) for number in range(200)]
    with FaultyServer(late_seconds=15.0) as server, Lake(tmp_path) as lake:
        for limit in (2_000, 20_000):  # with the first many are refused; with the second those alone are asked
            options = {"timeout_seconds": 5, "first_pause_seconds": 0.01, "max_tokens": limit}
            config = TeacherConfig(kind="openai", model="m", base_url=server.url, **options)  # type: ignore[arg-type]
            with open_teacher(config, lake) as teacher:
                assert isinstance(teacher, ModelTeacher)
                replies, spent = teacher.complete(wanted), teacher.spent
            assert server.billed <= spent.tokens <= limit
            kinds = {reply.kind for reply in replies if isinstance(reply, Failure)}
            assert kinds == ({"budget", "cut"} if limit == 2_000 else {"cut"})
            assert limit == 20_000 or limit - spent.tokens < largest_cost(wanted[-1]), "and the limit is used"
        stored, retries = lake.read(Completion), lake.failures("teacher")
    again = [server.met[fault] for fault in ("late", "torn", "500")]
    assert min(again) > 0 and len(retries) == sum(again)
    assert {failure.kind for failure in retries} == {"retried_timeout", "retried_connection", "retried_server_error"}
    assert spent.requests == server.asked.total() == len(wanted) + sum(again)
    assert len(stored) == len(server.arrived) == server.arrived.total() == len(wanted), "nothing that came is asked for again"


@pytest.mark.slow
def test_a_server_that_does_not_say_what_it_costs_is_counted_at_the_most() -> None:
    with (
        FaultyServer(share=0, reports=False) as server,
        open_teacher(TeacherConfig(kind="openai", model="m", base_url=server.url)) as teacher,
    ):
        assert isinstance(teacher, ModelTeacher)
        teacher.complete([user("q", max_tokens=100)])
        assert teacher.spent.tokens == largest_cost(user("q", max_tokens=100)) == 117


@pytest.mark.slow
def test_a_killed_process_has_spent_what_it_had_under_way(tmp_path: Path) -> None:
    with FaultyServer(share=0, slow_seconds=30) as server:
        command = [sys.executable, "-m", "tests.synth.teachers.asking_process", str(tmp_path), server.url]
        process = subprocess.Popen(command, cwd=ROOT)
        while not server.times and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        process.kill()
        process.wait()
        under_way = len(server.times)
    spent = Ledger(tmp_path / "lake" / FILE, "openai:m", Spent()).spent
    assert under_way == spent.requests == 4 and spent.tokens == sum(largest_cost(user(f"question {n}")) for n in range(4))


@pytest.mark.engine
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_killed_process_pays_only_for_what_was_in_flight_again(tmp_path: Path, kills: int) -> None:
    rng = random.Random(0)
    with MisbehavingServer(slow_seconds=0.1) as server:
        command = [sys.executable, "-m", asking_process.__name__, str(tmp_path), server.url]
        for _ in range(kills):
            process = subprocess.Popen(command, cwd=ROOT)
            before = len(server.times)
            while len(server.times) < before + rng.randint(2, QUESTIONS // 4) and process.poll() is None:
                time.sleep(0.005)
            process.kill()
            process.wait()
        assert QUESTIONS > len(server.times) > kills
        assert subprocess.run(command, cwd=ROOT).returncode == 0
        asked = len(server.times)
    with Lake(tmp_path) as lake:
        stored = {completion.request["messages"][-1]["content"]: completion.text for completion in lake.read(Completion)}
    assert stored == {f"question {number}": f"echo question {number}" for number in range(QUESTIONS)}
    assert QUESTIONS <= asked <= QUESTIONS + kills * 2 * CONCURRENCY
