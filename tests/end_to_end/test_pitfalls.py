"""What went wrong for people before is written down, and each line of it has a test."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def numbers_named_by_tests() -> set[int]:
    """The numbers after `Pitfall` or `Pitfalls` in the docstrings of test functions."""
    found: set[int] = set()
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for source in (source for source in sources if "Pitfall" in source):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for numbers in re.findall(r"Pitfalls? ((?:\d+(?:, | and )?)+)", ast.get_docstring(node) or ""):
                    found |= {int(number) for number in re.findall(r"\d+", numbers)}
    return found


def test_every_line_has_a_test_that_names_it():
    lines = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8").splitlines()
    listed = [int(match.group(1)) for line in lines if (match := re.match(r"\| (\d+) \|", line))]
    assert listed == list(range(1, 35))
    assert set(listed) - numbers_named_by_tests() == set()
