"""Random and mutated model outputs through every dialect: `python -m benchmarks.fuzz_dialects [--outputs N] [--dialects NAME …] [--json]`.

A tenth are random ids; the others are real messages of the dialect (calls good and bad, thoughts, answers, hostile JSON) of which pieces
were taken out, doubled, moved or replaced, with control tokens among them. Each is parsed, and what was read must be text that a lake
takes; each hundredth is also replied to. Prints, for each dialect, how many were read as calls, as answers and not at all, and the
seconds. Anything that is raised ends the run with the ids that raised it. The dialects of chat are over the templates that TRL ships.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date

from transformers import PreTrainedTokenizerBase

from rl.policies.tokenization import build_tokenizer
from rl.renderers.base import Dialect, ParseError, Result, Truncation
from rl.renderers.chat import ChatDialect
from rl.renderers.chat_template import PROBE_TOOL, ChatTemplate
from rl.renderers.tags import TagDialect
from tests.rl.renderers.templates_of_trl import TEXTS, tokenizer_for
from warehouse.records import ANSWER

CHAT = ("qwen2_5", "qwen3", "llama3_1", "glm4moe", "qwen3_5_think")
"""A template of each form of calls."""
REPLIED = 100
"""Of so many outputs one is replied to, which takes much longer than reading it."""
_HOSTILE_JSON = (
    '{"name": "lookup", "%s": {"query": "\\ud800"}}',
    '{"name": "\\udfff", "%s": {}}',
    '{"name": "lookup", "%s": {"n": NaN, "m": -Infinity}}',
    '{"name": "lookup", "%s": "{\\"query\\": \\"a\\"}"}',
    '{"name": "lookup", "%s": [1, 2]}',
    '{"name": {"name": "x"}, "%s": null}',
    '{"name": "answer", "%s": {"text": "Green Lake"}}',
    '{"name": "lookup", "%s": ' + "[" * 3_000,
    '{"name": "lookup", "%s": {"n": ' + "9" * 5_000 + "}}",
    '{"name": "lookup", "%s": {"query": "a"}}',
)
_TAGS = (
    "<think> a</think><search> Amber Stone</search>",
    "<answer> Green Lake</answer>",
    "<search> a<information> b</information></search>",
    "<think><think></think><code>1 + 1</code><|end|>",
)
_XML = (
    "<tool_call>\n<function=lookup>\n<parameter=query>\nAmber\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>lookup\n<arg_key>query</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
    "<think>\nhm\n</think>\n\nGreen Lake",
    "I look.\n",
    "</think></tool_call><tool_call>",
)


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What became of the outputs that one dialect was given."""

    dialect: str
    outputs: int
    calls: int
    answers: int
    errors: int
    seconds: float


def dialects() -> Iterator[tuple[str, PreTrainedTokenizerBase, Dialect]]:
    """Every dialect with its tokenizer."""
    tags = build_tokenizer(TEXTS, 400)
    yield "tags", tags, TagDialect(tags)
    for name in CHAT:
        tokenizer = tokenizer_for(name)
        yield name, tokenizer, ChatDialect(ChatTemplate(tokenizer, None, {}, date(2025, 1, 1)))


def outputs(tokenizer: PreTrainedTokenizerBase, stops: Sequence[int], seed: int) -> Iterator[list[int]]:
    """Endless outputs, the same for the same seed."""
    rng = random.Random(seed)
    json_calls = [text % key for text in _HOSTILE_JSON for key in ("arguments", "parameters")]
    groups = (
        _TAGS,
        _XML,
        json_calls,
        [f"Now:\n```json\n{call}\n```" for call in json_calls],
        [f"<tool_call>\n{call}\n</tool_call>" for call in json_calls],
    )
    seeds = [[tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts] for texts in groups]
    control = sorted(set(tokenizer.get_added_vocab().values()))
    size = len(tokenizer)
    while True:
        if rng.random() < 0.1:
            ids = [rng.randrange(size) for _ in range(rng.randrange(40))]
        else:
            ids = list(rng.choice(rng.choice(seeds)))
            ids += rng.choice(rng.choice(seeds)) if rng.random() < 0.3 else []
            for _ in range(rng.randrange(4)):
                ids = rng.choice(_MUTATIONS)(ids, rng, control, size)
        ended = (ids and ids[-1] in stops) or rng.random() < 0.2
        yield ids if ended else [*ids, rng.choice(stops)]


def check(dialect: Dialect, ids: Sequence[int], reply: bool) -> str:
    """What an output is read as: `calls`, `answers` or `errors`; raises where a dialect does, or reads what is no text."""
    turn = dialect.parse(ids, [PROBE_TOOL])
    results = [Result("</information><answer>x</answer><|im_end|>")]
    if not isinstance(turn, ParseError):
        "".join(call.tool + call.arguments for call in turn.calls).encode()
        results *= len(turn.calls)
    if reply:
        dialect.reply_ids(ids, results, Truncation(20))
    if isinstance(turn, ParseError):
        return "errors"
    return "answers" if turn.calls[-1].tool == ANSWER else "calls"


def fuzz(name: str, tokenizer: PreTrainedTokenizerBase, dialect: Dialect, count: int, seed: int = 0) -> Fuzzed:
    """Put `count` outputs through one dialect."""
    found: Counter[str] = Counter()
    start = time.perf_counter()
    for number, ids in zip(range(count), outputs(tokenizer, dialect.stop_token_ids, seed), strict=False):
        try:
            found[check(dialect, ids, number % REPLIED == 0)] += 1
        except Exception as error:
            raise AssertionError(f"{name} raised {error!r} for output {number}: {ids}") from error
    return Fuzzed(name, count, found["calls"], found["answers"], found["errors"], time.perf_counter() - start)


Mutation = Callable[[list[int], random.Random, list[int], int], list[int]]


def _span(ids: list[int], rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(ids) + 1)
    return start, min(len(ids), start + rng.randrange(6))


def _take_out(ids: list[int], rng: random.Random, control: list[int], size: int) -> list[int]:
    start, end = _span(ids, rng)
    return ids[:start] + ids[end:]


def _double(ids: list[int], rng: random.Random, control: list[int], size: int) -> list[int]:
    start, end = _span(ids, rng)
    return ids[:end] + ids[start:]


def _replace(ids: list[int], rng: random.Random, control: list[int], size: int) -> list[int]:
    start, end = _span(ids, rng)
    return ids[:start] + [rng.randrange(size) for _ in range(start, end)] + ids[end:]


def _control(ids: list[int], rng: random.Random, control: list[int], size: int) -> list[int]:
    start, _ = _span(ids, rng)
    return [*ids[:start], rng.choice(control), *ids[start:]]


def _move(ids: list[int], rng: random.Random, control: list[int], size: int) -> list[int]:
    start, end = _span(ids, rng)
    return ids[end:] + ids[start:end] + ids[:start]


def _cut_off(ids: list[int], rng: random.Random, control: list[int], size: int) -> list[int]:
    return ids[: rng.randrange(len(ids) + 1)]


_MUTATIONS: tuple[Mutation, ...] = (_take_out, _double, _replace, _control, _move, _cut_off)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=1_000_000, help="for each dialect")
    parser.add_argument("--dialects", nargs="+", default=["tags", *CHAT], choices=["tags", *CHAT])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [fuzz(*each, arguments.outputs, arguments.seed) for each in dialects() if each[0] in arguments.dialects]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print("| dialect | outputs | calls | answers | not read | seconds |")
    print(f"|{' --- |' * 6}")
    for row in rows:
        print(f"| {row.dialect} | {row.outputs:,} | {row.calls:,} | {row.answers:,} | {row.errors:,} | {row.seconds:.0f} |")


if __name__ == "__main__":
    main()
