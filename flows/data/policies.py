"""Export a policy as a folder that others load, with a model card: base and licence, stages, data, results.

The weights are the policy's own files; adapters of reinforcement learning are already merged. A folder of adapters stays one, for peft.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.data.imports import config_of
from flows.lakes import champion_of, policy_of
from rl.policies.config import PACKAGED
from rl.policies.policy import parameters_of
from rl.policies.transfer import base_of, is_adapters
from rl.pretrained import licence_in
from synth.exporters import count_sources
from warehouse import Lake, Policy
from warehouse.digests import digest_files
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.exporters.dataset import UNSTATED, check_free, sources_table

OWN_LICENCE = "Apache-2.0"
"""Licence of policies from scratch and of packaged ones."""
_ITEMS = """
SELECT i.policy, i.kind, coalesce(e.sources, [i.item]) AS sources FROM training_items i LEFT JOIN examples e ON e.id = i.item
WHERE list_contains(?, i.policy)
"""
_RESULTS = "SELECT suite, tasks, invalid, success, low, high FROM evaluations WHERE policy = ? AND hops IS NULL ORDER BY suite"


def export_policy(lake: Lake, name: str | None, path: Path) -> Policy:
    """Write policy `name`, by default the champion, to the new folder `path` with its card.

    Raises RequestError if there is no such policy, its files changed since it was trained, or `path` is taken or names a GGUF file.
    """
    if path.suffix == ".gguf":
        raise RequestError(
            f"No installed package brings llama.cpp's converter, so {path} cannot be written: choose a folder, and run "
            "convert_hf_to_gguf.py of llama.cpp on it."
        )
    check_free(path)
    policy = champion_of(lake) if name is None else policy_of(lake, name)
    if policy is None:
        raise RequestError(f"{lake.place.home} has no promoted policy; choose one with --policy.")
    folder = lake.place.home / policy.path
    if not folder.is_dir() or digest_files(folder) != policy.weights_digest:
        raise RequestError(f"{folder} is missing or changed since {policy.id} was trained; train it again.")
    with drafted(path) as draft:
        shutil.copytree(folder, draft)
        (draft / "README.md").write_text(model_card(lake, policy, folder), encoding="utf-8")
    return policy


def model_card(lake: Lake, policy: Policy, folder: Path) -> str:
    base, licence = _base(lake, folder)
    line = lake.query("SELECT unnest(ancestors) AS policy FROM lineage WHERE policy = ?", [policy.id]).column("policy").to_pylist()
    items = lake.query(_ITEMS, [line]).to_pylist()
    parts = [
        _front_matter(licence, is_adapters(folder)),
        f"# {policy.id}",
        f"A policy for agents with tools, trained by the agent flywheel: {parameters_of(folder):,} "
        f"{'parameters of adapters for peft' if is_adapters(folder) else 'parameters'}, weights `{policy.weights_digest}`.",
        f"## Base\n\n{base}; licence: {licence}.",
        f"## Stages\n\n{_stages(lake, line, items)}",
        sources_table(count_sources(lake, lake.snapshot(), (item["sources"] for item in items)), "training items"),
        f"## Results\n\n{_results(lake, policy)}",
    ]
    return "\n\n".join(parts) + "\n"


def _base(lake: Lake, folder: Path) -> tuple[str, str]:
    """What the policy's line began with, and its licence."""
    config = config_of(lake.place.home)
    begun = Path(base_of(folder)) if is_adapters(folder) else None if config is None else config.policy.folder
    if config is not None and begun is None:
        return "From scratch", OWN_LICENCE
    if begun is None:
        return "Unknown: the home has no configuration", UNSTATED
    return f"`{begun.name}`", OWN_LICENCE if begun.parent == PACKAGED else licence_in(begun) or UNSTATED


def _front_matter(licence: str, adapters: bool) -> str:
    library = "peft" if adapters else "transformers"
    named = "other" if licence == UNSTATED else licence.lower()
    return f"---\nlicense: {named}\nlibrary_name: {library}\npipeline_tag: text-generation\ntags:\n- agent-flywheel\n- tool-use\n---"


def _stages(lake: Lake, line: Sequence[str], items: Sequence[dict[str, Any]]) -> str:
    """The policies of the line, the first one first, with the number of training items by kind."""
    known = {policy.id: policy for policy in lake.policies()}
    rows = ["| policy | stage | iteration | snapshot | trained on |", "| --- | --- | --- | --- | --- |"]
    for policy in (known[name] for name in reversed(line)):
        kinds = [item["kind"] for item in items if item["policy"] == policy.id]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
        snapshot = "" if policy.snapshot is None else policy.snapshot
        rows.append(f"| {policy.id} | {policy.stage} | {policy.wheel_turn} | {snapshot} | {counts} |")
    return "\n".join(rows)


def _results(lake: Lake, policy: Policy) -> str:
    found = lake.query(_RESULTS, [policy.id]).to_pylist()
    if not found:
        return "The lake has no evaluation of this policy."
    rows = ["| suite | tasks | invalid | success | 95 % interval |", "| --- | --- | --- | --- | --- |"]
    for row in found:
        success = "" if row["success"] is None else f"{row['success']:.3f}"
        interval = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        rows.append(f"| {row['suite'] or ''} | {row['tasks']} | {row['invalid']} | {success} | {interval} |")
    return "\n".join(rows)
