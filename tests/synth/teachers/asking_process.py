"""A process that asks a teacher 60 questions, for tests that kill it: HOME URL."""

from __future__ import annotations

import sys
from pathlib import Path

from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import open_teacher
from warehouse import Completion, Lake
from warehouse.records import user

QUESTIONS = 60
CONCURRENCY = 4


def main(home: str, url: str) -> int:
    """Ask, and say whether all replies are completions."""
    config = TeacherConfig(kind="openai", model="m", base_url=url, concurrency=CONCURRENCY)
    with Lake(Path(home)) as lake, open_teacher(config, lake) as teacher:
        replies = teacher.complete([user(f"question {number}") for number in range(QUESTIONS)])
    return 0 if all(isinstance(reply, Completion) for reply in replies) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
