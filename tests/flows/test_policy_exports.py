"""Policies out of a home with their model cards, and exports pushed to a server that speaks the hub's protocol."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from flows.config import load_config
from flows.data.policies import export_policy
from flows.home import Home
from rl.policies.policy import load_policy
from rl.policies.transfer import adapter_weights, save_adapters
from tests.flows.homes import ended, flywheel
from tests.rl.toy import make_policy
from warehouse import Document, Example, Lake, Outcome, Part, PartKind, Policy, RequestError, Task
from warehouse.digests import digest_files

TOKEN = "hf_secret"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a base that states its licence, two policies and an evaluation."""
    root = tmp_path_factory.mktemp("policies")
    base = make_policy(root / "base-model")
    (base / "README.md").write_text("---\nlanguage: en\nlicense: 'mit'\n---\n# Base\n\nlicense: gpl-3.0\n")
    home = Home(root / "home")
    home.claim(load_config("quickstart", [f"policy.path={base}"]))
    make_policy(home.policies / "t1-sft")
    digest = digest_files(home.policies / "t1-sft")
    parts = (Part(PartKind.TEXT, "Lyon lies in France.", True),)
    with Lake(home.root) as lake:
        lake.add([Document("d", "Paris", "Paris lies in France.", "kg_countries"), Task("q", "search", "?", ("a",), split="heldout")])
        lake.add([Example("e", "trajectory", parts, ("d",)), Example("e2", "trajectory", parts, ("unknown",))])
        lake.add([Example("e3", "document", parts, ("d",), 2)])
        lake.add([ended(f"r{n}", "q", Outcome(said), "t1-sft", suite="films") for n, said in enumerate(["success", "failure", "invalid"])])
        lake.add([Policy("t0-init", None, "init", "policies/t0-init", "gone", None, 0)])
        lake.add([Policy("t1-sft", "t0-init", "sft", "policies/t1-sft", digest, 1, promoted=True)])
    return home.root


def test_a_policy_is_a_folder_that_loads_with_a_card(home: Path, tmp_path: Path) -> None:
    told = flywheel("export", "policy", "--home", home, "--to", tmp_path / "model")
    assert "t1-sft" in told, "by default the champion"
    written, same = (load_policy(folder)[0].state_dict() for folder in (tmp_path / "model", home / "policies" / "t1-sft"))
    assert written.keys() == same.keys() and all(torch.equal(written[name], same[name]) for name in same)
    card = (tmp_path / "model" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\nlibrary_name: transformers\n") and "`base-model`; licence: mit." in card
    assert "| t0-init | init | 0 |  |  |\n| t1-sft | sft | 1 | 1 | 2 trajectory |" in card
    assert "| kg_countries | ODbL 1.0 (facts), CC0 (texts, from the World Factbook) | 1 |" in card and "not traced to one source" in card
    with Lake(home) as lake:
        (row,) = lake.query("SELECT low, high FROM evaluations WHERE policy = 't1-sft' AND hops IS NULL").to_pylist()
    assert f"| films | 1 | 1 | 0.500 | {row['low']:.3f} to {row['high']:.3f} |" in card and 0 <= row["low"] < row["high"] <= 1
    assert str(home) not in card, "a card does not tell where it was made"


def test_adapters_stay_adapters(home: Path, tmp_path: Path) -> None:
    base = home.parent / "base-model"
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    folder = home / "policies" / "adapters"
    save_adapters(model.peft_config["default"], adapter_weights(model), folder)
    with Lake(home) as lake:
        lake.add([Policy("adapters", "t1-sft", "rl", "policies/adapters", digest_files(folder), 2)])
        export_policy(lake, "adapters", tmp_path / "adapters")
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapters")
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)
    card = (tmp_path / "adapters" / "README.md").read_text()
    assert "library_name: peft" in card and "license: mit" in card and "| adapters | rl |" in card


@pytest.mark.parametrize(
    ("name", "to", "reason"),
    [("t1-sft", "policy.gguf", "llama.cpp's converter"), ("t9-rl", "a", "no policy 't9-rl'"), ("t0-init", "a", "missing or changed")],
)
def test_policies_that_cannot_be_written(home: Path, tmp_path: Path, name: str, to: str, reason: str) -> None:
    with Lake(home) as lake, pytest.raises(RequestError, match=reason):
        export_policy(lake, name, tmp_path / to)
    assert not list(tmp_path.iterdir())


@dataclass
class Hub:
    """What a hub was asked for, and the files that were committed to it, by repository."""

    address: str = ""
    visibility: dict[str, str] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        kinds, _, rest = path.removeprefix("/api/").partition("/")
        name = "/".join(rest.split("/")[:2])
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['type']}s/{asked['organization']}/{asked['name']}"
            known = name in self.visibility
            self.visibility.setdefault(name, asked["visibility"])
            return (409 if known else 200), {"url": f"{self.address}/{name.removeprefix('models/')}"}
        if path == "/api/validate-yaml":
            metadata = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            return (200 if "license" in metadata else 400), {"errors": [], "warnings": []}
        if method == "PUT":
            self.large[path.removeprefix("/large/")] = body
            return 200, {}
        if path.endswith("/info/lfs/objects/batch"):
            return 200, {"transfer": "basic", "objects": [self._place(one) for one in json.loads(body)["objects"]]}
        if "/preupload/" in path:
            modes = {True: "lfs", False: "regular"}
            files = [one["path"] for one in json.loads(body)["files"]]
            return 200, {
                "files": [{"path": one, "uploadMode": modes[one.endswith(".safetensors")], "shouldIgnore": False} for one in files]
            }
        if "/commit/" in path:
            stored = self.files.setdefault(f"{kinds}/{name}", {})
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    stored[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    stored[value["path"]] = self.large[value["oid"]]
                    assert hashlib.sha256(stored[value["path"]]).hexdigest() == value["oid"]
            return 200, {"commitUrl": f"{self.address}/{name}/commit/1", "commitOid": "1" * 40, "success": True}
        return 404, {"error": f"no {method} {path}"}

    def _place(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "actions": {"upload": {"href": f"{self.address}/large/{asked['oid']}"}}}


@contextmanager
def hub() -> Iterator[Hub]:
    served = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            signed = self.headers.get("Authorization") == f"Bearer {TOKEN}" or self.command == "PUT"
            path = self.path.partition("?")[0]
            status, reply = served.answer(self.command, path, body) if signed else (401, {"error": "who are you?"})
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _do

        def log_message(self, format: str, *args: Any) -> None:
            """Tests are quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


def export(address: str, folder: Path, *arguments: object, **own: str) -> subprocess.CompletedProcess[str]:
    """`flywheel export` in its own process, since the hub's client reads its environment when it is imported."""
    own = {"HF_ENDPOINT": address, "HF_TOKEN": TOKEN, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1"} | own
    command = [sys.executable, "-m", "flows.cli", "export", *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_exports_are_pushed_to_a_private_repository(home: Path, tmp_path: Path) -> None:
    with hub() as served:
        model, data = tmp_path / "model", tmp_path / "rows.jsonl"
        done = export(served.address, tmp_path, "policy", "--home", home, "--to", model, "--push", "hf:me/agent")
        assert done.returncode == 0 and f"{served.address}/me/agent" in done.stdout, done.stderr
        assert served.files["models/me/agent"] == {file.name: file.read_bytes() for file in model.iterdir()}
        assert hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest() in served.large
        done = export(served.address, tmp_path, "cpt", "--home", home, "--to", data, "--push", "hf:me/rows")
        assert done.returncode == 0, done.stderr
        card = data.with_name("rows.jsonl.card.md").read_bytes()
        assert served.files["datasets/me/rows"] == {"rows.jsonl": data.read_bytes(), "README.md": card}
        assert served.visibility == {"models/me/agent": "private", "datasets/me/rows": "private"}
        again = tmp_path / "again"  # a folder of small files, as the client sends it by default
        done = export(served.address, tmp_path, "cpt", "--home", home, "--to", again, "--push", "hf:me/rows", HF_HUB_DISABLE_XET="0")
        assert done.returncode == 0 and served.files["datasets/me/rows"].keys() == {
            "rows.jsonl",
            "data/train-00000-of-00001.parquet",
            "README.md",
        }, done.stderr
        refused = export(
            served.address,
            tmp_path,
            "cpt",
            "--home",
            home,
            "--to",
            tmp_path / "no.jsonl",
            "--push",
            "hf:me/rows",
            HF_TOKEN="hf_no",
        )
        assert refused.returncode == 2 and "HF_TOKEN" in refused.stderr and "Traceback" not in refused.stderr
        assert TOKEN not in refused.stderr and (tmp_path / "no.jsonl").exists()
