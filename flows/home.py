"""A run's home: the folder that holds its lake, its policies, its reports and the configuration that it belongs to.

A home belongs to one configuration. `home/config.json` holds it, resolved, with its digest; a command with another one is
refused before anything starts, with the keys that differ. Until a policy is trained or tried, another configuration takes its place, and
what was made for training is made anew; only what questions were made by is settled once they are there. What only says how the home is
run (`is_operational`) may change at any time: the last command's stays.

A home has one writer of the wheel: a lock that the operating system releases when its holder dies, however it dies. Readers need no lock.
Upkeep of the lake needs none either: it is one writer of the lake among others.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from flows.config import FlywheelConfig, load_config
from flows.operations_config import is_operational
from flows.overrides import apply_overrides, describe
from warehouse import Example, Lake, Metric, Policy, Run
from warehouse.digests import digest
from warehouse.drafts import drafted
from warehouse.errors import RequestError, with_type
from warehouse.json_text import read_json
from warehouse.schema import TABLE_OF
from warehouse.settings import fault_of
from warehouse.storage import resolved

if TYPE_CHECKING:
    from warehouse.corpora.corpus import Corpus

log = logging.getLogger("flywheel")

QUESTIONS = ("corpus.", "synth.", "later.synth.", "evaluation.", "seed", "lake")
"""Keys that questions and documents are made by; these stay in the lake under another configuration."""
LOOK_SECONDS = 2.0
"""Interval between attempts at the lock."""
BEFORE = ("lake", "config.json.part")
"""What a folder may hold before it is a home: a lake, which an import makes, and a draft whose writer was killed or found the disk full."""


@dataclass(frozen=True, slots=True)
class Home:
    """The paths inside a run's folder."""

    root: Path

    @property
    def config_file(self) -> Path:
        """The resolved configuration, as JSON."""
        return self.root / "config.json"

    @property
    def corpus_digest(self) -> Path:
        """The digest of the corpus that its questions are made of."""
        return self.root / "corpus.digest"

    @property
    def policies(self) -> Path:
        """One folder for each policy."""
        return self.root / "policies"

    @property
    def report(self) -> Path:
        """The HTML page."""
        return self.root / "report.html"

    @property
    def progress(self) -> Path:
        """The progress record of the process at work; there only while one works."""
        return self.root / "progress.json"

    @property
    def requests(self) -> Path:
        """What is asked of the process at work (`flows/operations/control.py`)."""
        return self.root / "requests"

    @property
    def logs(self) -> Path:
        """Logs of engines, of Ray and of Prefect."""
        return self.root / "logs"

    def claim(self, config: FlywheelConfig) -> None:
        """Make the folder, write the configuration into it, or check that it is the one that is there.

        Raises:
            RequestError: the folder belongs to another configuration, or holds something that is no home.
        """
        resolved = config.model_dump(mode="json")
        stored = self.check_claim(config)
        if stored is not None:
            if identity(stored) != identity(resolved):
                with exclusive(self.root / "lock"):
                    self._forget_examples()
                    self._write(resolved)
            elif stored != resolved:
                self._write(resolved)
            return
        if self.root.is_dir() and any(entry.name not in BEFORE for entry in self.root.iterdir()):
            raise RequestError(f"{self.root} is not empty and holds no config.json; name an empty or new folder with --home.")
        self.root.mkdir(parents=True, exist_ok=True)
        self._write(resolved)

    def check_claim(self, config: FlywheelConfig) -> dict[str, Any] | None:
        """The home's configuration, None if it has none yet. Raises as `claim` if `config` contradicts it."""
        check_place(self.root)
        if not self.config_file.is_file():
            return None
        stored = self.load().model_dump(mode="json")  # a setting that came later has its default there
        self._compare(stored, config.model_dump(mode="json"))
        return stored

    def _made(self) -> set[str]:
        """The stages that have left something here: those of runs, and `runs` for trajectories that were sampled here."""
        if not (self.root / "lake").is_dir():
            return set()
        with Lake(self.root, read_only=True) as lake:
            sampled = lake.query("SELECT count(*) AS n FROM trajectories WHERE stage <> 'import'").column("n")[0].as_py()
            return {run.stage for run in lake.runs()} | ({"runs"} if sampled else set())

    def _forget_examples(self) -> None:
        """Take out what another configuration has to make anew: the examples, the first policy, and the runs that made them."""
        if not (self.root / "lake").is_dir():
            return
        with Lake(self.root) as lake:
            runs = lake.runs()
            figures = [metric for run in runs for metric in lake.metrics(run.id)]
            lake.remove(Example, lake.query("SELECT id FROM examples").column("id").to_pylist())
            lake.remove(Metric, TABLE_OF[Metric].keys_of(figures))
            for policy in lake.policies():
                shutil.rmtree(self.root / policy.path, ignore_errors=True)
            lake.remove(Policy, [policy.id for policy in lake.policies()])
            lake.remove(Run, [run.id for run in runs])

    def claim_corpus(self, corpus: Corpus, folder: Path) -> None:
        """Note which corpus the home's questions are made of, or check that it is still the same.

        Raises:
            RequestError: what was read from `folder` is not what the home began with: questions and documents would contradict each other.
        """
        found = corpus.digest
        if not self.corpus_digest.is_file():
            with drafted(self.corpus_digest) as draft:
                draft.write_text(f"{found}\n")
        elif self.corpus_digest.read_text().strip() != found:
            raise RequestError(
                f"the facts or documents in {folder} are not those that {self.root} began with: put them back, or begin another --home."
            )

    def _write(self, resolved: dict[str, Any]) -> None:
        with drafted(self.config_file) as draft:
            draft.write_text(json.dumps({"digest": digest(identity(resolved)), "config": resolved}, indent=2) + "\n")

    def load(self) -> FlywheelConfig:
        """The configuration that the home belongs to.

        Raises:
            RequestError: the folder is no home, or its configuration is damaged or of another version.
        """
        if not self.config_file.is_file():
            raise RequestError(f"{self.root} is no run's home: it holds no config.json; make one with `flywheel run --home {self.root}`.")
        try:
            return FlywheelConfig.model_validate(read_json(self.config_file.read_text())["config"])
        except OSError as error:
            raise RequestError(f"{self.config_file} cannot be read ({error.strerror}); see to its permissions.") from error
        except ValidationError as error:
            why = f"{self.config_file} does not fit this version ({fault_of(error)})"
            raise RequestError(f"{why}; start anew in another --home.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(
                f"{self.config_file} is damaged ({with_type(error)}); restore it, or start anew in another --home."
            ) from error

    def _compare(self, stored: dict[str, Any], resolved: dict[str, Any]) -> None:
        before, after = identity(stored), identity(resolved)
        differing = sorted(key for key in before | after if before.get(key) != after.get(key))
        if differing and self._is_bound(differing):
            named = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
            raise RequestError(f"{self.root} belongs to another configuration: {named} differ; choose another --home or the same settings.")

    def _is_bound(self, differing: Sequence[str]) -> bool:
        """Whether the home cannot take another configuration: a policy was trained or tried, or questions were made by what differs."""
        made = self._made()
        return bool(made - {"init", "synth"}) or (bool(made) and any(key.startswith(QUESTIONS) for key in differing))


def check_place(root: Path) -> None:
    """Raises RequestError where no home can be: below a file, on a disk that is only read, without files, or at a path no lake takes."""
    resolved(root)
    above = (root.absolute(), *root.absolute().parents)
    there = next(place for place in above if place.exists() or place.is_symlink())
    if not there.is_dir():
        raise RequestError(f"{root} cannot be a home, for {there} is no folder; name another --home.")
    disk = os.statvfs(there)
    if disk.f_flag & os.ST_RDONLY or not os.access(there, os.W_OK | os.X_OK):
        raise RequestError(f"{root} cannot be written to: {there} is read-only; name another --home.")
    if not disk.f_blocks:
        raise RequestError(f"{root} cannot be a home, for no files can be made in {there}; name another --home.")


def choose_config(home: Home, profile: str | None, overrides: Sequence[str], new: bool = True) -> FlywheelConfig:
    """The configuration that a command means, with `overrides` laid over it: the profile's, else the home's own, else quickstart's.

    Raises:
        RequestError: nothing is asked, there is no home, and none is to be made (`new`); or a key, a value or a profile is wrong.
    """
    if profile is None and (home.config_file.is_file() or not (new or overrides)):
        return _own_with(home, overrides)
    return load_config(profile or "quickstart", overrides)


def _own_with(home: Home, overrides: Sequence[str]) -> FlywheelConfig:
    """A home's configuration with `overrides`. Raises RequestError if one is wrong, or there is no home."""
    own = home.load()
    if not overrides:
        return own
    try:
        return FlywheelConfig.model_validate(apply_overrides(own.model_dump(mode="json"), overrides))
    except ValidationError as error:
        raise RequestError(describe(error, str(home.config_file), overrides, FlywheelConfig)) from error


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The table's leaves under their dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in table.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return leaves


def identity(table: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a configuration under their dotted keys, less those that say only how a home is run."""
    return {key: value for key, value in flat(table).items() if not is_operational(key)}


class HomeBusy(RequestError):
    """Another process is at work in the home."""


@contextmanager
def exclusive(path: Path, patience_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock file at `path`; waits for it for `patience_seconds`, then raises HomeBusy with the id of its holder."""
    with path.open("a+") as file:
        deadline, logged = time.monotonic() + patience_seconds, False
        while (holder := _lock(file)) is not None:
            if time.monotonic() >= deadline:
                raise HomeBusy(f"{path.parent} is in use by process {holder}; wait for it, or choose another --home.")
            if not logged:
                log.info("waiting for process %s, which is at work in %s", holder, path.parent)
                logged = True
            time.sleep(LOOK_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(file: IO[str]) -> str | None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        return file.read().strip() or "unknown"
    return None
