"""People are told of what happens, by a command and by a webhook, and a hook that fails stops nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from flows.operations.events import Event, notify
from flows.operations_config import EventKind, EventsConfig
from warehouse import Lake

pytestmark = pytest.mark.slow

PROMOTION = Event(EventKind.promotion, Path("runs/demo"), "t2-gate", "t2-rl is promoted: «besser»", {"p": 0.01})


@pytest.fixture(autouse=True)
def without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to Prefect is for the test that has a server."""
    monkeypatch.setattr("flows.operations.events.emit_event", lambda *given, **named: None)


@contextmanager
def receiver(*statuses: int, read: Callable[[bytes], Any] = json.loads) -> Iterator[tuple[str, list[tuple[dict[str, str], Any]]]]:
    """A server on this machine that keeps the headers and the body of each request, as `read` reads it.

    Its answers are `statuses`, the last of them for all that follow (200 without any).
    """
    answers = iter(statuses)
    received: list[tuple[dict[str, str], Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((dict(self.headers), read(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(next(answers, statuses[-1] if statuses else 200))
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Tests are quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook", received
        finally:
            server.shutdown()
            thread.join()


def test_a_command_is_run_without_a_shell_with_the_event_on_its_standard_input(tmp_path: Path) -> None:
    heard = tmp_path / "heard; touch $HOME"
    script = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    with Lake(tmp_path / "home") as lake:
        notify(PROMOTION, EventsConfig(command=(sys.executable, "-c", script, str(heard))), lake)
        assert lake.failures() == []
    told = json.loads(heard.read_text())
    assert (told["event"], told["run"], told["sentence"]) == ("promotion", "t2-gate", "t2-rl is promoted: «besser»")
    assert told["home"] == str(Path("runs/demo").resolve()) and told["facts"] == {"p": 0.01} and told["time"]


def test_a_webhook_is_posted_to_with_the_token_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "secret")
    with receiver() as (address, received):
        notify(PROMOTION, EventsConfig(webhook=address, on=(EventKind.failed_schedule,)), None)
        assert received == [], "only the kinds that were asked for are sent"
        notify(PROMOTION, EventsConfig(webhook=address, token_variable="HOOK_TOKEN"), None)
    ((headers, body),) = received
    assert headers["Authorization"] == "Bearer secret"
    assert body["sentence"] == PROMOTION.sentence


def test_hooks_that_fail_are_recorded_and_raise_nothing(tmp_path: Path) -> None:
    failing = (sys.executable, "-c", "import sys; sys.exit('no such channel')")
    slow = (sys.executable, "-c", "import time; time.sleep(60)")
    with Lake(tmp_path) as lake, receiver(500) as (address, _):
        notify(PROMOTION, EventsConfig(command=failing, webhook=address), lake)
        notify(PROMOTION, EventsConfig(command=slow, timeout_seconds=0.2), lake)
        notify(PROMOTION, EventsConfig(command=("/no/such/program",), webhook="http://127.0.0.1:9/"), lake)
        failures = lake.failures("events")
    assert sorted(failure.kind for failure in failures) == ["command_failed"] * 3 + ["webhook_failed"] * 2
    reasons = " ".join(failure.reason for failure in failures)
    assert "no such channel" in reasons and "500" in reasons and "TimeoutExpired" in reasons and "FileNotFoundError" in reasons
    assert all(failure.item["run"] == "t2-gate" for failure in failures)
