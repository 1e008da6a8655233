"""Documents from a folder of pages: Markdown and plain text, one document a file.

A document's id is the path of its file within the folder, its title the page's first heading of the highest rank, or the name of the file.
"""

from __future__ import annotations

import re
from pathlib import Path

from warehouse.corpora.corpus import Corpus
from warehouse.errors import RequestError
from warehouse.records import Document, Failure

SUFFIXES = (".md", ".markdown", ".txt")
_HEADING = re.compile(r"^# +(.+?)[ #]*$", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def read_pages(folder: Path, source: str | None = None) -> Corpus:
    """The pages in `folder` and the folders below it, in the order of their paths; `source` is the folder's name unless given.

    A page that is empty, no UTF-8 text, or a link out of the folder is left out, with its reason.

    Raises:
        RequestError: the folder is missing or holds no page.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise RequestError(f"{folder} holds no page: give a folder with files that end in {', '.join(SUFFIXES)}.")
    read = [_read(path, folder, source or folder.resolve().name) for path in paths]
    documents = tuple(page for page in read if isinstance(page, Document))
    return Corpus(documents=documents, failures=tuple(page for page in read if isinstance(page, Failure)))


def _read(path: Path, folder: Path, source: str) -> Document | Failure:
    name = path.relative_to(folder).as_posix()
    if not path.resolve().is_relative_to(folder.resolve()):
        return Failure("import", "outside", f"{name} is a link to a file outside the folder", {"file": name})
    try:
        text = _FRONT_MATTER.sub("", path.read_text(encoding="utf-8-sig")).strip()
    except UnicodeDecodeError as error:
        return Failure("import", "broken_page", f"{name} is no UTF-8 text: {error}", {"file": name})
    heading = _HEADING.search(text) if path.suffix.lower() != ".txt" else None
    title = heading[1].strip() if heading else path.stem.replace("_", " ").replace("-", " ")
    body = text.replace(heading[0], "", 1).strip() if heading else text
    if not body:
        return Failure("import", "empty_page", f"{name} has no text", {"file": name})
    return Document(name, title, body, source)
