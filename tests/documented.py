"""What the documentation shows, for the tests that run it."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = ROOT / "docs" / "CHANGELOG.md"
"""A link to the one of the project's folder; it names flags that went."""
PAGES = [
    ROOT / "README.md",
    *sorted(set((ROOT / "docs").rglob("*.md")) - {CHANGELOG}),
    *sorted((ROOT / "packages").glob("*/README.md")),
]


def blocks(text: str, *languages: str) -> Iterator[str]:
    """The fenced blocks of a page in one of `languages`."""
    for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        if language in languages:
            yield block


STARTS = ("./uvw ", "webtext ", "gpt2 ", "webtext-run ", "python ", "curl ", "zstdcat ", "eval ", "source ")
"""What a line that is a command begins with."""


def shown_lines(text: str) -> Iterator[str]:
    """The lines of a page that stand alone, in its order: in indented or fenced blocks, or behind `$ `."""
    language: str | None = None
    for line in text.replace("\\\n", " ").splitlines():
        if fence := re.match(r" *```(\w*)", line):
            language = fence[1] if language is None else None
        elif language in ("", "bash", "sh") or (language is None and line.startswith("    ")):
            yield line
        elif language == "text" and line.startswith("$ "):
            yield line[2:]


def commands_of(text: str, *, in_tables: bool = False) -> Iterator[str]:
    """The commands that a page shows, in its order: lines that stand alone, and where asked for cells of its tables."""
    whole = re.compile(r"`((?:\./uvw run|webtext|gpt2) [^`]* [^`]*)`")
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if in_tables and line.startswith("| "):
            lines[at] = "\n".join(f"    {found}" for found in whole.findall(line))
    for line in shown_lines("\n".join(lines)):
        command = re.sub(r" {2,}", " ", line.strip())
        if command.startswith(STARTS):
            yield command


def example(name: str) -> str:
    """The one Python example of docs/guide/ that defines the function or class `name`."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "guide").glob("*.md"))]
    (found,) = (block for page in pages for block in blocks(page, "python") if f" {name}(" in block)
    return found
