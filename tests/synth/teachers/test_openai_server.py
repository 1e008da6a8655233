"""The teacher against a real HTTP server that misbehaves: retries, pauses, limits and the cache, as they are seen by the server."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from synth.teachers import model_teacher
from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import ModelTeacher, open_teacher
from synth.teachers.teacher import Fault, Reply, ask
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Completion, Failure, Lake, RequestError
from warehouse.records import Request, user
from warehouse.replies import form_of

pytestmark = pytest.mark.slow


@contextmanager
def teacher_of(server: MisbehavingServer, lake: Lake | None = None, **options: Any) -> Iterator[ModelTeacher]:
    settings = {"first_pause_seconds": 0.01, **options}
    config = TeacherConfig(kind="openai", model="small", base_url=server.url, **settings)
    with open_teacher(config, lake) as teacher:
        assert isinstance(teacher, ModelTeacher)
        yield teacher


def fault(reply: Reply) -> Fault:
    assert isinstance(reply, Failure), reply
    return Fault(reply.kind)


def text(reply: Reply) -> str:
    assert isinstance(reply, Completion), reply
    return reply.text


def requests(count: int, **options: Any) -> list[Request]:
    return [user(f"question {i}", **options) for i in range(count)]


def test_replies_come_in_the_order_of_the_requests_and_side_by_side_with_lines_of_progress(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_teacher, "SECONDS_PER_LINE", 0.02)
    with caplog.at_level("INFO", "flywheel"), MisbehavingServer(slow_seconds=0.05) as server, teacher_of(server, concurrency=4) as teacher:
        replies = teacher.complete(requests(12))
    assert [text(reply) for reply in replies] == [f"echo question {i}" for i in range(12)]
    assert server.most_in_flight == 4
    told = [re.match(r"openai:small  (\d+) replies, (\d+) left, ", message) for message in caplog.messages]
    counts = [(int(each[1]), int(each[2])) for each in told if each]
    assert counts == sorted(counts) and all(done + left == 12 for done, left in counts) and counts[0] != (12, 0)


def test_the_form_of_a_reply_is_asked_for_where_it_is_configured(tmp_path: Path) -> None:
    shape = TypeAdapter(list[int])
    request = user("q", form=form_of(shape))
    with MisbehavingServer() as server, Lake(tmp_path) as lake:
        for structured in (None, False, True):
            with teacher_of(server, lake, structured=structured) as teacher:
                ask(teacher, request)
    plain, formed = server.bodies
    assert "response_format" not in plain, "a server that knows no forms would refuse"
    assert formed["response_format"]["json_schema"]["schema"] == shape.json_schema() and formed["messages"] == plain["messages"]


def test_a_completion_is_stored_with_its_price_and_without_prices_with_none(tmp_path: Path) -> None:
    with MisbehavingServer() as server, Lake(tmp_path) as lake:
        for prices, text in ((None, "a"), ((2.0, 10.0), "b")):
            with teacher_of(server, lake, usd_per_million=prices) as teacher:
                ask(teacher, user(text))
        unknown, known = sorted(lake.read(Completion), key=lambda each: each.text)
        assert unknown.usd is None
        assert known.usd == pytest.approx((2 * known.prompt_tokens + 10 * known.completion_tokens) / 1e6)
        (row,) = lake.query("SELECT usd FROM cost WHERE stage = 'teacher'").to_pylist()
        assert row["usd"] == pytest.approx(known.usd)


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        ("429", Fault.RATE_LIMITED),
        ("503", Fault.SERVER_ERROR),
        ("hang", Fault.TIMEOUT),
        ("reset", Fault.CONNECTION),
        ("nonsense", Fault.MALFORMED),
    ],
)
def test_what_may_pass_is_tried_again_so_often_at_most(act: str, kind: Fault) -> None:
    limit = {"timeout_seconds": 3} if act == "hang" else {}
    with MisbehavingServer([act] * 3) as server, teacher_of(server, attempts=2, **limit) as teacher:
        assert fault(ask(teacher, user("p"))) is kind and len(server.times) == 2
        reply = ask(teacher, user("q"))
    assert isinstance(reply, Completion), reply
    assert (reply.text, reply.attempts, len(server.times)) == ("echo q", 2, 4)


@pytest.mark.parametrize(("act", "kind"), [("400", Fault.REFUSED), ("quota", Fault.REFUSED), ("cut", Fault.CUT)])
def test_a_lasting_fault_is_not_tried_again(act: str, kind: Fault) -> None:
    with MisbehavingServer([act]) as server, teacher_of(server) as teacher:
        assert fault(ask(teacher, user("q"))) is kind
    assert len(server.times) == 1


def test_requests_that_are_refused_for_good_cost_no_token_and_the_others_are_not_sent() -> None:
    with MisbehavingServer(["401"] * 40, slow_seconds=0.05) as server, teacher_of(server, concurrency=16) as teacher:
        with pytest.raises(RequestError, match="401"):
            teacher.complete(requests(40, max_tokens=4_000))
        assert teacher.spent.tokens == 0
    assert len(server.times) < 40


def test_the_limit_of_tokens_is_never_passed_and_is_used() -> None:
    """Each completion costs far less than what has to be set aside for it: the others wait for it and are not refused."""
    with MisbehavingServer(slow_seconds=0.01) as server, teacher_of(server, max_tokens=600) as teacher:
        replies = teacher.complete(requests(40, max_tokens=200))
        spent = teacher.spent
    made = [reply for reply in replies if isinstance(reply, Completion)]
    assert spent.tokens == sum(c.prompt_tokens + c.completion_tokens for c in made) <= 600
    assert spent.tokens > 600 - 240
    assert server.most_in_flight <= 2
    assert {fault(reply) for reply in replies if isinstance(reply, Failure)} == {Fault.BUDGET}


def test_nothing_is_paid_for_twice(tmp_path: Path) -> None:
    with MisbehavingServer(["cut"]) as server, Lake(tmp_path) as lake:
        with teacher_of(server, lake, concurrency=1) as teacher:
            first = teacher.complete(requests(3))
        with teacher_of(server, lake) as teacher:
            again = teacher.complete([*requests(4), *requests(4)])
            spent = teacher.spent
    assert again[:3] == first and again[:4] == again[4:]
    assert fault(again[0]) is Fault.CUT
    assert len(server.times) == 4
    assert spent.requests == 4


def test_threads_that_ask_the_same_ask_once(tmp_path: Path) -> None:
    replies: list[Reply] = []
    with MisbehavingServer(slow_seconds=0.2) as server, Lake(tmp_path) as lake, teacher_of(server, lake) as teacher:
        threads = [threading.Thread(target=lambda: replies.append(ask(teacher, user("q")))) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert lake.query("SELECT count(*) AS n FROM completions").to_pylist() == [{"n": 1}]
    assert [text(reply) for reply in replies] == ["echo q"] * 5
    assert len(server.times) == 1


def test_requests_keep_their_distance() -> None:
    with MisbehavingServer(["500"]) as server, teacher_of(server, requests_per_minute=1200) as teacher:
        teacher.complete(requests(6))
    assert len(server.times) == 7
    assert max(server.times) - min(server.times) > 0.05 * 4  # of 5 gaps: the server may be late to note the first


def test_the_server_is_left_alone_as_long_as_it_asks() -> None:
    with MisbehavingServer(["429:0.4"]) as server, teacher_of(server) as teacher:
        assert text(ask(teacher, user("q"))) == "echo q"
    assert server.times[1] - server.times[0] >= 0.4
