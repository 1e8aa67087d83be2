"""The size of the project has a ceiling: lines of code of each package, of the tests, benchmarks and tools.

Counted are lines without blanks, comments and docstrings. A commit that shrinks a part lowers its ceiling; one that
raises it says what a user gets for it.
"""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = {
    "packages/command_kit": 1_676,
    "packages/gpt2_train": 11_803,
    "packages/indexed_tokens": 1_388,
    "packages/webtext_audit": 3_568,
    "packages/webtext_prep": 24_169,
    "packages/webtext_run": 2_411,
    "tests": 37_920,
    "benchmarks": 5_914,
    "tools": 535,
}
"""By folder, lines."""


def lines_of_code(source: str) -> int:
    lines = [line.strip() for line in source.split("\n")]
    code, docstrings = {number for number, line in enumerate(lines, 1) if line and line[0] != "#"}, set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and (last := node.end_lineno or 0) > node.lineno:
            code |= set(range(node.lineno, last + 1))
        has_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if has_one and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code - docstrings)


def lines_below(folder: str) -> int:
    command = ["git", "ls-files", "-z", f"{folder}/*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    return sum(lines_of_code(file.read_text(encoding="utf-8")) for file in files if file.exists())


def test_what_counts_as_a_line():
    source = '"""A module."""\n\nimport os  # for its name\n\n\ndef name():\n    """Of the system."""\n    # its own\n'
    source += '    return f"""\n{os.name}\n"""\n\n\nA = 1\n"""Of a value: counted."""\n'
    assert lines_of_code(source) == 7


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="counts the files that git knows")
@pytest.mark.parametrize("folder", CEILINGS)
def test_no_part_is_larger_than_its_ceiling(folder):
    assert lines_below(folder) <= CEILINGS[folder], f"{folder} has grown: raise its ceiling only for what a user gets"


def test_each_package_has_a_ceiling():
    packages = {f"packages/{path.name}" for path in (ROOT / "packages").iterdir() if (path / "pyproject.toml").exists()}
    assert packages <= set(CEILINGS)
