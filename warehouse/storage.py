"""Location of a lake's catalogue and data: in the home, or in PostgreSQL and S3-compatible storage.

The choice is made once and stored in the home. Secrets are never written: PostgreSQL reads `PGPASSWORD` or `~/.pgpass`, S3 the variables
`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import field_validator, model_validator

from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.settings import Section

FILE = "storage.json"
"""File in the lake's folder with the choice; absent for local storage."""
_KEYS = {"AWS_ACCESS_KEY_ID": "KEY_ID", "AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_SESSION_TOKEN": "SESSION_TOKEN"}


class Storage(Section):
    """Storage of the lake's catalogue and data; None keeps them in the home."""

    catalogue: str | None = None
    """PostgreSQL connection string without a password, such as `postgres:dbname=lake host=db.example.org user=flywheel`. None: SQLite."""
    data: str | None = None
    """Data path, `s3://bucket/prefix`. None: in the home."""
    s3_endpoint: str | None = None
    """Host and port of an S3-compatible server. None: AWS."""
    s3_region: str | None = None
    """AWS region."""
    s3_path_style: bool = False
    """Put the bucket name in the URL path, as most servers other than AWS require."""
    s3_tls: bool = True
    """Use HTTPS."""

    @field_validator("catalogue")
    @classmethod
    def _check_catalogue(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith("postgres:") or "password" in value):
            raise ValueError("must be postgres: and a connection string without a password; set the password in PGPASSWORD or ~/.pgpass")
        return value

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        if self.data is not None and not self.data.startswith("s3://"):
            raise ValueError("data must be s3://bucket/prefix; omit it to keep the data in the home")
        if self.data is None and (self.s3_endpoint or self.s3_region or self.s3_path_style or not self.s3_tls):
            raise ValueError("s3_endpoint, s3_region, s3_path_style and s3_tls are for data in s3://, but data is not set")
        return self

    @property
    def extensions(self) -> tuple[str, ...]:
        catalogue = "sqlite_scanner" if self.catalogue is None else "postgres_scanner"
        return ("ducklake", catalogue, *(() if self.data is None else ("httpfs",)))

    def secret(self) -> str | None:
        """SQL statement that gives DuckDB access to the data; None for local data."""
        if self.data is None:
            return None
        options = {option: os.environ[key] for key, option in _KEYS.items() if key in os.environ}
        options |= {"SCOPE": self.data, "URL_STYLE": "path" if self.s3_path_style else "vhost"}
        options |= {} if self.s3_endpoint is None else {"ENDPOINT": self.s3_endpoint}
        options |= {} if self.s3_region is None else {"REGION": self.s3_region}
        listed = ", ".join(f"{name} {quoted(value)}" for name, value in options.items())
        return f"CREATE SECRET lake_data (TYPE s3, USE_SSL {str(self.s3_tls).lower()}, {listed})"


LOCAL = Storage()


def choose_storage(folder: Path, wanted: Storage | None) -> Storage:
    """Stored choice for the lake in `folder`, else `wanted`, which is then stored, else local storage.

    Raises RequestError if the lake already uses another storage.
    """
    file = folder / FILE
    stored = Storage.model_validate_json(file.read_text()) if file.is_file() else LOCAL
    if wanted is None or wanted == stored:
        return stored
    if any(folder.glob("*")):
        raise RequestError(f"The lake in {folder.parent} already has its catalogue and data elsewhere ({stored}); choose another --home.")
    with drafted(folder / FILE) as draft:
        draft.write_text(wanted.model_dump_json(indent=2) + "\n")
    return wanted


def resolved(home: Path) -> Path:
    """Absolute path of a home without symbolic links. Raises RequestError if it cannot exist or DuckDB could not use it."""
    try:
        path = home.resolve()
        str(path).encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{home} cannot be a home: the path {path} is not UTF-8; rename it, or choose another --home.") from error
    except (OSError, RuntimeError) as error:  # missing current folder, or symbolic link loop
        raise RequestError(f"{home} cannot be a home: its path cannot be resolved; choose another --home.") from error
    if "\\" in str(path):
        why = f"the path {path} has a backslash, which DuckDB reads as a slash"
        raise RequestError(f"{home} cannot be a home: {why}; rename the folder, or choose another --home.")
    return path


@dataclass(frozen=True, slots=True)
class Place:
    """Files of one lake."""

    home: Path
    storage: Storage = LOCAL
    copy: Path | None = None
    """Copy of the catalogue, read if the catalogue's folder is not writable."""

    @classmethod
    def of(cls, home: Path, wanted: Storage | None = None) -> Place:
        """Place of the lake of `home`. Raises like `resolved` and `choose_storage`."""
        return cls(home, choose_storage(resolved(home) / "lake", wanted))

    @property
    def folder(self) -> Path:
        return self.home.resolve() / "lake"

    @property
    def catalogue(self) -> Path:
        """SQLite file with tables, snapshots and the list of data files."""
        return self.copy or self.folder / "catalog.sqlite"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def data_path(self) -> str:
        """Path of the Parquet files, ending in a slash."""
        return f"{self.data}/" if self.storage.data is None else f"{self.storage.data.rstrip('/')}/"

    @property
    def digests(self) -> Path:
        return self.folder / "digests.jsonl"

    @property
    def lock(self) -> Path:
        """File that writers lock during commits."""
        return self.folder / "writer.lock"


def quoted(text: str) -> str:
    """`text` as an SQL string literal, for statements without parameters."""
    return "'" + text.replace("'", "''") + "'"
