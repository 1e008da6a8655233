"""Opening the teacher that a configuration names. Clients and engines are imported only where they are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from synth.teachers.config import TeacherConfig
from synth.teachers.teacher import Teacher
from warehouse.lake import Lake
from warehouse.records import Task

if TYPE_CHECKING:
    from synth.teachers.background import BackgroundLoop
    from synth.teachers.source import Source


@contextmanager
def open_teacher(config: TeacherConfig, lake: Lake | None = None, tasks: Iterable[Task] = ()) -> Iterator[Teacher]:
    """The teacher of a configuration, ended with the `with` block.

    Args:
        lake: where completions are kept and found again; without one nothing is cached and spending begins at zero.
        tasks: what the oracle knows.

    Raises:
        RequestError: no key, no model in the folder.
        EngineFault: an engine does not start.
    """
    if config.kind == "oracle":
        from synth.teachers.oracle import OracleTeacher

        yield OracleTeacher.of(tasks)
        return
    from synth.teachers.background import BackgroundLoop
    from synth.teachers.cache import CompletionCache
    from synth.teachers.model_teacher import ModelTeacher

    with BackgroundLoop("teacher") as loop:
        source = _source(config, loop)
        try:
            yield ModelTeacher(source, config, loop, CompletionCache(lake) if lake else None)
        finally:
            loop.wait(source.close())


def _source(config: TeacherConfig, loop: BackgroundLoop) -> Source:
    if config.kind == "openai":
        from synth.teachers.openai_server import OpenAiSource

        return OpenAiSource(config)
    from synth.teachers.engine import EngineSource

    return EngineSource.start(config, loop)
