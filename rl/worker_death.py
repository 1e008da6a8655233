"""Diagnose processes that died: which one, how, and the end of its log. A machine fault, not a wrong request.

Ray reports that a process is gone but rarely why: a crash leaves its signal in the process's log, SIGKILL (out of memory) leaves nothing.
vLLM reports the exit statuses of its own processes.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from warehouse.errors import WorkFailed

WITHOUT_A_WORD = "without a trace, as if by SIGKILL, which the kernel sends when memory runs out"
"""Description of a process's end that left no trace."""
LOG_BYTES = 32_768
"""Bytes kept from the end of a log."""
_DEATHS = {"RayActorError", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "LocalRayletDiedError", "RaySystemError"}
"""Names of Ray's exceptions; importing Ray to compare types is slow."""
_PROCESS = re.compile(r"\bpid[:=] ?(\d+)")
_CRASHED = re.compile(r"\*\*\* (SIG[A-Z]+) received")
"""Line that Ray's signal handler writes to the log of a crashing process."""
_ENDED = re.compile(r"Failed core proc\(s\): \{(?:'[^']*': (-?\d+))?")
"""vLLM's report of exit statuses; empty for a process that is still ending."""
_SHORT_OF_MEMORY = re.compile(r"low on memory|out of memory|memory usage threshold", re.IGNORECASE)


class WorkerDied(WorkFailed):
    """A process died: its name, how it ended, and the end of its log or the file that holds it."""

    def __init__(self, what: str, how: str, log: str = "", file: Path | None = None) -> None:
        super().__init__(what, how, log, file)  # arguments for unpickling
        self.what, self.how, self.log, self.file = what, how, log, file

    def __str__(self) -> str:
        last = (self.log.strip().splitlines() or ["nothing"])[-1][:300]
        where = f"its log is {self.file}" if self.file is not None else f"its last log line is: {last}"
        return (
            f"{self.what} died, {self.how}; {where}. Free memory with fewer or smaller workers and engines or fewer "
            "other processes, then run the same command again: stored results are intact."
        )

    def kept_in(self, folder: Path) -> WorkerDied:
        """Save the log in `folder` and return the error with its path."""
        folder.mkdir(parents=True, exist_ok=True)
        number = len([*folder.glob("died-*.log")]) + 1
        file = folder / f"died-{number}-{re.sub(r'[^A-Za-z0-9]+', '-', self.what).strip('-')[:60]}.log"
        file.write_text(f"{self.what}: {self.how}\n\n{self.log}", errors="replace")
        return WorkerDied(self.what, self.how, self.log, file)


def worker_died(what: str, error: BaseException | None) -> WorkerDied | None:
    """Find a process death in `error` or its causes; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, WorkerDied):
            return error
        names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "ray.exceptions"}
        if names & _DEATHS and not getattr(error, "actor_init_failed", False):
            return _death(what, str(error))
        error = _behind(error)
    return None


def own_process_died(what: str, error: Exception) -> WorkerDied | None:
    """The death of a vLLM process that logs to this process's log, or None."""
    ended = _ENDED.search(str(error))
    if ended is None:
        return None
    return WorkerDied(what, _how(ended[1]), log_of(os.getpid()))


def _how(status: str | None) -> str:
    if status is None:
        return WITHOUT_A_WORD
    return f"by {_name_of(-int(status))}" if int(status) < 0 else f"with status {status}"


def log_of(process: int) -> str:
    """End of the log of a Ray process on this machine."""
    import ray

    node = ray._private.worker._global_node
    if node is None:
        return ""
    files = sorted(Path(node.get_logs_dir_path()).glob(f"worker-*-{process}.*"))
    return "\n".join(_end_of(file) for file in files)


def _death(what: str, said: str) -> WorkerDied:
    process = _PROCESS.search(said)
    log = log_of(int(process[1])) if process is not None else ""
    crashed = _CRASHED.search(log)
    if _SHORT_OF_MEMORY.search(said):
        return WorkerDied(what, "ended by Ray because the machine was short of memory", log)
    if crashed is not None:
        return WorkerDied(what, f"by {crashed[1]}", log)
    return WorkerDied(what, WITHOUT_A_WORD, log)


def _behind(error: BaseException) -> BaseException | None:
    inner = getattr(error, "cause", None)
    return inner if isinstance(inner, BaseException) else error.__cause__


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - LOG_BYTES))
            return opened.read().decode(errors="replace")
    except OSError:
        return ""
