"""A teacher as a yes-or-no reader: whether a passage states a claim, an answer fits, or a plan is sound.

A reader is a judge (`eval.judges`) with a short verdict. It is used only if it passes a calibration on labelled cases of its kind;
otherwise all its verdicts are None. Completions are cached in the lake, so a calibration is paid for once per home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from eval.judges import Judge, JudgePrompt, calibrate, unfit_reason
from synth.teachers.teacher import Teacher, unmetered
from warehouse.digests import digest
from warehouse.records import Check, Failure

YES, NO = "yes", "no"
READER_TOKENS = 32
_FORM = '\nReply with JSON alone: {"verdict": "yes" or "no"}'


def reader(name: str, text: str, least: Mapping[str, float]) -> JudgePrompt:
    """Build a reader's prompt. The fields of `text` are those of its cases and of the labelled cases in `calibration/NAME.jsonl`.

    Args:
        least: minimum shares of the yes and of the no cases judged correctly.
    """
    show: Callable[[Any], str] = lambda case: text.format(**case) + _FORM  # noqa: E731
    labelled = Path(__file__).parent / "calibration" / f"{name}.jsonl"
    return JudgePrompt(name, f"1-{digest(text, 8)}", (YES, NO), show, labelled, lambda row: row, least, explained=False)


STATED = reader("stated", "Passage:\n{text}\n\nClaim: {claim}\nDoes the passage state the claim?", {YES: 0.8, NO: 0.8})
"""Fields: text, claim."""
FITS = reader(
    "fits",
    "{passages}\n\nQuestion: {question}\n"
    "By these passages, is {candidate!r} a right answer to the question, and another one than {answer!r}?",
    {YES: 0.75, NO: 0.8},
)
"""Fields: passages, question, candidate, answer."""
CONTRADICTS = reader(
    "contradicts",
    "{passages}\n\nClaim: {claim}\nDoes one of these passages contradict the claim, so that both cannot be true? A passage does not if it "
    "only adds to the claim, or is about something else of the same name.",
    {YES: 0.7, NO: 0.8},
)
"""Fields: passages, claim."""
KIND = reader(
    "kind",
    "Is {constant!r} the kind of thing that is asked for by: {description}? Do not judge whether it is right.",
    {YES: 0.8, NO: 0.7},
)
"""Fields: constant, description."""
SOUND = reader(
    "sound",
    "Question: {question}\nKnowledge that the answer requires:\n{required}\nA plan to find it: {plan}\nIts first action: {action}\n"
    "Does this action look for that knowledge, and does the plan look for all of it, without looking for anything else?",
    {YES: 0.8, NO: 0.8},
)
"""Fields: question, required, plan, action."""


@dataclass(slots=True)
class Readers:
    """Calibrated readers of one teacher; thread-safe. `failures` collects failed calibrations and replies without a verdict.

    Share one instance among all users of a teacher, so that it is calibrated once. Calibration is not metered, and `keep` stores its
    results at once: a batch's counts then do not depend on whether a resumed run calibrates again.
    """

    teacher: Teacher
    keep: Callable[[Iterable[Check | Failure]], None] | None = None
    failures: list[Failure] = field(default_factory=list)
    _fit: dict[str, bool] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def is_fit(self, prompt: JudgePrompt) -> bool:
        """Whether the teacher passes the prompt's calibration; calibrates on first use."""
        with self._lock:
            if prompt.name not in self._fit:
                judge = self._judge(prompt, unmetered(self.teacher))
                calibration = calibrate(judge)
                reason = unfit_reason(judge, calibration)
                self._fit[prompt.name] = reason is None
                unfit = [] if reason is None else [Failure("synth", "judge_unfit", reason, {"judge": judge.name})]
                if self.keep is None:
                    self.failures += unfit
                else:
                    self.keep([*calibration.checks, *unfit])
            return self._fit[prompt.name]

    def read(self, prompt: JudgePrompt, cases: Sequence[Mapping[str, str]]) -> list[bool | None]:
        """Verdict per case; None if the reader is not calibrated or gives no verdict."""
        if not cases or not self.is_fit(prompt):
            return [None] * len(cases)
        verdicts = self._judge(prompt, self.teacher).judge(cases)
        self.failures += [verdict for verdict in verdicts if isinstance(verdict, Failure)]
        return [None if isinstance(verdict, Failure) else verdict.verdict == YES for verdict in verdicts]

    def drain(self) -> list[Failure]:
        failures, self.failures = self.failures, []
        return failures

    def _judge(self, prompt: JudgePrompt, teacher: Teacher) -> Judge:
        return Judge(teacher, prompt, attempts=2, max_tokens=READER_TOKENS)
