"""For each home and kind named on standard input: a forked process that does that synthesis; its id and then its exit status are printed.

Forked from a process that has imported everything, so that a kill hits work and not the loading of libraries.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

from flows.context import open_context
from flows.pipeline import run_attempt
from flows.plan import SynthesisKind, synthesis_id
from flows.stages.synthesis.stage import synthesise


def work(home: Path, kind: SynthesisKind) -> None:
    with open_context(home) as context:
        run_attempt(context.lake, synthesis_id(1, kind), "synth", 1, {}, lambda run: synthesise(context, run, 1, kind))


print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        kind, _, home = line.strip().partition(" ")
        work(Path(home), cast(SynthesisKind, kind))
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
