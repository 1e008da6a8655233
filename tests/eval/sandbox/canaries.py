"""Canaries: things of the host that a program in the sandbox must not reach, and that show it if it did."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


class Canaries:
    """A secret file, a folder that all may write to, four listeners and a process with the secret among its variables."""

    def __init__(self) -> None:
        self.nonce = f"canary{secrets.token_hex(8)}"
        self.secret = f"secret{secrets.token_hex(8)}"
        self.folder = Path(tempfile.mkdtemp(prefix=self.nonce))
        self.folder.chmod(0o755)
        self._secret_file = self.folder / "secret.txt"
        self._secret_file.write_text(self.secret)
        self._open_folder = self.folder / "open"
        self._open_folder.mkdir()
        self._open_folder.chmod(0o777)
        self._listeners = {name: _listen(family, kind, address) for name, family, kind, address in self._addresses()}
        (self.folder / "socket").chmod(0o777)
        environment = {self.nonce.upper(): self.secret}
        self._victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], env=environment)

    def _addresses(self) -> list[tuple[str, int, int, object]]:
        return [
            ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("unix", socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "socket")),
            ("abstract unix", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.nonce}"),
        ]

    def prelude(self) -> str:
        """Python that names the canaries."""
        places = {
            "SECRET_FILE": str(self._secret_file),
            "OPEN_FOLDER": str(self._open_folder),
            "UNIX_SOCKET": str(self.folder / "socket"),
            "ABSTRACT_SOCKET": f"\0{self.nonce}",
            "TCP_PORT": self._listeners["tcp"].getsockname()[1],
            "UDP_PORT": self._listeners["udp"].getsockname()[1],
            "VICTIM": self._victim.pid,
            "NONCE": self.nonce,
            "ENVIRONMENT_NAME": self.nonce.upper(),
            "HOST_NAME": socket.gethostname(),
        }
        return "\n".join(f"{name} = {value!r}" for name, value in places.items()) + "\n"

    def harm(self) -> list[str]:
        """What was touched since the last look."""
        found = [f"{name} listener was reached" for name, listener in self._listeners.items() if _reached(listener)]
        if self._secret_file.read_text() != self.secret:
            found.append("the secret file was changed")
            self._secret_file.write_text(self.secret)
        for path in self._open_folder.iterdir():
            found.append(f"{path.name} was written")
            path.unlink()
        if self._victim.poll() is not None:
            found.append(f"the process was ended by {self._victim.returncode}")
        found += [f"process {pid} is left" for pid in _processes_with(self.nonce)]
        found += [f"{path} is left" for path in Path("/dev/shm").glob(f"*{self.nonce}*")]
        return found

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._victim.kill()
        self._victim.wait()
        shutil.rmtree(self.folder)


def _listen(family: int, kind: int, address: object) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.setblocking(False)
    listener.bind(address)
    if kind == socket.SOCK_STREAM:
        listener.listen()
    return listener


def _reached(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(1)
        else:
            listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _processes_with(nonce: str) -> list[int]:
    """Processes of the host whose command line holds `nonce`; launchers of programs get theirs by a pipe and never show it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if nonce.encode() in line:
                found.append(int(folder.name))
    return found
