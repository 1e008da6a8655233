"""A right answer counts and a wrong one fails, whatever a model wraps around it: each kind of wrapping by each verifier."""

from __future__ import annotations

import json

import pytest

from eval.graders.rows import verify_rows
from eval.graders.text import final_answer
from eval.graders.verifiers import GRADERS
from rl.envs.code import PythonEnvironment, PythonOptions
from warehouse.records import Outcome
from warehouse.replies import split_reasoning

ANSWERS = {
    "qa_em": ("Ann Berg", "Ann Borg"),
    "qa_f1": ("Green Lake", "Blue Lake"),
    "squad_em": ("Green Lake", "Blue Lake"),
    "set": ("red; blue", "red; green"),
    "gsm8k": ("1,234", "1,235"),
    "number": ("12.5", "12.6"),
    "date": ("20 July 1969", "21 July 1969"),
    "math": ("12", "13"),
}
REASONING = [
    "<think>one and two</think>{}",
    "one and two\n</think>\n\n{}",
    "[THINK]one and two[/THINK]{}",
    "<thinking>one and two</thinking>\n{}",
    "<reasoning>one and two</reasoning>\n{}",
    '<think>"</think>" ends this</think>{}',
    "<think>\n```\n</think>\n```\nso\n</think>\n{}",
    "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>final<|message|>{}",
    "◁think▷one◁/think▷{}",
    "<think>a</think>\n<think>b</think>\n{}",
]
MARKDOWN = [
    "**{}**", "`{}`", "**Answer:** {}", "**Answer: {}**", "**Final Answer:** {}", "### Final Answer\n\n{}", "**Answer:**\n\n{}",
    "> Answer: {}", "- **Answer:** {}",
]  # fmt: skip
LABELS = [
    "Answer: {}", "The answer is: {}.", "So the final answer is {}.", "Therefore, the correct answer is **{}**.",
    "We look it up.\n\nAnswer: {}", "Final Answer: The final answer is {}. I hope it is correct.", "答案：{}",
    "Answer: nothing yet\nAnswer: {}",
]  # fmt: skip
TAGS = [
    "<answer>{}</answer>", "<answer>\n{}\n</answer>", "<think>one</think>\n<answer>{}</answer>", "<answer>**{}**</answer>",
    "I found it.\n<answer>{}</answer>", "<answer>{0}</answer>\n<answer>{0}</answer>", "<answer>Answer: {}</answer>",
    "<think>x</think><answer>The final answer is {}.</answer>",
]  # fmt: skip
FENCES = [
    "```\n{}\n```", "```text\n{}\n```", "~~~\n{}\n~~~", "<think>one</think>\n```\n{}\n```", "```\n{}", "```answer\n{}\n```\n",
    "```\nAnswer: {}\n```", "```markdown\n**Answer:** {}\n```",
]  # fmt: skip
KINDS = {"reasoning": REASONING, "Markdown": MARKDOWN, "labels": LABELS, "tags": TAGS, "fences": FENCES}


def verdict(kind: str, gold: str, pred: str) -> Outcome:
    return next(iter(verify_rows(kind, [{"id": 0, "gold": gold, "pred": pred}]))).verdict


@pytest.mark.parametrize("verifier", ANSWERS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrapped_around_an_answer_changes_no_verdict(kind: str, verifier: str) -> None:
    right, wrong = ANSWERS[verifier]
    forms = KINDS[kind]
    assert [form for form in forms if verdict(verifier, right, form.format(right)) is not Outcome.SUCCESS] == []
    assert [form for form in forms if verdict(verifier, right, form.format(wrong)) is not Outcome.FAILURE] == []


FAILURES = (
    "<think>{right}",
    "<think>{right}</think>",
    "<answer>{right}</answer><answer>{wrong}</answer>",
    "<answer>{right}</answer><answer>{right}</answer> {wrong}",
    "\\boxed{{{right}}} or \\boxed{{{wrong}}}",
    "Answer: {right}\nAnswer: {wrong}",
    "<think>The answer is {right}.</think>{wrong}",
    "The answer is not {right}.",
)


@pytest.mark.parametrize("verifier", ANSWERS)
def test_what_is_not_a_right_answer_stays_a_failure(verifier: str) -> None:
    right, wrong = ANSWERS[verifier]
    for reply in FAILURES:
        assert verdict(verifier, right, reply.format(right=right, wrong=wrong)) is Outcome.FAILURE, reply


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("<think>Rome", None),
        ("", None),
        ("I doubt the answer is Rome.", "I doubt the answer is Rome."),
        ("x**2 + y**2", "x**2 + y**2"),
        ("Use `</think>` to close.", "Use `</think>` to close."),
    ],
)
def test_what_is_read(reply: str, read: str | None) -> None:
    assert final_answer(reply) == read


@pytest.mark.parametrize(
    ("verifier", "pred", "read"),
    [
        ("qa_em", "**Answer:** Ann Borg", "Ann Borg"),
        ("gsm8k", "no idea", None),
        ("date", "last summer", None),
        ("math", "So $x = 4$.", "x = 4"),
    ],
)
def test_a_failure_says_what_was_read(verifier: str, pred: str, read: str | None) -> None:
    (judged,) = verify_rows(verifier, [{"id": 0, "gold": ANSWERS[verifier][0], "pred": pred}])
    assert (judged.verdict, judged.read) == (Outcome.FAILURE, read)


ADD = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"
PROGRAMS = [
    "{}", "```python\n{}\n```", "```\n{}\n```", "~~~python\n{}\n~~~", "Here it is:\n```python\n{}\n```\nDone.", "Here:\n```python\n{}",
    "{}\n```", '```python title="add.py"\n{}\n```', "```{{.python}}\n{}\n```",
    "```python\n{}\n```\nUse it:\n```python\nprint(add(1, 2))\n```", "```python\n{}\n```\nIt prints:\n```\n3\n```",
    "```python\n{}\n```\nRun:\n```bash\npython add.py\n```",
    "Draft:\n```python\ndef add(a, b):\n    return 0\n```\nFinal:\n```python\n{}\n```",
    "<think>```python\ndef add(a, b):\n    return 0\n```</think>\n```python\n{}\n```", "<think>add them</think>\n{}", "\ufeff{}",
]  # fmt: skip


def passes(reply: str) -> bool:
    (judged,) = verify_rows("code", [{"id": 0, "gold": {"test_list": ["assert add(1, 2) == 3"]}, "pred": reply}])
    return judged.value == 1.0


PIECES = [
    "```python\ndef help_add(a, b):\n    return a + b\n```\nThen:\n```python\ndef add(a, b):\n    return help_add(a, b)\n```",
    '```python\ndef add(a, b):\n    """Add.\n\n    ```\n    add(1, 2)\n    ```\n    """\n    return a + b\n```',
    '```python\n"""Add.\n```\nadd(1, 2)\n```\n"""\ndef add(a, b):\n    return a + b\n```',
    "1. So:\n   ```python\n   def add(a, b):\n       return a + b\n   ```",
    "> ```python\n> def add(a, b):\n>     return a + b\n> ```",
]


@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_a_program_counts_in_every_form(every: int) -> None:
    assert [form for form in (*PROGRAMS, *PIECES)[::every] if not passes(form if form in PIECES else form.format(ADD))] == []
    assert [form for form in PROGRAMS[::every] if passes(form.format(WRONG))] == []


HELPER = "def help_add(a, b):\n    return 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [
        f"```python\n{ADD}\n```\nA test:\n```python\ndef test_add():\n    assert add(1, 2) == 3\n```",
        f"```python\n{HELPER}\n```\n```python\n{ADD}\n```",
    ],
)
def test_what_is_read_is_the_program_that_was_judged(reply: str) -> None:
    gold = {"test_list": ["assert add(1, 2) == 3"]}
    (row,) = verify_rows("code", [{"id": 0, "gold": gold, "pred": reply}])
    judged = GRADERS["code"].judge(reply, [json.dumps(gold)], {})
    assert (row.value, row.read) == (judged.value, judged.read) == (1.0, ADD)


@pytest.mark.slow
@pytest.mark.parametrize("pred", ["    return a + b", "```python\nreturn a + b\n```", f"```python\n{ADD}\n```"])
def test_completions_count_by_body_and_by_definition(pred: str) -> None:
    prompt = 'def add(a, b):\n    """Add two numbers."""\n'
    gold = {"prompt": prompt, "test": "def check(candidate):\n    assert candidate(1, 2) == 3", "entry_point": "add"}
    (right,) = verify_rows("code", [{"id": 0, "gold": gold, "pred": pred}])
    (wrong,) = verify_rows("code", [{"id": 0, "gold": gold, "pred": pred.replace("a + b", "a - b")}])
    assert (right.value, wrong.value) == (1.0, 0.0)


@pytest.mark.parametrize("form", ["{}", "Here it is:\n```python\n{}\n```\nDone.", PROGRAMS[-4]])
async def test_the_environment_runs_the_same_program(form: str) -> None:
    environment = PythonEnvironment(PythonOptions())
    assert await environment.code(form.format("def add(a, b):\n    return a + b\nprint(add(20, 22))")) == "42"


SAME = [
    ("Ann\u200b Berg", "Ann Berg"), ("\ufeffAnn Berg", "Ann Berg"), ("Ann Ber\u00adg", "Ann Berg"), ("Ａｎｎ Ｂｅｒｇ", "Ann Berg"),
    ("STRASSE", "Straße"), ("ΟΔΌΣ", "Οδός"), ("İSTANBUL", "istanbul"), ("《红楼梦》", "红楼梦"), ("卡尔・马克思", "卡尔·马克思"),
    ("J. K. Rowling", "J.K. Rowling"), ("ﬁnal", "final"), ("Henry Ⅷ", "Henry VIII"),
]  # fmt: skip
OTHER = [("10²", "102"), ("½", "12"), ("①", "1"), ("x₂", "x2"), ("Ann Berg", "AnnBerg"), ("C++", "C"), ("3.5", "35"), ("-5", "5")]


@pytest.mark.parametrize("verifier", ["qa_em", "qa_f1", "set"])
def test_one_spelling_of_text(verifier: str) -> None:
    """But for `squad_em`, which is SQuAD's script to the letter."""
    for one, other in SAME:
        assert verdict(verifier, one, other) is verdict(verifier, other, one) is Outcome.SUCCESS, (one, other)
    assert [pair for pair in OTHER if verdict(verifier, *pair) is Outcome.SUCCESS] == []


@pytest.mark.parametrize("verifier", ["gsm8k", "number", "math", "date"])
def test_numbers_in_other_scripts_and_with_invisible_marks(verifier: str) -> None:
    right, wrong = ("1969-07-20", "1969-07-21") if verifier == "date" else ("12", "13")
    digits = {ord(str(digit)): chr(0xFF10 + digit) for digit in range(10)}
    for form in ("{}", "\u200b{}", "{}\ufeff", "\u200e{}", "Answer: \u00ad{}", "答案：{}"):
        for script in ({}, digits):
            assert verdict(verifier, right, form.format(right.translate(script))) is Outcome.SUCCESS
            assert verdict(verifier, right, form.format(wrong.translate(script))) is Outcome.FAILURE


@pytest.mark.parametrize("verifier", ["gsm8k", "math"])
def test_figures_that_touch_letters(verifier: str) -> None:
    for reply in ("答案是12", "답은12개", "ราคา12บาท", "יש12"):
        assert verdict(verifier, "12", reply) is Outcome.SUCCESS
        assert verdict(verifier, "13", reply) is Outcome.FAILURE


@pytest.mark.parametrize(
    ("text", "opened", "parts"),
    [
        ("a</think>b", False, ("a", "b")),
        ("a", True, ("a", "")),
        ("a</think>b", True, ("a", "b")),
        ('<tool_call>\n{"name": "w", "arguments": {"t": "use </think> here"}}\n</tool_call>', False, None),
        ('{"name": "w", "arguments": {"t": "</think>!"}}', False, None),
        ("Write `</think>` at the end.", False, None),
        ("```\n</think>\n```\nas shown", False, None),
        ("The tag <think> opens.", False, None),
    ],
)
def test_reasoning_is_split_where_it_ends(text: str, opened: bool, parts: tuple[str, str] | None) -> None:
    assert split_reasoning(text, opened) == (parts or ("", text))
