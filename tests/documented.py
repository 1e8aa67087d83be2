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


def example(name: str) -> str:
    """The one Python example of docs/guide/ that defines the function or class `name`."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "guide").glob("*.md"))]
    (found,) = (block for page in pages for block in blocks(page, "python") if f" {name}(" in block)
    return found
