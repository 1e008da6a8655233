"""The Expander: its loop over a real HTTP server that plays the agent, and layers that are completed or left as they were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rl.retrieval.search import SearchIndex
from rl.tools import ToolError
from synth.corpora.config import ExpanderConfig
from synth.corpora.expander import INVALID, SYSTEM, ExpanderEnvironment, Expansion, expand
from synth.corpora.grounding import GroundingDefect
from synth.corpora.outlines import ProposalDefect
from synth.corpora.proposals import KnownFacts
from synth.corpora.statements import SYSTEM as READING
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.teachers.config import TeacherConfig
from synth.teachers.model_teacher import open_teacher
from synth.teachers.readers import Readers
from synth.teachers.teacher import Fault, Reply, failed
from tests.synth.corpora.harbour import COUNTY, DOCUMENTS, FACT, FACTS, SEAT, STAR, STUDIED, TASK, TWO
from tests.synth.scripted import LABELLED, ScriptedTeacher, asked_first, calling, verdict
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Outcome, Task
from warehouse.records import Document, Fact, Request

INCOMPLETE = ProposalDefect.LAYER_INCOMPLETE
LAST = ExpanderConfig(attempts=1)
"""No second run for a constant."""
PUPIL = ([STUDIED], "the one who studied at Fern Hall")


class Agent:
    """What the server says: the facts `read` in pages, the steps of an agent that collects facts, words for them, and judgements.

    `replies` are the lists of facts of its runs in their order, or by the name that they are about; `words` those of a description.
    """

    def __init__(
        self,
        *replies: Any,
        words: str = "the workplace of Amber Stone",
        kind: str = "yes",
        guess: str = "Red Hill",
        stated: str = "yes",
        by_name: dict[str, tuple[Any, str]] | None = None,
        read: Sequence[Any] = (),
    ) -> None:
        self.replies, self.words, self.by_name = list(replies), words, by_name or {}
        self.kind, self.guess, self.stated, self.read = kind, guess, stated, read
        self.seen: list[str] = []

    def __call__(self, body: dict[str, Any]) -> str:
        messages = [message["content"] for message in body["messages"]]
        if messages[-1] in LABELLED:
            return LABELLED[messages[-1]]
        if messages[0] == READING:
            return json.dumps([fact for fact in self.read if fact["quote"] in messages[-1]])
        self.seen.append(messages[-1])
        if messages[0] != SYSTEM:
            return self._judge(asked_first(messages))
        spoken = sum(message["role"] == "assistant" for message in body["messages"])
        steps = (
            calling("search", "Who works there?\n", query="works for Blue River"),
            calling("summarize", documents=["d1", "d3"], goal="who"),
        )
        return steps[spoken] if spoken < len(steps) else json.dumps(self._facts(messages[1]))

    def _facts(self, goal: str) -> Any:
        name = goal.removeprefix("Name: ").splitlines()[0]
        return self.by_name[name][0] if name in self.by_name else self.replies[0] if len(self.replies) == 1 else self.replies.pop(0)

    def _judge(self, question: str) -> str:
        if "Write a noun phrase" in question:
            named = question.partition("The phrase names ")[2]
            words = (
                words for facts, words in self.by_name.values() if any(end in named for end in (facts[0]["subject"], facts[0]["object"]))
            )
            return json.dumps({"description": next(words, self.words)})
        if "kind of thing" in question:
            return verdict(self.kind)
        if "Does the passage state the claim?" in question:
            return verdict(self.stated)
        return self.guess if question.startswith("What is meant by") else "Amber Stone works for Blue River [d1]."


def run(
    agent: Agent,
    task: Task = TASK,
    script: list[str] | None = None,
    config: ExpanderConfig = LAST,
    known: KnownFacts | None = None,
    **options: Any,
) -> Expansion:
    with MisbehavingServer(script or [], agent) as server:
        asked = TeacherConfig(kind="openai", model="agent", base_url=server.url, first_pause_seconds=0.01, **options)
        with open_teacher(asked) as teacher:
            return expand([task], teacher, Readers(teacher), SearchIndex(DOCUMENTS), config, 0, concurrency=4, known=known)


@pytest.mark.slow
def test_a_constant_gives_way_to_what_was_found() -> None:
    result = run(Agent([FACT]))
    assert result.failures == []
    (task,) = result.tasks
    assert task.question == "base of the workplace of Amber Stone?"
    assert task.answers == TASK.answers
    assert task.formula == (("V@x0", "seat", "?"), ("C@Amber Stone", "employer", "V@x0"))
    assert (task.hops, task.constraints, task.layers) == (2, 1, 2)
    assert task.proofs["unproven"] == ["answers", "redundant", "unsupported", "defined"]
    assert (task.proofs["type_consistent"], task.proofs["too_simple"], task.proofs["stated"]) == (True, False, True)
    assert (task.provenance["expanded_from"], task.provenance["expanded_by"]) == ("k", "layerwise")


@pytest.mark.slow
def test_what_a_search_finds_is_read_before_a_run() -> None:
    result = run(Agent(read=[FACT]))
    assert [task.question for task in result.tasks] == ["base of the workplace of Amber Stone?"]
    assert result.failures == [] and result.trajectories == []


@pytest.mark.slow
def test_all_constants_of_a_layer_give_way_and_no_shortcut_is_left() -> None:
    agent = Agent(by_name={"Amber Stone": PUPIL, "Green Lake": ([SEAT], "the town of Harbour Inn")})
    result = run(agent, TWO)
    assert result.failures == []
    (task,) = result.tasks
    assert task.question == "film with the one who studied at Fern Hall, shot in the town of Harbour Inn?"
    grown = {("V@x0", "school", "C@Fern Hall"), ("C@Harbour Inn", "town", "V@x1")}
    assert set(task.formula) == {("?", "star", "V@x0"), ("?", "place", "V@x1")} | grown
    assert task.proofs["shortcuts"] == [] and task.layers == 2 and len(result.trajectories) == 2
    assert [step["constant"] for step in task.provenance["expansions"]] == ["Amber Stone", "Green Lake"]


def test_a_layer_that_cannot_be_completed_leaves_the_question_as_it_was() -> None:
    agent = Agent(by_name={"Amber Stone": PUPIL, "Green Lake": ([STAR], "")})
    result = run(agent, TWO)
    assert result.tasks == []
    assert [failure.kind for failure in result.failures] == [ProposalDefect.NOT_ABOUT_CONSTANT, INCOMPLETE]
    assert result.failures[-1].item["described"] == ["Amber Stone"] and result.failures[-1].item["constant"] == "Green Lake"
    assert [trajectory.outcome for trajectory in result.trajectories] == [Outcome.SUCCESS, Outcome.FAILURE]


async def test_what_is_summarised_is_bounded_and_a_refusal_is_told_to_the_agent() -> None:
    documents = [Document(f"d{number}", f"Page {number}", "word " * 20_000, "s") for number in range(6)]
    with ThreadPoolExecutor(1) as threads:
        reader = ScriptedTeacher(lambda question: "read")
        environment = ExpanderEnvironment(SearchIndex(documents), reader, 3, threads)
        assert await environment.summarize(["d0", "d1"], "who") == "read"
        assert len(reader.asked[0]) < 25_000 and all(f"[d{number}] Page {number}" in reader.asked[0] for number in (0, 1))
        with pytest.raises(ToolError, match="at most 5 documents, not 6"):
            await environment.summarize([document.id for document in documents], "who")
        with pytest.raises(ToolError, match="cannot be read together: too long"):
            await ExpanderEnvironment(SearchIndex(documents), Refusing(), 3, threads).summarize(["d0"], "who")


class Refusing:
    """A teacher to whom everything is too long."""

    name = "refusing"

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        return [failed(Fault.REFUSED, "too long", self.name, request) for request in requests]


def test_the_run_is_a_trajectory_of_text_that_begins_with_a_search_for_the_name() -> None:
    agent = Agent([FACT])
    (trajectory,) = run(agent).trajectories
    assert [turn.tool for turn in trajectory.turns] == ["search", "summarize", "answer"]
    assert [turn.tool_outcome for turn in trajectory.turns] == ["ok", "ok", None]
    assert trajectory.outcome is Outcome.SUCCESS
    assert trajectory.turns[0].observation.startswith("[d1] Amber Stone\nAmber Stone works for Blue River")
    assert not any(turn.action_ids or turn.action_logprobs or turn.observation_ids for turn in trajectory.turns)
    assert any("Goal: who" in text and "[d1]" in text for text in agent.seen)
    read_again = f"Passage:\nAmber Stone\n{DOCUMENTS[0].text}\n\nClaim: Amber Stone — employer"
    assert any(text.startswith(read_again) for text in agent.seen), "a second reader sees the whole passage, and nothing of the question"
    shown = next(text for text in agent.seen if text.startswith("Name: Blue River"))
    assert "[d2] Blue River\nBlue River is based in Green Lake" in shown and "No fact may be about: Green Lake" in shown


def test_facts_of_which_none_is_left_return_to_their_writer_and_others_are_dropped() -> None:
    lost = {**FACT, "quote": "as everybody knows"}
    result = run(Agent([lost], [COUNTY], [lost, FACT]))
    (task,), (trajectory,) = result.tasks, result.trajectories
    assert task.question == "base of the workplace of Amber Stone?" and trajectory.outcome is Outcome.SUCCESS
    told = [turn.observation for turn in trajectory.turns if turn.tool == "answer"]
    assert "the quote is not in the passage" in told[0] and "fits these facts as well" in told[1] and told[2] == ""
    assert [failure.kind for failure in result.failures] == [GroundingDefect.QUOTE_NOT_FOUND]


def test_words_that_give_a_name_away_return_to_their_writer() -> None:
    agent = Agent([FACT], words="the Blue River of Amber Stone")
    result = run(agent)
    assert [failure.kind for failure in result.failures] == [ProposalDefect.LEAKED] * 3 + [INCOMPLETE]
    assert any("it must not name 'Blue River'" in text for text in agent.seen)
    assert not any("Blue River" in text.partition("Write a noun phrase")[0] for text in agent.seen if "Write a noun phrase" in text)


def test_layers_follow_one_another() -> None:
    by_name = {"Blue River": ([FACT], "the workplace of Amber Stone"), "Amber Stone": ([STAR], "the star of Quiet Field")}
    result = run(Agent(by_name=by_name), config=ExpanderConfig(layers=2))
    (task,) = result.tasks
    assert task.question == "base of the workplace of the star of Quiet Field?"
    assert task.layers == 3
    assert [step["constant"] for step in task.provenance["expansions"]] == ["Blue River", "Amber Stone"]
    assert task.provenance["expanded_from"] == "k", "the version between is stored nowhere"
    assert len(result.trajectories) == 2


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        (Agent([FACT], kind="no"), ProposalDefect.TYPE_INCONSISTENT),
        (Agent([FACT], guess="It is Blue River!"), ProposalDefect.TOO_SIMPLE),
        (Agent([FACT], stated="no"), ProposalDefect.NOT_STATED),
        (Agent([{f"the_{key}": value for key, value in FACT.items()}]), Fault.MALFORMED),
        (Agent([]), ProposalDefect.NO_PROPOSAL),
    ],
)
def test_what_validation_refuses_is_kept_with_its_reason(agent: Agent, kind: str) -> None:
    result = run(agent)
    assert result.tasks == []
    assert [failure.kind for failure in result.failures] == [kind, INCOMPLETE]
    assert result.failures[0].item["trajectory"] == result.trajectories[0].id and result.failures[0].item["constant"] == "Blue River"


def test_an_open_verdict_is_no_refusal_and_is_marked() -> None:
    (task,) = run(Agent([FACT], kind="hard to say", stated="hm")).tasks
    assert task.proofs["type_consistent"] is task.proofs["stated"] is None
    assert {"type_consistent", "stated"} <= set(task.proofs["unproven"])


def test_a_fault_of_the_teacher_is_invalid_and_no_refusal() -> None:
    result = run(Agent([FACT]), script=["well"] * 3 + ["500"] * 3, attempts=3, config=ExpanderConfig(attempts=2))
    assert [trajectory.outcome for trajectory in result.trajectories] == [Outcome.INVALID]
    assert [failure.kind for failure in result.failures] == [INVALID, INCOMPLETE]
    assert "server_error" in result.failures[0].reason


def test_what_is_known_proves_or_refuses_what_was_made() -> None:
    known = KnownFacts(KnowledgeGraph(FACTS, DOCUMENTS))
    (task,) = run(Agent([FACT]), known=known).tasks
    assert (task.proofs["answers"], task.proofs["defined"], task.proofs["unproven"]) == (["Green Lake"], True, [])
    second = Fact("Amber Stone", "employer", "White Sail", ("d6",), "test")
    refused = run(Agent([FACT]), known=KnownFacts(KnowledgeGraph([*FACTS, second], DOCUMENTS)))
    assert [failure.kind for failure in refused.failures] == [ProposalDefect.NOT_UNIQUE] and refused.tasks == []
    assert refused.failures[0].item["descriptions"] == {"Blue River": "the workplace of Amber Stone"}
