"""The graph's own teacher, which needs no model: it answers the questions whose answers were proven, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eval.outcome import right_answer
from synth.teachers.teacher import Ending, Fault, Reply, Request, completion_id, failed
from warehouse.records import Completion, Task


class OracleTeacher:
    """Answers by question. A request is the question alone, as the last message."""

    name = "oracle"

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> OracleTeacher:
        """The oracle that knows the answers of `tasks`."""
        return cls({task.question: right_answer(task) for task in tasks if task.answers})

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """The answer to each question, the list of all where it asks for a set; a failure where the question is none of those."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        answer = self._answers.get(request.messages[-1].content.strip()) if request.messages else None
        if answer is None:
            return failed(Fault.UNKNOWN, "the graph has no such question", self.name, request)
        return Completion(completion_id(self.name, request), self.name, request.content, answer, Ending.STOP, 0, 0, attempts=0)
