"""A small model that really writes, on every path of synthesis that asks one: on real films and countries, in our own engine.

    FLYWHEEL_DATA=… flywheel model smollm2 --to models/smollm2
    python -m benchmarks.teachers run --home runs/teachers --model models/smollm2 [--corpora films] [--routes first_order]
    python -m benchmarks.teachers show --home runs/teachers --part rewordings [--items 50]      # what is kept, to be judged by hand
    python -m benchmarks.teachers keep --home runs/teachers --command "…" --judged films/rewordings=31/50 …  # benchmarks/results

A corpus has one home, in which commands follow one another as a user would type them. What a part asked for, what came back whole, what was
kept, what was dropped and why, tokens and seconds are read out of the lake; a command that ends with a sentence and status 2, because
nothing was left of what it asked for, is a result too. Whether what was kept is right nobody can compute: that is judged by hand.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import evidence
from benchmarks.homes import overrides
from flows.report.yields import read_yields
from flows.stages.synthesis.sources import read_sources
from synth.config import CorpusConfig
from warehouse import Lake
from warehouse.public_data.catalogue import data_root

CORPORA = ("films", "countries", "pages")
"""The film graph, the country graph, and the countries' Factbook texts as pages, of which no graph is known."""
RUNS = Path("trajectories", "fireact", "hotpotqa_dev500_gpt35_ft.json")
"""Runs of others, under the folder of public data, whose steps get alternatives."""
PAGES = 40
"""Documents that facts are extracted from."""
WITHOUT_GRAPH = ("synth.webshaper.counts={}", "synth.demonstration_questions.counts={}")
DESCRIPTION = Path(__file__).parents[1] / "examples" / "tool_worlds" / "library.md"
COMMANDS = {
    "questions": ("synth", "webshaper"),
    "first_order": ("synth", "fas"),
    "imported": ("import", "fireact"),
    "higher_order": ("synth", "has"),
    "tool_worlds": ("synth", "toolworld"),
    "played": ("rollout", "--policy", "teacher", "--tasks", "split = 'train'", "--samples", "1", "--horizon", "2"),
    "extracted": ("extract",),
}
"""What is typed in a home, in this order."""
SETTINGS = (
    "synth.webshaper.counts={1=40}",
    "synth.direct_attempts={attempts=1}",
    'synth.rewording={relations="words", variants=6}',
    "synth.seeds={count=40, passages=2, max_tokens=400}",
    "synth.expander={count=8, attempts=1, horizon=6, max_action_tokens=200}",
    'synth.fas={plan_slices=30, plans="teacher", reasoner="teacher", judge=true, reasoning={1=100}, max_question_tokens=300, '
    "max_plan_tokens=150, max_reasoning_tokens=250}",
    "synth.has_count=20",
    "synth.has={mixture={teacher=1.0}}",
    f'synth.tool_worlds={{descriptions=["{DESCRIPTION}"], worlds=1, tools=8, records=8, tasks=16}}',
    "evaluation.suites={}",
    "evaluation.gate={}",
    "synth.teacher.kind=engine",
    'synth.teacher.engine={dtype="auto", threads=2, max_model_len=4096, max_num_seqs=64, kv_cache_gib=2}',
)
"""Sizes that two cores write in some minutes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "show", "keep"))
    parser.add_argument("--home", type=Path, required=True, help="the folder of all homes")
    parser.add_argument("--model", type=Path, default=Path("models/smollm2"))
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--routes", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--part", choices=list(_KEPT), help="of which kept items are shown")
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--judged", action="append", default=[], metavar="CORPUS/PART=RIGHT/OF")
    parser.add_argument("--command", action="append", default=[], help="what made the homes, for keep; repeatable")
    options = parser.parse_args()
    if options.do == "run":
        for corpus in options.corpora:
            run(options.home / corpus, corpus, options.model, options.routes)
    elif options.do == "show":
        for corpus in options.corpora:
            for number, text in enumerate(shown(options.home / corpus, options.part, options.items), 1):
                print(f"--- {corpus} {number}\n{text}")
    else:
        judged = {name: [int(count) for count in counts.split("/")] for name, _, counts in (each.partition("=") for each in options.judged)}
        rows = [row for corpus in options.corpora for row in rows_of(options.home / corpus, corpus)]
        print(evidence.keep("teachers", {"commands": options.command, "rows": rows, "judged": judged}))


def run(home: Path, corpus: str, model: Path, routes: Sequence[str]) -> None:
    """The commands that are asked for, one after the other; how each ended, and after how long, is a line of `ended.jsonl`."""
    home.mkdir(parents=True, exist_ok=True)
    settings = [f"corpus.kind={corpus}", f"policy.path={model}", f"synth.teacher.path={model}", *SETTINGS]
    if corpus == "pages":
        settings += [f"corpus.path={write_pages(home / 'corpus', 'countries', None)}", *WITHOUT_GRAPH]
    profile = ["--profile", "smollm2", *overrides(settings)]
    for name in routes:
        command = [sys.executable, "-m", "flows.cli", *COMMANDS[name]]
        if name == "extracted":
            pages = write_pages(home / "pages", "countries" if corpus == "pages" else corpus, PAGES)
            command += [str(pages), "--to", str(home / "extracted"), *profile]
        else:
            command += [str(data_root() / RUNS)] if name == "imported" else []
            command += ["--home", str(home / "home"), *(profile if command[3] == "synth" else [])]
        began = time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True)
        said = (ended.stderr.strip().splitlines() or [""])[-1].replace(f"{home.resolve()}/", "").replace(f"{home}/", "")
        line = {"route": name, "status": ended.returncode, "seconds": round(time.monotonic() - began, 1), "said": said[:500]}
        with (home / "ended.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps({"corpus": corpus, **line}), flush=True)


def write_pages(folder: Path, corpus: str, count: int | None) -> Path:
    """Documents of the corpus as Markdown files: `count` at random, or all."""
    documents = sorted(read_sources(CorpusConfig.model_validate({"kind": corpus}), seed=0).train.documents, key=lambda each: each.id)
    folder.mkdir(exist_ok=True)
    for number, document in enumerate(random.Random(0).sample(documents, count or len(documents))):
        (folder / f"{number:03}.md").write_text(f"# {document.title}\n\n{document.text[:2000]}\n")
    return folder


def rows_of(home: Path, corpus: str) -> Iterator[dict[str, Any]]:
    """Metrics of each part, and drop reasons of all parts by stage."""
    for place in (home / "home", home / "extracted"):
        if not (place / "lake").is_dir():
            continue
        with Lake(place, read_only=True) as lake:
            for part in read_yields(lake):
                yield {"corpus": corpus, "part": part.part, "figures": part.figures}
            dropped = lake.query("SELECT stage, kind, count(*)::INT AS n FROM failures GROUP BY ALL ORDER BY ALL").to_pylist()
            told = lake.query(
                "SELECT count(*)::INT AS n, sum(prompt_tokens + completion_tokens)::INT AS tokens FROM completions"
            ).to_pylist()
            played = lake.query("SELECT stage, outcome, count(*)::INT AS n FROM trajectories GROUP BY ALL ORDER BY ALL").to_pylist()
        yield {"corpus": corpus, "place": place.name, "dropped": dropped, "completions": told, "trajectories": played}
    ended = home / "ended.jsonl"
    yield {"corpus": corpus, "ended": [json.loads(line) for line in ended.read_text().splitlines()] if ended.exists() else []}


_TASK = "SELECT question || chr(10) || answers::VARCHAR || chr(10) || ({})::VARCHAR AS text FROM tasks WHERE {}"
_EXAMPLE = """
SELECT array_to_string(list_transform(list_filter(parts, lambda p: p.kind <> 'tools'), lambda p: p.kind || ': ' || p.text), chr(10))
    || chr(10) || 'of: '
    || coalesce((SELECT string_agg(left(d.text, 300), ' | ') FROM documents d WHERE list_contains(e.sources, d.id)), '') AS text
FROM examples e WHERE kind = '{}'
"""
_KEPT = {
    "rewordings": _TASK.format("provenance->'reworded_from'", "json_exists(provenance, '$.reworded_from')"),
    "seeds": _TASK.format("provenance->'projections'", "provenance->>'shape' = 'seed'"),
    "expansions": _TASK.format("provenance", "json_exists(provenance, '$.expanded_from')"),
    "tool_worlds": _TASK.format("provenance->'calls'", "environment = 'tool_world'"),
    "plans": _EXAMPLE.format("fas_plan"),
    "reasoning": _EXAMPLE.format("fas_reason"),
    "decisions": _EXAMPLE.format("has"),
    "facts": "SELECT subject || ' | ' || relation || ' | ' || object AS text FROM facts",
}


def shown(home: Path, part: str, items: int) -> list[str]:
    """Some of what is kept of a part, drawn at random, as text."""
    with Lake(home / ("extracted" if part == "facts" else "home"), read_only=True) as lake:
        texts = [row["text"] for row in lake.query(_KEPT[part]).to_pylist()]
    return random.Random(0).sample(sorted(texts), min(items, len(texts)))


if __name__ == "__main__":
    main()
