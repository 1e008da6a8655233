"""The loop over a real dialect and a real environment; the actions are written beforehand instead of sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from eval.graders.verifiers import VERIFIERS
from rl.advantages import grpo
from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from rl.envs.base import Environment, EnvironmentFault, Observation, Step, ToolOutcome
from rl.envs.search import SearchEnvironment
from rl.envs.tool_use import ToolEnvironment
from rl.learner.batches import rows_of
from rl.renderers.base import Action, ActionTurn, Dialect, ParseError, Schema
from rl.renderers.tags import TagDialect
from rl.retrieval.search import SearchIndex
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from rl.rollouts.config import Limits, RolloutConfig
from rl.rollouts.context import NOTE, SUMMARY, Past, shortened, summarized
from rl.rollouts.rollout import AgentLoops
from rl.tools import tool
from tests.rl.conftest import DOCUMENTS, TASKS
from warehouse.errors import RequestError
from warehouse.records import NOT_RUN, Call, Outcome, StopReason, Task, Trajectory

LIMITS = Limits(max_action_tokens=16, max_observation_tokens=48, max_context_tokens=200)


class WrittenActions:
    """Gives written actions one after the other, and keeps what it was asked."""

    def __init__(self, actions: Sequence[tuple[int, ...]]) -> None:
        self._actions = iter(actions)
        self.contexts: list[list[int]] = []
        self.samplings: list[Sampling] = []

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.contexts.append(list(prompt_ids))
        self.samplings.append(sampling)
        ids = next(self._actions, None)
        if ids is None:
            raise EngineFault("nothing more is written")
        stop = GenerationStop.STOP if len(ids) <= sampling.max_tokens else GenerationStop.LENGTH
        ids = ids[: sampling.max_tokens]
        return Generation(ids, (-0.5,) * len(ids), stop, (7,) * len(ids))


@pytest.fixture(scope="module")
def dialect(tiny_policy: Path) -> TagDialect:
    return TagDialect(AutoTokenizer.from_pretrained(tiny_policy))


REQUEST = RolloutRequest("t", TASKS[0], "policy", 4, seed=3, step=5, sample=2)


def written(dialect: Dialect, action: Action, think: str | None = None) -> tuple[int, ...]:
    """The ids of one call, behind a thought if there is one."""
    return dialect.action_ids(ActionTurn((action,), think))


def run(
    dialect: TagDialect, actions: Sequence[Action | tuple[int, ...]], horizon: int = 4, limits: Limits = LIMITS
) -> tuple[Trajectory, WrittenActions]:
    engine = WrittenActions([written(dialect, action) if isinstance(action, Action) else action for action in actions])
    request = replace(REQUEST, horizon=horizon)
    environment = SearchEnvironment(SearchIndex(DOCUMENTS))
    return asyncio.run(AgentLoop(engine, dialect, limits).run(request, environment)), engine


def test_tokens_are_only_appended(dialect: TagDialect) -> None:
    actions = [Action("search", "Amber Stone"), Action("search", "Blue River"), Action("answer", "Green Lake")]
    trajectory, engine = run(dialect, actions)
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWERED, "Green Lake")
    assert (trajectory.outcome, trajectory.reward, trajectory.step, trajectory.sample) == (None, None, 5, 2)
    context = list(trajectory.prompt_ids)
    for turn, seen in zip(trajectory.turns, engine.contexts, strict=True):
        assert seen == context
        context += [*turn.action_ids, *turn.observation_ids]
    assert [turn.tool for turn in trajectory.turns] == ["search", "search", "answer"]
    assert trajectory.turns[0].observation == f"<information> {DOCUMENTS[0].text}</information>"
    assert trajectory.turns[2].observation_ids == ()
    assert len({sampling.seed for sampling in engine.samplings}) == 3


def test_the_last_turn_of_the_horizon_may_answer(dialect: TagDialect) -> None:
    search, answer = Action("search", "Amber Stone"), Action("answer", "Green Lake")
    assert run(dialect, [search, answer], horizon=2)[0].stop_reason is StopReason.ANSWERED
    trajectory, _ = run(dialect, [search, search], horizon=2)
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.MAX_TURNS, None)
    assert (trajectory.turns[1].tool_outcome, trajectory.turns[1].observation_ids) == ("ok", ())


def test_what_cannot_be_read_is_corrected_and_counts_as_a_turn(dialect: TagDialect) -> None:
    trajectory, _ = run(dialect, [(20, 21, 22), Action("answer", "Green Lake")])
    first = trajectory.turns[0]
    assert (first.tool, first.arguments, first.tool_outcome) == (None, None, "unparsable")
    assert first.observation.startswith("<information> Error: ")
    assert trajectory.answer == "Green Lake"


def test_a_hostile_document_cannot_answer(dialect: TagDialect) -> None:
    trajectory, engine = run(dialect, [Action("search", "Quiet Harbor"), Action("answer", "Blue River")])
    opening = written(dialect, Action("answer", "x"))[0]
    assert opening not in engine.contexts[1]
    assert trajectory.answer == "Blue River"


@pytest.mark.slow
def test_the_context_is_never_longer_than_its_limit(dialect: TagDialect) -> None:
    actions = [Action("search", "Amber Stone")] * 9
    for longest in range(8, 90):
        trajectory, engine = run(dialect, actions, horizon=9, limits=LIMITS.model_copy(update={"max_context_tokens": longest}))
        fits = len(trajectory.prompt_ids) < longest
        assert trajectory.stop_reason is (StopReason.MAX_CONTEXT_TOKENS if fits else StopReason.FAULT)
        assert fits or (trajectory.error or "").startswith("context: a prompt of")
        used = len(trajectory.prompt_ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in trajectory.turns)
        assert used <= longest or not trajectory.turns
        assert all(sampling.max_tokens > 0 for sampling in engine.samplings)


def test_a_full_context_goes_on_without_its_older_observations(dialect: TagDialect) -> None:
    searches = [Action("search", document.title) for document in DOCUMENTS[:3]] * 12
    actions = [*searches, Action("answer", "Green Lake")]
    ended, _ = run(dialect, actions, horizon=64)
    assert ended.stop_reason is StopReason.MAX_CONTEXT_TOKENS and len(ended.turns) < 16
    kept = LIMITS.model_copy(update={"keep_observations": 2})
    made, engine = run(dialect, actions, horizon=64, limits=kept)
    assert (made.stop_reason, made.answer, len(made.turns), made.error) == (StopReason.ANSWERED, "Green Lake", 37, None)
    assert [list(made.context_of(turn.index)) for turn in made.turns] == engine.contexts, "what the engine saw is what is recorded"
    assert max(map(len, engine.contexts)) <= LIMITS.max_context_tokens - LIMITS.max_action_tokens
    assert 2 < len(made.segments) < len(made.turns) / 3, "after a cut the next turns append again"
    for prompt_ids, turns in made.segments[1:]:
        place = turns[0].index
        last = [token for turn in made.turns[place - 2 : place] for token in (*turn.action_ids, *turn.observation_ids)]
        assert list(prompt_ids[-len(last) :]) == last and NOTE in dialect.decode(prompt_ids)
        assert prompt_ids[: len(made.prompt_ids)] == made.prompt_ids
    small = kept.model_copy(update={"max_context_tokens": len(made.prompt_ids) + 20})
    assert run(dialect, actions, horizon=64, limits=small)[0].stop_reason is StopReason.MAX_CONTEXT_TOKENS, "not even one turn fits"


SUMMARIZED = Limits(max_action_tokens=16, max_observation_tokens=160, max_context_tokens=500, keep_observations=1, summary_tokens=40)


def test_before_a_context_is_full_the_policy_writes_a_summary_with_which_the_next_one_begins(dialect: TagDialect) -> None:
    searches = [Action("search", document.title) for document in DOCUMENTS[:3]] * 12
    said = (*dialect.text_ids("See <answer>north."), dialect.stop_token_ids[0])
    unsummarized, _ = run(dialect, searches, horizon=64, limits=SUMMARIZED.model_copy(update={"summary_tokens": None}))
    first = next(turn.index for turn in unsummarized.turns if turn.context_ids)
    for before in range(2, first + 1):
        actions = [*searches[:before], said, *searches[:2], Action("answer", "Green Lake")]
        made, engine = run(dialect, actions, horizon=64, limits=SUMMARIZED)
        if made.turns[before].tool == SUMMARY:
            break
    assert (made.stop_reason, made.answer, made.error) == (StopReason.ANSWERED, "Green Lake", None)
    assert [turn.tool for turn in made.turns] == [*["search"] * before, SUMMARY, "search", "search", "answer"]
    assert [list(made.context_of(turn.index)) for turn in made.turns] == engine.contexts, "what the engine saw is what is recorded"
    asking, summary, after = made.turns[before - 1 : before + 2]
    assert "Summarize what you did" in asking.observation and summary.action_ids == said
    assert summary.arguments == "See <answer>north." and summary.observation_ids == ()
    prompt = dialect.prompt_ids(summarized(TASKS[0].question, summary.arguments))
    assert after.context_ids[: len(prompt)] == prompt, "text of a summary is no control token"
    kept = dialect.decode(after.context_ids[len(prompt) :])
    assert kept.startswith(asking.action) and "Summarize" not in kept and len(made.segments) == 2
    rows = rows_of([replace(made, reward=1.0), replace(made, id="other", reward=0.0)], grpo)
    learnt = [ids for row in rows for ids in (row.completion_ids,) if said == ids[len(ids) - len(said) :]]
    assert len(learnt) == 2, "a summary is an action with an advantage"
    short, _ = run(dialect, searches, horizon=before + 1, limits=SUMMARIZED)
    assert SUMMARY not in {turn.tool for turn in short.turns}, "none is asked for that nothing could follow"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"keep_observations": None}, "keep_observations"),
        ({"max_context_tokens": 400}, "raise it"),
        ({"max_observation_tokens": 63}, "at least 64"),
    ],
)
def test_summaries_that_have_no_place_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Limits(**{**SUMMARIZED.model_dump(), **given})


PAST = [Past((1,) * 4, (2,) * 10, (3,) * 2)] * 5


@pytest.mark.parametrize(
    ("keep", "most", "observed", "noted"),
    [(2, 104, 2, 3), (2, 100, 2, 2), (2, 60, 2, 0), (5, 200, 5, 0), (1, 52, 1, 1), (2, 30, 1, 0), (2, 20, 1, 0), (2, 10, None, 0)],
)
def test_notes_then_turns_then_kept_observations_make_room(keep: int, most: int, observed: int | None, noted: int) -> None:
    ids = shortened((0,) * 6, PAST, keep, most)
    assert (None if ids is None else ids.count(2) // 10) == observed
    assert ids is None or (ids.count(3) // 2 == noted and ids.count(1) == 4 * (noted + (observed or 0)) and len(ids) <= most)


HUNG_SECONDS = 500.0
"""Longer than anything that is waited for here."""


def _schema(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "Works.", "parameters": parameters}}


class Workshop:
    """An environment whose calls do what their arguments say; it is over after `end`, and then takes no more calls."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.asked: list[str] = []
        self._over = False

    async def reset(self, task: Task, seed: int) -> Observation:
        if task.question == "hang":
            await asyncio.sleep(HUNG_SECONDS)
        seen = {"look": "A bench.", "misspell": "A \ud83d bench."}.get(task.question, "")
        return Observation(seen, tuple(_schema(name) for name in ("search", "code")))

    async def step(self, action: Action) -> Step:
        self.asked.append(action.arguments)
        if self._over:
            raise EnvironmentFault("the environment is over")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self._work(action)
        finally:
            self.running -= 1

    async def _work(self, action: Action) -> Step:
        if action.tool == "answer" or action.arguments == "end":
            self._over = True
            return Step("over", reward=1.0, done=True)
        await asyncio.sleep(HUNG_SECONDS if action.arguments == "hang" else 0.01)
        if action.arguments == "break":
            raise EnvironmentFault("the tool broke")
        if action.arguments == "misspell":
            return Step("did \ud83d" * 50, tool_outcome=ToolOutcome.OK)
        if action.arguments == "long":
            return Step("Amber Stone " * 50, tool_outcome=ToolOutcome.OK)
        info = {"figures": {"rows": 3}}
        return Step(f"did {action.arguments}", 0.25, tool_outcome=ToolOutcome.OK, info=info, retries=1, latency_seconds=0.5)


class Several:
    """The dialect of tags, but an action may hold several calls one after the other."""

    def __init__(self, dialect: TagDialect) -> None:
        self._one = dialect
        self.stop_token_ids = dialect.stop_token_ids
        self.prompt_ids, self.reply_ids, self.decode = dialect.prompt_ids, dialect.reply_ids, dialect.decode

    def parse(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        calls: list[Action] = []
        rest = list(action_ids)
        while rest:
            end = next((number for number, token in enumerate(rest) if token in self.stop_token_ids), len(rest) - 1)
            turn = self._one.parse(rest[: end + 1], tools)
            if isinstance(turn, ParseError):
                return turn
            calls += turn.calls
            rest = rest[end + 1 :]
        return ActionTurn(tuple(calls)) if calls else ParseError("nothing")


WIDE = Limits(max_action_tokens=100, max_observation_tokens=48, max_context_tokens=1000)


def work(
    dialect: TagDialect, turns: Sequence[Sequence[Action]], limits: Limits = WIDE, question: str = "?", horizon: int = 9, **provenance: Any
) -> tuple[Trajectory, Workshop]:
    """A trajectory of written turns, each of several calls."""
    engine = WrittenActions([tuple(i for call in calls for i in written(dialect, call)) for calls in turns])
    task, workshop = Task("k", "workshop", question, ("x",), provenance=provenance), Workshop()
    request = RolloutRequest("t", task, "policy", horizon, seed=3)
    return asyncio.run(AgentLoop(engine, Several(dialect), limits).run(request, workshop)), workshop


def search(*arguments: str) -> list[Action]:
    return [Action("search", text) for text in arguments]


ANSWER = Action("answer", "x")


def test_all_calls_of_a_turn_run_at_once_and_are_recorded_in_their_order(dialect: TagDialect) -> None:
    trajectory, workshop = work(dialect, [search("a", "b", "c"), [ANSWER]])
    assert workshop.most == 3
    first = trajectory.turns[0]
    assert first.calls == tuple(Call("search", text, "ok", f"did {text}", 0.5, 1, 0.25, {"rows": 3}) for text in "abc")
    assert (first.tool, first.arguments, first.tool_outcome, first.reward) == ("search", "a", "ok", 0.75)
    assert first.observation == "".join(f"<information> did {text}</information>" for text in "abc")
    assert trajectory.turns[1].calls[0] == replace(trajectory.turns[1].calls[0], tool="answer", arguments="x", outcome=None, reward=1.0)


def test_a_fault_is_invalid_and_keeps_what_there_was(dialect: TagDialect) -> None:
    """Of the engine, and of a tool beside another call of its turn."""
    trajectory, _ = run(dialect, [Action("search", "Amber Stone")])
    assert (trajectory.stop_reason, trajectory.outcome, trajectory.reward) == (StopReason.FAULT, Outcome.INVALID, None)
    assert (trajectory.error, len(trajectory.turns)) == ("nothing more is written", 1)
    trajectory, workshop = work(dialect, [search("a", "break"), [ANSWER]])
    assert (trajectory.stop_reason, trajectory.outcome) == (StopReason.FAULT, Outcome.INVALID)
    assert "the tool broke" in (trajectory.error or "") and workshop.asked == ["a", "break"]
    fine, broken = trajectory.turns[0].calls
    assert (fine.outcome, fine.observation, broken.outcome) == ("ok", "did a", "fault")


def test_an_answer_comes_after_the_other_calls_of_its_turn(dialect: TagDialect) -> None:
    trajectory, workshop = work(dialect, [[ANSWER, *search("a"), Action("answer", "y")]])
    assert workshop.asked == ["a", "x"]
    assert [call.outcome for call in trajectory.turns[0].calls] == [None, "ok", NOT_RUN]
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWERED, "x")
    trajectory, _ = work(dialect, [[*search("a"), ANSWER]])
    assert (trajectory.turns[0].tool, trajectory.answer) == ("search", "x")


def test_a_trajectory_that_takes_too_long_is_stopped_with_what_there_was(dialect: TagDialect) -> None:
    limits = WIDE.model_copy(update={"max_seconds": 0.5})
    trajectory, workshop = work(dialect, [search("a"), search("b", "hang"), [ANSWER]], limits)
    assert (trajectory.stop_reason, trajectory.outcome, trajectory.error) == (StopReason.MAX_SECONDS, None, None)
    assert [[call.outcome for call in turn.calls] for turn in trajectory.turns] == [["ok"], ["ok", None]]
    assert trajectory.turns[1].action_ids and workshop.running == 0
    assert trajectory.seconds is not None and trajectory.seconds < HUNG_SECONDS
    short = WIDE.model_copy(update={"max_seconds": 0.1})
    assert work(dialect, [], short, question="hang")[0].stop_reason is StopReason.MAX_SECONDS


@pytest.mark.slow
def test_actions_together_have_a_budget(dialect: TagDialect) -> None:
    one = len(written(dialect, search("a")[0]))
    for budget in range(1, 4 * one):
        trajectory, _ = work(dialect, [search("a")] * 9, WIDE.model_copy(update={"max_total_action_tokens": budget}))
        assert trajectory.stop_reason is StopReason.MAX_TOTAL_ACTION_TOKENS
        assert sum(len(turn.action_ids) for turn in trajectory.turns) == budget


def test_a_task_may_leave_tools_out(dialect: TagDialect) -> None:
    trajectory, workshop = work(dialect, [[*search("a"), Action("code", "1 + 1")], [ANSWER]], rollout={"tools": ["code"]})
    assert workshop.asked == ["1 + 1", "x"]
    assert trajectory.turns[0].calls[0].observation == "Error: there is no tool search, only code"
    trajectory, _ = work(dialect, [[ANSWER]], rollout={"tools": ["code", "browse"]})
    assert (trajectory.stop_reason, trajectory.outcome) == (StopReason.FAULT, Outcome.INVALID)
    assert trajectory.error == "the task may call code, browse, but its environment 'workshop' has only search, code"
    with pytest.raises(RequestError, match=r"task 'k' is invalid at rollout\.tool"):
        work(dialect, [[ANSWER]], rollout={"tool": ["code"]})


def test_lone_surrogates_are_shown_as_question_marks(dialect: TagDialect) -> None:
    trajectory, _ = work(dialect, [search("misspell"), [ANSWER]], question="misspell")
    assert dialect.decode(trajectory.prompt_ids).endswith("<information> A ? bench.</information>")
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.turns[0].observation.startswith("<information> did ?did ?")


@pytest.mark.slow
def test_every_trajectory_ends_in_one_of_three_outcomes(dialect: TagDialect) -> None:
    @tool
    def lying(query: str) -> str:
        """Says that it takes a text, and then takes none."""
        raise TypeError("query must be a list of numbers")

    kinds = ("a", "hang", "break", "lie", "nonsense", "long")

    def environment(number: int) -> Environment:
        return ToolEnvironment({"search": lying}) if kinds[number % 6] == "lie" else Workshop()

    async def one(number: int) -> Trajectory:
        kind = kinds[number % 6]
        acts = [written(dialect, search(kind)[0]) if kind != "nonsense" else (20, 21)] * 2
        if number % 5:  # the engine dies before every fifth answer
            acts.append(written(dialect, Action("answer", "x" if number % 2 else "y")))
        seconds = 1.0 if kind == "hang" else 600.0  # the others end by themselves, on a busy machine too
        request = RolloutRequest(str(number), Task(f"k{number}", "workshop", "?", ("x",)), "policy", 4, seed=number)
        loop = AgentLoop(WrittenActions(acts), dialect, WIDE.model_copy(update={"max_seconds": seconds}))
        return await loop.run(request, environment(number))

    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*(one(number) for number in range(60)))

    for number, trajectory in enumerate(asyncio.run(all_of_them())):
        verdict = VERIFIERS["qa_em"].verify(Task(trajectory.task_key, "workshop", "?", ("x",)), trajectory).verdict
        kind = kinds[number % 6]
        if kind in ("break", "lie") or (number % 5 == 0 and kind != "hang"):
            assert verdict is Outcome.INVALID, number
        else:
            assert verdict is (Outcome.SUCCESS if kind != "hang" and number % 2 else Outcome.FAILURE), number
        assert (trajectory.stop_reason is StopReason.FAULT) == (verdict is Outcome.INVALID) == (trajectory.error is not None)


def test_loops_and_dialects_are_found_by_name(tiny_policy: Path) -> None:
    loops = AgentLoops(RolloutConfig(loops={"mine": "rl.rollouts.agent_loop:AgentLoop"}), AutoTokenizer.from_pretrained(tiny_policy))
    engine = WrittenActions([])
    plain = loops.loop_for(TASKS[0], engine)
    assert isinstance(plain, AgentLoop)
    assert isinstance(plain.dialect, TagDialect)
    assert loops.loop_for(TASKS[1], engine) is plain
    named = replace(TASKS[0], provenance={"rollout": {"loop": "mine", "dialect": "tags"}})
    assert loops.loop_for(named, engine) is not plain
    for choice, message in (
        ({"loop": "chess"}, "no agent loop 'chess'"),
        ({"loop": "json:loads"}, "code that the configuration does not list"),
        ({"dialect": "chess"}, "no dialect 'chess'"),
        ({"dialect": "chat"}, "no chat template"),
    ):
        with pytest.raises(RequestError, match=message):
            loops.check([replace(TASKS[0], provenance={"rollout": choice})])
