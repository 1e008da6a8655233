"""Export evaluations as Inspect AI logs for `inspect view`, one log per policy and suite.

A trajectory is a sample, and repetitions of a task are its epochs; an action is an assistant message with its calls, each result a tool
message. The latest verdict of each verifier is a score, unscored if invalid; an invalid trajectory has its error. The metric `accuracy` is
the share of successes among valid ones. Logs are deterministic. Left out: token ids, log-probabilities, weight versions, and the prompt
around the question.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from warehouse.digests import digest
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.exporters.dataset import check_free, safe_name
from warehouse.importers.inspect_logs import inspect_log_module
from warehouse.lake import Lake
from warehouse.records import ANSWER, Call, Outcome, Score, Task, Trajectory, Turn

_SUFFIXES = (".eval", ".json")


def export_logs(lake: Lake, path: Path) -> list[Path]:
    """Write the evaluations to `path`: one file for a single evaluation, else a folder with one log each; return the files.

    Raises RequestError if there is no evaluation, several for one file, `path` exists, or `inspect-ai` is missing.
    """
    module = inspect_log_module()
    sql = "SELECT DISTINCT policy, suite FROM trajectories WHERE stage = 'eval' AND suite IS NOT NULL ORDER BY policy, suite"
    pairs = [(row["policy"], row["suite"]) for row in lake.query(sql).to_pylist()]
    files = _files(lake, path, pairs)
    for (policy, suite), file in zip(pairs, files, strict=True):
        with drafted(file) as part:
            module.write_eval_log(_log(module, lake, policy, suite), str(part), format=file.suffix.removeprefix("."))
    return files


def _files(lake: Lake, path: Path, pairs: Sequence[tuple[str, str]]) -> list[Path]:
    if not pairs:
        raise RequestError(f"{lake.place.home} has no evaluations; run `flywheel eval` first.")
    check_free(path)
    if path.suffix not in _SUFFIXES:
        return [path / f"{safe_name(policy)}-{safe_name(suite)}-{digest([policy, suite], 8)}.eval" for policy, suite in pairs]
    if len(pairs) > 1:
        raise RequestError(f"{lake.place.home} has {len(pairs)} evaluations, but {path} is one file; choose a folder.")
    return [path]


def _log(module: ModuleType, lake: Lake, policy: str, suite: str) -> Any:
    runs = lake.trajectories("stage = 'eval' AND policy = ? AND suite = ?", [policy, suite])
    tasks = {task.key: task for task in lake.read(Task, "key IN (SELECT unnest(?))", [[run.task_key for run in runs]])}
    scores = _latest(lake, runs)
    epochs: Counter[str] = Counter()
    samples = []
    for run in sorted(runs, key=lambda run: (run.task_key, run.sample, run.id)):
        epochs[run.task_key] += 1
        task = tasks.get(run.task_key) or Task(run.task_key, "", run.task_key, ())
        samples.append(_sample(module, task, run, epochs[run.task_key], scores.get(run.id, [])))
    times = [run.started for run in runs if run.started is not None]
    created = min(times, default=datetime.fromtimestamp(0, UTC)).isoformat(timespec="seconds")
    identity = digest([policy, suite, sorted(run.id for run in runs)])
    spec = module.EvalSpec(
        eval_id=identity, run_id=identity, task_id=digest(suite), created=created, task=suite, model=policy, config=module.EvalConfig(),
        dataset=module.EvalDataset(name=suite, samples=len(epochs), sample_ids=sorted(epochs)),
    )  # fmt: skip
    results = _results(module, runs, scores)
    return module.EvalLog(status="success", eval=spec, results=results, stats=module.EvalStats(started_at=created), samples=samples)


def _latest(lake: Lake, runs: Sequence[Trajectory]) -> dict[str, list[Score]]:
    sql = """SELECT trajectory_id, verifier, version FROM scores WHERE trajectory_id IN (SELECT unnest(?))
        QUALIFY row_number() OVER (PARTITION BY trajectory_id, verifier ORDER BY recorded DESC, rowid) = 1"""
    latest = {tuple(row.values()) for row in lake.query(sql, [[run.id for run in runs]]).to_pylist()}
    found: dict[str, list[Score]] = {}
    for score in lake.scores("trajectory_id IN (SELECT unnest(?))", [[run.id for run in runs]]):
        if (score.trajectory_id, score.verifier, score.version) in latest:
            found.setdefault(score.trajectory_id, []).append(score)
    return found


def _results(module: ModuleType, runs: Sequence[Trajectory], scores: dict[str, list[Score]]) -> Any:
    by_verifier: dict[str, list[Score]] = {}
    for score in (one for found in scores.values() for one in found):
        by_verifier.setdefault(score.verifier, []).append(score)
    completed = sum(run.outcome is not Outcome.INVALID for run in runs)
    figures = [_figures(module, name, found) for name, found in sorted(by_verifier.items())]
    return module.EvalResults(total_samples=len(runs), completed_samples=completed, scores=figures)


def _figures(module: ModuleType, verifier: str, scores: list[Score]) -> Any:
    valid = [score for score in scores if score.verdict is not Outcome.INVALID]
    rate = sum(score.verdict is Outcome.SUCCESS for score in valid) / len(valid) if valid else None
    metrics = {} if rate is None else {"accuracy": module.EvalMetric(name="accuracy", value=rate)}
    unscored = len(scores) - len(valid)
    return module.EvalScore(name=verifier, scorer=verifier, scored_samples=len(valid), unscored_samples=unscored, metrics=metrics)


def _sample(module: ModuleType, task: Task, run: Trajectory, epoch: int, scores: list[Score]) -> Any:
    from inspect_ai.model import ModelOutput

    error = run.error or "invalid" if run.outcome is Outcome.INVALID else None
    about = {"trajectory": run.id, "hops": task.hops, "stop_reason": run.stop_reason, "horizon": run.horizon, "seed": run.seed}
    return module.EvalSample(
        id=task.key, epoch=epoch, input=task.question, target=list(task.answers), messages=_messages(task, run), uuid=run.id,
        output=ModelOutput.from_content(run.policy, run.answer or ""), scores={one.verifier: _score(one, run) for one in scores} or None,
        metadata=about | {"provenance": task.provenance}, total_time=run.seconds,
        started_at=None if run.started is None else run.started.isoformat(),
        error=None if error is None else _error(error),
    )  # fmt: skip


def _error(message: str) -> dict[str, str]:
    return {"message": message, "traceback": "", "traceback_ansi": ""}


def _score(score: Score, run: Trajectory) -> Any:
    from inspect_ai.scorer import Score as InspectScore

    about = {"version": score.version, "verdict": score.verdict}
    if score.value is None or score.verdict is Outcome.INVALID:
        return InspectScore.unscored(reason=score.error or "invalid", answer=run.answer, metadata=about)
    return InspectScore(value=score.value, answer=run.answer, metadata=about)


def _messages(task: Task, run: Trajectory) -> list[Any]:
    from inspect_ai.model import ChatMessageUser

    messages: list[Any] = [ChatMessageUser(id=f"{run.id}-question", content=task.question, source="input")]
    for turn in run.turns:
        messages += _turn_messages(f"{run.id}-{turn.index}", turn, run.policy)
    return messages


def _turn_messages(name: str, turn: Turn, policy: str) -> list[Any]:
    """An action and the results of its calls, or the environment's observation if it made no call."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
    from inspect_ai.tool import ToolCall

    calls = {f"{name}-{number}": call for number, call in enumerate(turn.calls) if call.tool != ANSWER}
    requested = [ToolCall(id=key, function=call.tool, arguments=_arguments(call)) for key, call in calls.items()]
    action = ChatMessageAssistant(id=name, content=turn.action, tool_calls=requested or None, source="generate", model=policy)
    if calls or not turn.observation:
        return [action, *(_result(key, call) for key, call in calls.items() if call.outcome is not None)]
    return [action, ChatMessageUser(id=f"{name}-observation", content=turn.observation)]


def _result(key: str, call: Call) -> Any:
    from inspect_ai.model import ChatMessageTool
    from inspect_ai.tool import ToolCallError

    error = None if call.outcome == "ok" else ToolCallError("timeout" if call.outcome == "timeout" else "unknown", str(call.outcome))
    return ChatMessageTool(id=f"{key}-result", content=call.observation, tool_call_id=key, function=call.tool, error=error)


def _arguments(call: Call) -> dict[str, Any]:
    """Arguments as an object; plain text becomes `input`."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"input": call.arguments}
