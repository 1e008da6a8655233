"""Text files of a user may begin with a byte order mark; UTF-16 is read or refused, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from eval.graders.rows import read_rows
from flows.config import load_config
from rl.renderers.registry import template_text
from rl.tools.file import read_tools_file
from synth.formulas.webshaper import read_rows as read_webshaper
from synth.questions.decontamination import read_evaluation_set
from synth.worlds.writing_config import read_description
from warehouse.corpora.files import read_pages, read_texts
from warehouse.errors import RequestError
from warehouse.importers.fireact import read_fireact
from warehouse.importers.tables import table_rows

TASK = {"id": "a", "question": "Who?", "answer": "Ann"}
LINE = json.dumps(TASK)
WEBSHAPER = json.dumps({**TASK, "formalization": [["V@X", "r", "?"]], "urls": []})
CASES: list[tuple[str, str, Callable[[Path], object]]] = [
    ("profile.toml", "seed = 7", lambda path: load_config(str(path)).seed),
    ("tools.toml", "[tools.f]\nfunction = 'x.py:f'", lambda path: list(read_tools_file(path).tools)),
    ("rows.jsonl", LINE, lambda path: [row.value for row in table_rows(path)]),
    ("rows.json", f"[{LINE}]", lambda path: [row.value for row in table_rows(path)]),
    ("rows.csv", "id,question,answer\na,Who?,Ann", lambda path: [row.value for row in table_rows(path)]),
    ("graded.jsonl", '{"id": "a", "gold": "b", "pred": "b"}', lambda path: list(read_rows(path))),
    ("set.jsonl", LINE, lambda path: [task.question for task in read_evaluation_set(path)]),
    ("webshaper.jsonl", WEBSHAPER, lambda path: [row.fields for row in read_webshaper(path)[0]]),
    ("world.md", "A shop sells tea.", read_description),
    ("page.md", "# Tea\n\nTea is hot.", lambda path: [(page.title, page.text) for page in read_pages(path.parent).documents]),
    ("texts.jsonl", '{"text": "Tea is hot."}', lambda path: read_texts(path)[0]),
    ("template.jinja", "{{ messages }}", lambda path: template_text(str(path), PreTrainedTokenizerBase())),
    ("fireact.json", "{}", lambda path: read_fireact(path).rows),
]


@pytest.mark.parametrize(("name", "text", "read"), CASES, ids=[name for name, _, _ in CASES])
def test_a_file_with_a_byte_order_mark_says_the_same_and_one_in_utf_16_is_read_or_refused(
    name: str, text: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    plain = read(file)
    file.write_text(text, encoding="utf-8-sig")
    assert read(file) == plain
    file.write_text(text, encoding="utf-16")
    with suppress(RequestError):
        read(file)
