"""A run's home: the folder with its lake, policies, reports and configuration.

A home belongs to one configuration, stored resolved with its digest in `home/config.json`. A command with another configuration is rejected
before anything starts, with the keys that differ. Until a policy is trained or sampled, another configuration may replace it and training
data is made anew, except that the settings that produced existing questions are fixed. Operational settings (`is_operational`) may change
at any time; the last command's apply.

The flywheel has one writer per home, enforced by a lock that the operating system releases when its holder dies. Readers and lake upkeep
need no lock.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
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
"""Prefixes of the keys that determine questions and documents, which stay in the lake under another configuration."""
OVER_SNAPSHOTS = ("repository", "harbor")
"""Environments whose tasks name snapshots."""
LOOK_SECONDS = 2.0
"""Interval between attempts to take the lock."""
BEFORE = ("lake", "repositories", "config.json.part")
"""Allowed contents of a folder that is not yet a home: what an import stored, and a draft left by a killed or failed writer."""


@dataclass(frozen=True, slots=True)
class Home:
    """Paths inside a run's folder."""

    root: Path

    @property
    def config_file(self) -> Path:
        return self.root / "config.json"

    @property
    def corpus_digest(self) -> Path:
        """Digest of the corpus that the questions come from."""
        return self.root / "corpus.digest"

    @property
    def policies(self) -> Path:
        return self.root / "policies"

    @property
    def repositories(self) -> Path:
        """Snapshots of repository tasks; absent without any."""
        return self.root / "repositories"

    def over_snapshots(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of an environment of `OVER_SNAPSHOTS`, with the home's own snapshots if they name no folder."""
        return {"folder": str(self.repositories), **options}

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def progress(self) -> Path:
        """Progress record of the running process; absent otherwise."""
        return self.root / "progress.json"

    @property
    def requests(self) -> Path:
        """User requests to the running process (`flows/operations/control.py`)."""
        return self.root / "requests"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def claim(self, config: FlywheelConfig) -> None:
        """Create the folder and write the configuration, or check it against the stored one.

        Raises:
            RequestError: The folder belongs to another configuration, or is not a home and not empty.
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
            raise RequestError(f"{self.root} is not empty and has no config.json; choose an empty or new folder with --home.")
        self.root.mkdir(parents=True, exist_ok=True)
        self._write(resolved)

    def check_claim(self, config: FlywheelConfig) -> dict[str, Any] | None:
        """Return the stored configuration, or None if there is none. Raises as `claim` if `config` conflicts with it."""
        check_place(self.root)
        if not self.config_file.is_file():
            return None
        stored = self.load().model_dump(mode="json")  # fills settings added by later versions with their defaults
        self._compare(stored, config.model_dump(mode="json"))
        return stored

    def _made(self) -> set[str]:
        """Return the stages that left runs here, and `runs` if trajectories were sampled here."""
        if not (self.root / "lake").is_dir():
            return set()
        with Lake(self.root, read_only=True) as lake:
            sampled = lake.query("SELECT count(*) AS n FROM trajectories WHERE stage <> 'import'").column("n")[0].as_py()
            return {run.stage for run in lake.runs()} | ({"runs"} if sampled else set())

    def _forget_examples(self) -> None:
        """Remove what another configuration must make anew: examples, policies, and all runs with their metrics."""
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
        """Store the digest of the corpus that the home's questions come from, or check that it is unchanged.

        Raises:
            RequestError: The corpus in `folder` differs from the home's, so that questions and documents would disagree.
        """
        found = corpus.digest
        if not self.corpus_digest.is_file():
            with drafted(self.corpus_digest) as draft:
                draft.write_text(f"{found}\n")
        elif self.corpus_digest.read_text().strip() != found:
            raise RequestError(
                f"the facts or documents in {folder} have changed since {self.root} began: restore them, or choose another --home."
            )

    def _write(self, resolved: dict[str, Any]) -> None:
        with drafted(self.config_file) as draft:
            draft.write_text(json.dumps({"digest": digest(identity(resolved)), "config": resolved}, indent=2) + "\n")

    def load(self) -> FlywheelConfig:
        """Load the home's configuration. Raise RequestError if there is none, or it is damaged or does not fit this version."""
        if not self.config_file.is_file():
            raise RequestError(f"{self.root} is not a home: it has no config.json; create one with `flywheel run --home {self.root}`.")
        try:
            return FlywheelConfig.model_validate(read_json(self.config_file.read_text())["config"])
        except OSError as error:
            raise RequestError(f"{self.config_file} cannot be read ({error.strerror}); check its permissions.") from error
        except ValidationError as error:
            why = f"{self.config_file} does not fit this version ({fault_of(error)})"
            raise RequestError(f"{why}; start over with another --home.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(
                f"{self.config_file} is damaged ({with_type(error)}); restore it, or start over with another --home."
            ) from error

    def _compare(self, stored: dict[str, Any], resolved: dict[str, Any]) -> None:
        before, after = identity(stored), identity(resolved)
        differing = sorted(key for key in before | after if before.get(key) != after.get(key))
        if differing and self._is_bound(differing):
            named = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
            raise RequestError(f"{self.root} belongs to another configuration: {named} differ; choose another --home or the same settings.")

    def _is_bound(self, differing: Sequence[str]) -> bool:
        """Return whether the configuration is fixed: a policy was trained or sampled, or stored questions depend on the differing keys."""
        made = self._made()
        return bool(made - {"init", "synth"}) or (bool(made) and any(key.startswith(QUESTIONS) for key in differing))


def check_place(root: Path) -> None:
    """Raise RequestError if no home can be at `root`: below a file, read-only, on a file system without files, or an unsupported path."""
    resolved(root)
    above = (root.absolute(), *root.absolute().parents)
    there = next(place for place in above if place.exists() or place.is_symlink())
    if not there.is_dir():
        raise RequestError(f"{root} cannot be a home: {there} is not a folder. Choose another --home.")
    disk = os.statvfs(there)
    if disk.f_flag & os.ST_RDONLY or not os.access(there, os.W_OK | os.X_OK):
        raise RequestError(f"{root} cannot be written to: {there} is read-only. Choose another --home.")
    if not disk.f_blocks:
        raise RequestError(f"{root} cannot be a home: no files can be created in {there}. Choose another --home.")


def choose_config(home: Home, profile: str | None, overrides: Sequence[str], new: bool = True) -> FlywheelConfig:
    """Choose a command's configuration: the profile's, else the home's own, else quickstart's, with `overrides` applied.

    Raises:
        RequestError: There is no home and none is to be made (`new` is false), or a key, value or profile is invalid.
    """
    if profile is None and (home.config_file.is_file() or not (new or overrides)):
        return _own_with(home, overrides)
    return load_config(profile or "quickstart", overrides)


def with_repositories(config: FlywheelConfig, home: Home) -> FlywheelConfig:
    """Let the environments of `OVER_SNAPSHOTS` read the home's own snapshots, if there are any and no other folder is set."""
    environments = config.rollout.environments
    if not home.repositories.is_dir():
        return config
    owns = {name: environments.kind(name) for name in OVER_SNAPSHOTS}
    found = {name: own.model_copy(update={"options": home.over_snapshots(own.options)}) for name, own in owns.items()}
    kinds = {**environments.kinds, **found}
    rollout = config.rollout.model_copy(update={"environments": environments.model_copy(update={"kinds": kinds})})
    return config.model_copy(update={"rollout": rollout})


def _own_with(home: Home, overrides: Sequence[str]) -> FlywheelConfig:
    """Return a home's configuration with `overrides`. Raise RequestError if one is invalid or there is no home."""
    own = home.load()
    if not overrides:
        return own
    try:
        return FlywheelConfig.model_validate(apply_overrides(own.model_dump(mode="json"), overrides))
    except ValidationError as error:
        raise RequestError(describe(error, str(home.config_file), overrides, FlywheelConfig)) from error


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested table to its leaves under dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in table.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return leaves


def identity(table: dict[str, Any]) -> dict[str, Any]:
    """Return the leaves of a configuration that are not operational, under dotted keys."""
    return {key: value for key, value in flat(table).items() if not is_operational(key)}


class HomeBusy(RequestError):
    """Another process is using the home."""


@contextmanager
def exclusive(path: Path, patience_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock file at `path`. Raise HomeBusy with the holder's process id if it is not free within `patience_seconds`."""
    with path.open("a+") as file:
        deadline, logged = time.monotonic() + patience_seconds, False
        while (holder := _lock(file)) is not None:
            if time.monotonic() >= deadline:
                raise HomeBusy(f"{path.parent} is in use by process {holder}; wait for it, or choose another --home.")
            if not logged:
                log.info("waiting for process %s, which is using %s", holder, path.parent)
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
