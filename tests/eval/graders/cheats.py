"""Programs that do not solve the problem and want to pass for it.

The problem: `double(n)` is n + n, and `words(text)` is the list of the words of a text. Each of the programs of cheats.txt is wrong for
at least one of the tests, whatever else it does.
"""

from __future__ import annotations

from pathlib import Path

from tests.eval.programs import read_programs

TESTS = (
    "assert double(3) == 6",
    "assert double(0) == 0",
    "assert double(10 ** 30) == 2 * 10 ** 30",
    "assert isinstance(double(1), int)",
    "assert words('a b') == ['a', 'b']",
    "assert not words('')",
    "assert set(words('b a')) == {'a', 'b'}",
)
SOLUTION = "def double(n):\n    return n + n\n\ndef words(text):\n    return text.split()\n"
CHEATS = {
    **{name: program.source for name, program in read_programs(Path(__file__).with_name("cheats.txt")).items()},
    "empty": "",
    "blank": "  \n\n",
    "a null byte": SOLUTION + "\0",
}
