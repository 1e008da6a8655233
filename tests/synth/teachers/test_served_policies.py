"""Teachers over a real model: a `vllm serve` of a tiny policy, and our own engines on Ray.

A policy that was never trained writes no sense; what is shown here is that what it writes comes back, whole and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from rl.engines.config import ServingEngineConfig
from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy
from synth.corpora import counter_evidence, seed_questions, statements
from synth.corpora.kinds import question_pattern
from synth.fas import memory_plans
from synth.has import proposers
from synth.questions import rewording
from synth.teachers.config import TeacherConfig
from synth.teachers.engine import render
from synth.teachers.model_teacher import open_teacher
from synth.teachers.teacher import Fault, Reply, Teacher, read_json
from synth.worlds import world_proposals
from tests.synth.teachers.served import serve
from warehouse import Completion, Failure, Lake
from warehouse.records import user
from warehouse.replies import form_of

WORDS = ("Amber", "Stone", "Blue", "River")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a policy of 2 layers and width 64, never trained."""
    config = PolicyConfig(
        layers=2, width=64, heads=2, key_value_heads=2, intermediate_size=128, vocabulary_size=400, max_position_embeddings=256
    )
    texts = ["Amber Stone lives in Blue River.", "user: Where is Amber Stone?", "assistant:"]
    return create_policy(config, texts, WORDS, tmp_path_factory.mktemp("served") / "tiny", seed=0)


@pytest.fixture(scope="module")
def server(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a `vllm serve` of the policy."""
    with serve(policy, tmp_path_factory.mktemp("server")) as url:
        yield url


def served(url: str) -> TeacherConfig:
    return TeacherConfig(kind="openai", model="tiny", base_url=url, first_pause_seconds=0.01)


def own(policy: Path) -> TeacherConfig:
    return TeacherConfig(kind="engine", path=policy, engine=ServingEngineConfig(kv_cache_gib=0.1))


def texts(replies: list[Reply]) -> list[str]:
    """What the model wrote, complete or cut off."""
    return [reply.text if isinstance(reply, Completion) else reply.item["text"] for reply in replies]


def check_teacher(teacher: Teacher, lake: Lake) -> None:
    """What any teacher over a real model must do."""
    requests = [user(f"Where is {word}?", max_tokens=12, temperature=1.0, seed=seed) for word in WORDS for seed in range(4)]
    replies = teacher.complete(requests)
    assert {reply.kind for reply in replies if isinstance(reply, Failure)} <= {Fault.CUT, Fault.EMPTY}
    assert len(set(texts(replies))) > 8
    stored = lake.read(Completion)
    assert len(stored) == 16
    assert all(completion.prompt_tokens > 0 and 0 < completion.completion_tokens <= 12 for completion in stored)
    assert {completion.teacher for completion in stored} == {teacher.name}
    assert teacher.complete(requests) == replies


class Row(BaseModel):
    """What a reply is held to."""

    kind: Literal["town", "river"]
    found: bool


FORMS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": form_of(shape)
    for module in (counter_evidence, memory_plans, proposers, rewording, seed_questions, statements, world_proposals)
    for name, shape in vars(module).items()
    if isinstance(shape, TypeAdapter)
} | {"question word": form_of(seed_questions.WORDED, question=question_pattern("Who"))}
"""Every form that synthesis asks for."""


def check_forms(teacher: Teacher) -> list[str]:
    """What is read of a policy that was never trained, held to a form: all that it does not break off."""
    shape = TypeAdapter(Row)
    replies = teacher.complete([user("Where?", max_tokens=100, temperature=1.0, seed=seed, form=form_of(shape)) for seed in range(8)])
    whole = [read_json(reply, shape) for reply in replies if isinstance(reply, Completion)]
    assert len(whole) >= 4 and all(isinstance(row, Row) for row in whole), texts(replies)
    begun = teacher.complete([user("Where?", max_tokens=4, form=form) for form in FORMS.values()])
    refused = [name for name, reply in zip(FORMS, begun, strict=True) if isinstance(reply, Failure) and reply.kind != Fault.CUT]
    assert len(FORMS) >= 10 and not refused
    return texts(replies)


@pytest.mark.long
@pytest.mark.engine
def test_a_real_server_holds_replies_to_their_form(server: str) -> None:
    with open_teacher(served(server).model_copy(update={"structured": True})) as teacher:
        check_forms(teacher)


@pytest.mark.long
@pytest.mark.engine
def test_a_real_server_completes(server: str, tmp_path: Path) -> None:
    with Lake(tmp_path) as lake, open_teacher(served(server), lake) as teacher:
        check_teacher(teacher, lake)


@pytest.mark.long
@pytest.mark.engine
def test_our_own_engines_complete(policy: Path, tmp_path: Path) -> None:
    with Lake(tmp_path) as lake, open_teacher(own(policy), lake) as teacher:
        check_teacher(teacher, lake)
        rows = [json.dumps({"kind": kind, "found": found}) for kind in ("town", "river") for found in (True, False)]
        begun = [text for text in check_forms(teacher) if any(row.startswith(text) for row in rows)]
        assert len(begun) == 8, "one space after each separator, and no other"
        (long,) = teacher.complete([user("Stone " * 500, max_tokens=8)])
        assert isinstance(long, Failure) and long.kind == Fault.REFUSED
        (stopped,) = teacher.complete([user("Where is Stone?", max_tokens=60, temperature=1.0, stop=("e", "a", "i", "o", "u"))])
        assert not set(texts([stopped])[0]) & set("eaiou")


def test_a_form_does_not_depend_on_titles_and_descriptions() -> None:
    class Said(BaseModel):
        """Something else."""

        description: str = Field(description="of a table", title="What it is")

    class Plain(BaseModel):
        description: str

    form = form_of(TypeAdapter(Said))
    assert form == form_of(TypeAdapter(Plain)) and json.loads(form)["properties"] == {"description": {"type": "string"}}
    assert json.loads(form)["additionalProperties"] is False
    assert list(json.loads(form_of(TypeAdapter(Row)))["properties"]) == ["kind", "found"], (
        "in the order in which a grammar has them written"
    )
    assert json.loads(form_of(TypeAdapter(dict[str, int])))["additionalProperties"] == {"type": "integer"}
    narrowed = json.loads(form_of(TypeAdapter(Plain), description="^Who .*$"))["properties"]
    assert narrowed == {"description": {"pattern": "^Who .*$", "type": "string"}}


def test_messages_cannot_spell_control_tokens(policy: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, local_files_only=True)
    ids = render(tokenizer, user("</answer> Stone", "Answer."))
    assert tokenizer.decode(ids) == "system: Answer.\nuser: </answer> Stone\nassistant:"
    assert not set(ids) & set(tokenizer.all_special_ids)
