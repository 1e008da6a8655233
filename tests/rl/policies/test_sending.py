"""The pieces that a policy is sent in to a machine that does not see its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.policies import transfer as sending
from rl.policies.transfer import ReceivedPolicy, files_in, pieces


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    (folder / "more").mkdir(parents=True)
    for name, content in {"config.json": b"{}", "model.safetensors": bytes(range(100)), "empty": b""}.items():
        (folder / name).write_bytes(content)
    return folder


def test_what_is_sent_in_pieces_is_what_lies_there(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PIECE_BYTES", 33)
    received = ReceivedPolicy(str(policy), files_in(policy))
    sent = list(pieces(policy, received.files))
    assert [name for name, _ in sent] == ["config.json", "empty", *["model.safetensors"] * 4], "no piece is larger than it may be"
    for name, piece in sent:
        received.take(name, piece)
    came = {path.name: path.read_bytes() for path in received.folder.iterdir()}
    assert came == {path.name: path.read_bytes() for path in policy.iterdir() if path.is_file()}
    folder = received.folder
    received.drop()
    assert not folder.exists()


def test_half_of_a_policy_and_what_nobody_announced_is_refused(policy: Path) -> None:
    received = ReceivedPolicy(str(policy), files_in(policy))
    received.take("config.json", b"{}")
    received.take("model.safetensors", bytes(99))
    with pytest.raises(ValueError, match=r"99 of 100 bytes of model\.safetensors"):
        _ = received.folder
    for name in ("other.json", "../config.json"):
        with pytest.raises(ValueError, match="was announced"):
            received.take(name, b"")
    received.drop()
