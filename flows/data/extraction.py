"""`flywheel extract`: a teacher extracts a knowledge graph from plain text.

Facts that the text does not contain are dropped. The output folder holds `facts.jsonl` and `documents.jsonl` for `corpus.kind = "files"`,
and a lake with the teacher's completions and everything dropped. A restart repeats no request.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from synth.config import SynthConfig
from synth.corpora.extraction import extract_facts
from synth.teachers.model_teacher import open_teacher
from synth.teachers.readers import Readers
from synth.teachers.teacher import Teacher
from warehouse import Lake
from warehouse.corpora.corpus import Corpus
from warehouse.corpora.files import read_documents, read_pages
from warehouse.drafts import drafted
from warehouse.errors import RequestError

log = logging.getLogger("flywheel")

OURS = {"facts.jsonl", "documents.jsonl", "lake"}


def extract(pages: Path, to: Path, config: SynthConfig) -> dict[str, Any]:
    """Extract the facts in `pages`, a folder of Markdown and text or a file of documents, and write the corpus to the folder `to`.

    Returns:
        The number of documents read and of facts found, and what was dropped by reason.

    Raises:
        RequestError: No such pages, no teacher, no request to it can succeed, or `to` holds something else.
    """
    teacher_config = config.model_teacher
    if teacher_config is None:
        raise RequestError("extraction needs a teacher that is a model: set synth.teacher.kind to openai or engine.")
    if to.exists() and not (to.is_dir() and {entry.name for entry in to.iterdir()} <= OURS):
        raise RequestError(f"{to} is not the folder of an earlier extraction; choose an empty or new folder with --to.")
    read = read_documents(pages) if pages.is_file() else read_pages(pages)
    log.info("%d documents, %d left out", len(read.documents), len(read.failures))
    with Lake(to) as lake:
        with open_teacher(teacher_config, lake) as teacher, _judge(config, teacher, lake) as judge:
            found = extract_facts(read.documents, teacher, Readers(judge), config.extraction)
        dropped = [*read.failures, *found.failures]
        lake.add(dropped)
    _write(found, to)
    reasons = dict(sorted(Counter(str(failure.kind) for failure in dropped).items()))
    return {"documents": len(found.documents), "facts": len(found.facts), "dropped": len(dropped), "reasons": reasons}


def _judge(config: SynthConfig, teacher: Teacher, lake: Lake) -> AbstractContextManager[Teacher]:
    return nullcontext(teacher) if config.judge is None else open_teacher(config.judge, lake)


def _write(corpus: Corpus, to: Path) -> None:
    facts = ({"subject": f.subject, "relation": f.relation, "object": f.object, "documents": list(f.documents)} for f in corpus.facts)
    _write_rows(facts, to / "facts.jsonl")
    _write_rows(({"id": d.id, "title": d.title, "text": d.text} for d in corpus.documents), to / "documents.jsonl")


def _write_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    with drafted(path) as draft:
        draft.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
