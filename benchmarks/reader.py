"""Make the policy `reader`, which reads before it learns to act: `python -m benchmarks.reader --to rl/policies/packaged/reader [--json]`.

A policy of the quickstart's size learns plain reading (`reading_texts`) from scratch; the same seed gives the same weights on one
machine. Printed are how many questions about texts that it has not read it answers word for word, and the digest of the folder.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rl.policies.config import PolicyConfig
from rl.policies.policy import create_policy, load_policy, save_policy
from rl.rollouts.config import RolloutConfig
from rl.supervised.config import CptConfig
from synth.worlds.names import NAME_WORDS
from synth.worlds.world import world_words
from warehouse.digests import digest_files, seed_from
from warehouse.records import Example, Part, PartKind

_KINDS = """
boat
    {s} was built by {o}. | The boat {s} left the yard of {o}. | {o} drew the plans of {s}.
    Who built {s}? | By whom was {s} built?
    {s} is kept by {o}. | It is {o} that looks after {s}. | The ropes of {s} are in the care of {o}.
    Who keeps {s}? | Who looks after {s}?
    {s} carries {o}. | In the hold of {s} lies {o}. | {s} is loaded with {o}.
    What does {s} carry? | What lies in the hold of {s}?
garden
    {s} was planted by {o}. | The hedges of {s} are the idea of {o}. | {o} laid out {s}.
    Who planted {s}? | Who laid out {s}?
    {s} grows around {o}. | In the middle of {s} stands {o}. | All paths of {s} go to {o}.
    What stands in the middle of {s}? | What does {s} grow around?
    {s} is watered from {o}. | The water of {s} comes from {o}. | {o} feeds the ponds of {s}.
    Where does the water of {s} come from? | What is {s} watered from?
song
    {s} was written by {o}. | The words of {s} are by {o}. | {o} wrote {s} on a train.
    Who wrote {s}? | Whose words are those of {s}?
    {s} was first sung by {o}. | The voice in {s} is that of {o}. | {o} sang {s} before anybody else.
    Who sang {s} first? | Whose voice is heard in {s}?
    {s} tells of {o}. | The story in {s} is about {o}. | {o} is what {s} remembers.
    What does {s} tell of? | What is {s} about?
tower
    {s} is guarded by {o}. | The keys of {s} hang at the belt of {o}. | {o} stands watch on {s}.
    Who guards {s}? | Who has the keys of {s}?
    {s} looks over {o}. | From {s} one sees {o}. | {o} lies at the feet of {s}.
    What does {s} look over? | What is seen from {s}?
    {s} is named after {o}. | The name of {s} recalls {o}. | {o} gave {s} its name.
    Whom is {s} named after? | Whose name does {s} recall?
horse
    {s} is ridden by {o}. | In the saddle of {s} sits {o}. | {o} rides {s} every morning.
    Who rides {s}? | Who sits in the saddle of {s}?
    {s} is trained by {o}. | {s} learnt to jump from {o}. | {o} trains {s} with patience.
    Who trains {s}? | From whom did {s} learn to jump?
    {s} sleeps at {o}. | The stable of {s} is {o}. | At night {s} is found at {o}.
    Where does {s} sleep? | Which stable is that of {s}?
painting
    {s} was painted by {o}. | The brush behind {s} was held by {o}. | {o} finished {s} in a week.
    Who painted {s}? | Who held the brush behind {s}?
    {s} hangs at {o}. | Visitors of {o} admire {s}. | {s} has its wall at {o}.
    Where does {s} hang? | On whose wall is {s}?
    {s} shows {o}. | In {s} one recognises {o}. | {o} can be seen in {s}.
    What does {s} show? | What can be seen in {s}?
club
    {s} meets at {o}. | The members of {s} gather at {o}. | {o} opens its doors to {s}.
    Where does {s} meet? | Where do the members of {s} gather?
    {s} is chaired by {o}. | At the table of {s} {o} speaks last. | The hammer of {s} belongs to {o}.
    Who chairs {s}? | Who speaks last at the table of {s}?
    {s} fights {o}. | The rival of {s} is {o}. | Every summer {s} plays against {o}.
    Who is the rival of {s}? | Against whom does {s} play?
"""
"""Each kind, and for each of its relations a line of sentences and a line of questions."""

_FORMS = ("Question: {q} Answer: {a}.", "Q: {q} A: {a}.", "{q} {a}.", "{q} It is {a}.", '"{q}" "{a}."', "Asked «{q}», say: {a}.")
_QUESTIONS_BEFORE = 0.3
"""Share of the texts whose questions stand before the passage, to be answered after it."""
_MERE_TEXT = 0.15
"""Share of the texts that ask nothing."""
_SYLLABLES = ("ba", "do", "fe", "ga", "hi", "ka", "lo", "mi", "na", "pe", "ra", "so", "ta", "vu", "wi", "zo")


@dataclass(frozen=True, slots=True)
class _Relation:
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


def _read_kinds(table: str) -> dict[str, tuple[_Relation, ...]]:
    kinds: dict[str, tuple[_Relation, ...]] = {}
    for block in re.split(r"\n(?=\S)", table.strip()):
        name, *lines = (line.strip() for line in block.splitlines())
        pairs = zip(lines[::2], lines[1::2], strict=True)
        kinds[name] = tuple(_Relation(tuple(sentences.split(" | ")), tuple(questions.split(" | "))) for sentences, questions in pairs)
    return kinds


KINDS: dict[str, tuple[_Relation, ...]] = _read_kinds(_KINDS)


def reading_texts(count: int, seed: int) -> Iterator[str]:
    """`count` texts, each of one to four things, two or three facts of each, and up to three questions; the same for the same seed."""
    for number in range(count):
        yield _text(random.Random(seed_from("reading", seed, number)))


def _text(rng: random.Random) -> str:
    facts = [fact for kind in rng.choices(sorted(KINDS), k=rng.choice((1, 2, 2, 3, 4))) for fact in _facts(kind, rng)]
    passage = " ".join(rng.choice(relation.sentences).format(s=s, o=o) for _, relation, s, o in facts)
    if rng.random() < _MERE_TEXT:
        return passage
    form, asked = rng.choice(_FORMS), rng.sample(facts, rng.randint(1, min(3, len(facts))))
    if rng.random() < _QUESTIONS_BEFORE:
        _, relation, s, o = asked[0]
        question = rng.choice(relation.questions).format(s=s)
        return f"{question} {passage} {form.format(q=question, a=o)}"
    answered = (form.format(q=rng.choice(relation.questions).format(s=s), a=o) for _, relation, s, o in asked)
    return " ".join([passage, *answered])


def _facts(kind: str, rng: random.Random) -> Sequence[tuple[str, _Relation, str, str]]:
    subject = _name(rng)
    chosen = rng.sample(KINDS[kind], rng.choice((2, 3)))
    return [(kind, relation, subject, _name(rng)) for relation in chosen]


def _name(rng: random.Random) -> str:
    length = rng.choice((1, 2, 2, 3))
    words = rng.sample(NAME_WORDS, length)
    if length == 2:
        words[rng.randrange(2)] = "".join(rng.choices(_SYLLABLES, k=2)).capitalize()
    return " ".join(words)


SEED = 0
DIGEST = "071f43eddae546b4"
"""Of the weights in `rl/policies/packaged/reader`, which this module made with `SEED` and `TOKENS`."""
TOKENS = 3_000_000
TEXTS_A_TOKEN = 1 / 55
"""Texts that hold a token: more are made than needed, and training ends at `--tokens`."""
ASKED = 400
"""Questions that it is tried on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    figures = make(options.to, options.tokens, options.seed)
    figures |= {"read": read_share(options.to, ASKED), "digest": digest_files(options.to), "seconds": time.perf_counter() - started}
    print(json.dumps(figures) if options.json else "\n".join(f"{name:12} {value}" for name, value in figures.items()))


def make(folder: Path, tokens: int, seed: int) -> dict[str, Any]:
    """Train the policy, and write it into `folder` in bfloat16; returns what training measured."""
    from flows.stages.training import encode
    from rl.supervised.cpt import train_cpt

    texts = list(reading_texts(int(tokens * TEXTS_A_TOKEN), seed))
    with TemporaryDirectory(dir=Path.cwd()) as draft:
        begun = create_policy(PolicyConfig(), texts[:20_000], world_words(), Path(draft) / "begun", seed_from(seed, "policy"))
        examples = [Example(str(number), "document", (Part(PartKind.DOCUMENT, text, True),), ()) for number, text in enumerate(texts)]
        encoded, _ = encode(RolloutConfig(), begun, examples)
        config = CptConfig(rows_per_step=4, rows_per_pass=4, optimizer="muon", learning_rate=2e-3, decay_share=0.2, max_tokens=tokens)
        result = train_cpt(begun, encoded, Path(draft) / "trained", config, seed_from(seed, "reader"), _print_metric)
        model, tokenizer = load_policy(result.path, torch.bfloat16)
        save_policy(model, tokenizer, folder)
    return {name: result.metrics[name] for name in ("steps", "loss")}


def read_share(folder: Path, count: int) -> float:
    """The share of questions about unseen texts that the policy goes on to answer word for word, greedily."""
    loaded: tuple[Any, Any] = load_policy(folder)
    model, tokenizer = loaded
    right = 0
    for prompt, answer in islice(_asked(), count):
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            out = model.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        said = tokenizer.decode(out[0, ids.size(1) :]).strip()
        right += said.startswith(f"{answer}.")
    return right / count


def _asked() -> Iterator[tuple[str, str]]:
    for text in reading_texts(1_000_000, seed=10**6):
        found = re.fullmatch(r"(.* Answer:) ([^.]+)\.", text)
        if found is not None:
            yield found[1], found[2]


def _print_metric(step: int, figures: dict[str, float]) -> None:
    if "loss" in figures and step % 100 == 0:
        print(f"step {step}  loss {figures['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
