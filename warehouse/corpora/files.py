"""Facts, documents and texts from files: tables, folders of pages, and data sets saved by `datasets`.

Broken rows and pages are skipped and reported as `Failure` with line and reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from warehouse.corpora.corpus import Corpus, Wording
from warehouse.errors import RequestError
from warehouse.foreign import GUESSED, Delimiting, Row, is_saved, open_table
from warehouse.records import Document, Fact, Failure
from warehouse.settings import Section, first_error, read_toml

FACT_COLUMNS = ("subject", "relation", "object")
"""Required columns of a fact file; optional: `documents`, the ids of the documents that state the fact."""
DOCUMENT_COLUMNS = ("id", "title", "text")
SEPARATOR = "|"
"""Separates document ids in a cell of a CSV or TSV file."""

R = TypeVar("R")
SUFFIXES = (".md", ".markdown", ".txt")
_OTHER_PAGES = (".html", ".htm", ".rst", ".mdx", ".adoc", ".org", ".tex", ".rtf", ".pdf", ".docx", ".odt", ".epub")
"""Suffixes of pages in unsupported formats."""
_HEADING = re.compile(r"^# +(.+?)[ #]*$", re.MULTILINE)
_FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
"""Fenced code, in which a line that begins with `#` is no heading."""
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
MOST_FRONT_MATTER = 2**16
"""Maximum characters of front matter searched for a title."""


def read_facts(path: Path, source: str | None = None) -> Corpus:
    """Facts of a table `subject, relation, object[, documents]`; `source` defaults to the file's stem.

    Raises RequestError if the file is missing or unreadable, or lacks a column.
    """
    facts, failures = _read_records(path, FACT_COLUMNS, _fact, source or path.stem)
    return Corpus(facts=tuple(dict.fromkeys(facts)), failures=tuple(failures))


def read_documents(path: Path, source: str | None = None, form: Delimiting = GUESSED) -> Corpus:
    """Documents of a table `id, title, text`; raises like `read_facts`. Repeated ids are skipped."""
    documents, failures = _read_records(path, DOCUMENT_COLUMNS, _document, source or path.stem, form)
    unique: dict[str, Document] = {}
    for document in documents:
        if unique.setdefault(document.id, document) is not document:
            item = {"file": str(path), "id": document.id}
            failures.append(Failure("import", "double_document", f"{path.name}: duplicate document id {document.id!r}", item))
    return Corpus(documents=tuple(unique.values()), failures=tuple(failures))


def read_column(path: Path, column: str) -> tuple[list[str], list[Failure]]:
    """Texts in one column of a table, and failures for rows without one; raises like `read_facts`."""
    return _read_records(path, (column,), lambda row, source: _text(row, column), path.stem)


def _read_records(
    path: Path, columns: tuple[str, ...], build: Callable[[Mapping[str, Any], str], R], source: str, form: Delimiting = GUESSED
) -> tuple[list[R], list[Failure]]:
    if not path.is_file():
        raise RequestError(f"There is no file {path}: check the path.")
    records, failures = [], []
    for row in _rows(path, columns, form):
        try:
            if row.fault is not None or not isinstance(row.value, dict):
                raise ValueError(row.fault or "not a JSON object")
            records.append(build(row.value, source))
        except ValueError as error:
            item = {"file": str(path), "line": row.line, "row": row.text if row.value is None else row.value}
            failures.append(Failure("import", "broken_row", f"{path.name}, line {row.line}: {error}", item))
    return records, failures


def _rows(path: Path, columns: tuple[str, ...], form: Delimiting) -> Iterator[Row]:
    head, rows = open_table(path, form)
    if head["format"] != "delimited":
        if "columns" in head:
            _require(path, columns, head["columns"])
        yield from rows
        return
    _require(path, columns, [name.lower() for name in head["columns"]])
    for row in rows:
        yield row if row.value is None else replace(row, value={name.lower(): cell for name, cell in row.value.items()})


def _require(path: Path, columns: tuple[str, ...], found: list[str]) -> None:
    missing = [name for name in columns if name not in found]
    if missing:
        has = ", ".join(found) or "none"
        raise RequestError(f"{path} has no column {', '.join(missing)} (it has {has}): name the columns in its header.")


def _fact(row: Mapping[str, Any], source: str) -> Fact:
    subject, relation, value = (_text(row, name) for name in FACT_COLUMNS)
    return Fact(subject, relation, value, _ids(row.get("documents")), source)


def _document(row: Mapping[str, Any], source: str) -> Document:
    identity, title, text = (_text({**row, "id": _named(row.get("id"))}, name) for name in DOCUMENT_COLUMNS)
    return Document(identity, title, text, source)


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        raise ValueError(f"no {name}")
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text but {value!r}")
    if not value.strip():
        raise ValueError(f"{name} is empty")
    if "\ufffd" in value or "\x00" in value:
        raise ValueError(f"{name} is not valid UTF-8")
    return value.strip()


def _named(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _ids(value: Any) -> tuple[str, ...]:
    ids = value.split(SEPARATOR) if isinstance(value, str) else value or []
    ids = [_named(item) for item in ids] if isinstance(ids, list | tuple) else ids
    if not isinstance(ids, list | tuple) or not all(isinstance(item, str) for item in ids):
        raise ValueError(f"documents is not a list of ids but {value!r}")
    return tuple(item.strip() for item in ids if item.strip())


def read_pages(folder: Path, source: str | None = None) -> Corpus:
    """Pages in `folder` and its subfolders, ordered by path; `source` defaults to the folder's name.

    A document's id is its relative path; its title is the page's first top-level heading, else that of its front matter, else the file's
    name. Empty pages, non-UTF-8 pages, other formats and links leading outside are skipped and reported.

    Raises RequestError if the folder is missing or contains no page.
    """
    found = sorted(folder.rglob("*"))
    paths = [path for path in found if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not paths:
        raise RequestError(f"{folder} has no pages: choose a folder with files that end in {', '.join(SUFFIXES)}.")
    read = [_read_page(path, folder, source or folder.resolve().name) for path in paths]
    documents = tuple(page for page in read if isinstance(page, Document))
    return Corpus(documents=documents, failures=(*(page for page in read if isinstance(page, Failure)), *_not_read(found, folder)))


def _not_read(found: list[Path], folder: Path) -> Iterator[Failure]:
    for path in found:
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and path.is_symlink():
            yield Failure("import", "outside", f"{name} is a link to a folder, which is not followed: copy its pages", {"file": name})
        elif path.suffix.lower() in _OTHER_PAGES and path.is_file():
            yield Failure("import", "other_format", f"{name} is neither Markdown nor plain text: convert it", {"file": name})


def _read_page(path: Path, folder: Path, source: str) -> Document | Failure:
    name = path.relative_to(folder).as_posix()
    if not path.resolve().is_relative_to(folder.resolve()):
        return Failure("import", "outside", f"{name} is a link to a file outside the folder", {"file": name})
    try:
        page = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        return Failure("import", "broken_page", f"{name} is not valid UTF-8: {error}", {"file": name})
    matter = _FRONT_MATTER.match(page)
    text = page[matter.end() if matter else 0 :].strip()
    if "\x00" in text:
        return Failure("import", "broken_page", f"{name} contains NUL bytes, as UTF-16 does: save it as UTF-8", {"file": name})
    heading = _HEADING.search(_FENCED.sub(_blank, text)) if path.suffix.lower() != ".txt" else None
    named = _title_in(matter[1]) if matter and not heading else ""
    title = heading[1].strip() if heading else named or path.stem.replace("_", " ").replace("-", " ")
    body = (text[: heading.start()] + text[heading.end() :]).strip() if heading else text
    if not body:
        return Failure("import", "empty_page", f"{name} has no text", {"file": name})
    return Document(name, title, body, source)


def _title_in(matter: str) -> str:
    import yaml

    try:
        said = yaml.safe_load(matter[:MOST_FRONT_MATTER])
    except (yaml.YAMLError, ValueError, RecursionError):
        return ""
    title = said.get("title") if isinstance(said, dict) else None
    return title.strip() if isinstance(title, str) and title.strip().isprintable() else ""


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def read_texts(path: Path, column: str = "text") -> tuple[list[str], list[Failure]]:
    """Texts at `path` (a table, saved data set or folder of pages) in order, and failures for skipped ones.

    Args:
        column: text column of a table or saved data set; of several splits, `train` is read.

    Raises RequestError if `path` is missing, of unknown format, or without that column.
    """
    if not path.exists():
        raise RequestError(f"{path} does not exist: check the path.")
    if path.is_file():
        return read_column(path, column)
    if is_saved(path):
        return _read_saved(path, column)
    corpus = read_pages(path)
    return [document.text for document in corpus.documents], list(corpus.failures)


def _read_saved(path: Path, column: str) -> tuple[list[str], list[Failure]]:
    texts: list[str] = []
    failures: list[Failure] = []
    for number, row in enumerate(one.value for one in open_table(path)[1]):
        if column not in row:
            raise RequestError(f"{path} has no column {column!r}, but {', '.join(row)}: name one of them.")
        if isinstance(text := row[column], str) and text.strip():
            texts.append(text)
        else:
            item = {"file": str(path), "line": number}
            failures.append(Failure("import", "broken_row", f"{path.name}, row {number}: no text in {column}", item))
    return texts, failures


class _WordingTable(Section):
    questions: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    condition: str = ""
    word: str = ""


def read_wordings(path: Path) -> dict[str, Wording]:
    """Wordings of relations in a TOML file, one table each: `["release year"]` with `questions`, `phrases`, `condition`, `word`.

    Raises RequestError if the file is missing or not TOML, or a wording lacks a placeholder.
    """
    try:
        read = {relation: _WordingTable.model_validate(table) for relation, table in read_toml(path, "the wordings file").items()}
    except ValidationError as error:
        raise RequestError(f"{path}: {first_error(error)}; a wording has questions, phrases, a condition and a word.") from error
    for relation, table in read.items():
        lacking = [text for text in (*table.questions, *table.phrases) if "{s}" not in text]
        lacking += [table.condition] if table.condition and "{o}" not in table.condition else []
        if lacking:
            raise RequestError(f"{path}: the wording {lacking[0]!r} of {relation!r} lacks {{s}} for its subject, or {{o}} in a condition.")
    return {relation: Wording(table.questions, table.phrases, table.condition, table.word) for relation, table in read.items()}
