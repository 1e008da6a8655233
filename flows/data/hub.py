"""Push an export to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from warehouse.errors import RequestError
from warehouse.exporters.dataset import card_path

_PLACE = re.compile(r"hf:([\w.-]+/[\w.-]+)", re.ASCII)
TOKENS = "log in with `hf auth login`, or set HF_TOKEN to a token that may write there"


def repository_of(place: str) -> str:
    """`ORG/NAME` of `hf:ORG/NAME`. Raises RequestError."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise RequestError(f"--push {place!r:.100} is not a repository of the Hugging Face hub: write hf:ORG/NAME.")
    return found[1]


def push(path: Path, repository: str, kind: Literal["dataset", "model"]) -> str:
    """Upload the folder `path`, or the file and its card as README.md, and return the repository's address.

    A new repository is private; an existing one keeps its visibility and its other files. Raises RequestError if the hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    hub = HfApi()
    try:
        address = hub.create_repo(repository, repo_type=kind, private=True, exist_ok=True)
        message = f"Export {path.name}"
        if path.is_dir():
            hub.upload_folder(repo_id=repository, repo_type=kind, folder_path=path, commit_message=message)
        else:
            files = [CommitOperationAdd(path.name, path), CommitOperationAdd("README.md", card_path(path))]
            hub.create_commit(repository, files, repo_type=kind, commit_message=message)
    except Exception as error:  # of the hub's client, its HTTP library or the system
        reason = " ".join(str(error).split())[:300]
        raise RequestError(f"{path} is written, but {hub.endpoint} did not take it as {repository}: {reason}; {TOKENS}.") from error
    return str(address)
