"""Text as Markdown, of which a reader of CommonMark 0.31 with the tables of GitHub's shows every sign and every cell.

What a sign would mean to such a reader it loses by a backslash before it, and only where it would mean something:
`snake_case`, `2 * 3` and `a < b` stay as they are. Formulas between dollars are LaTeX and stay, too, as pandoc, GitHub
and Jupyter read them: where a dollar opens one and where one closes it is said in pandoc's manual
(`tex_math_dollars`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

DEEPEST = 8
"""Lists and quotes inside each other; what lies deeper is written as if it lay no deeper. Readers have limits of their
own: markdown-it's preset for CommonMark reads 20 levels, of which a list has two, and drops what lies deeper."""
LARGEST_NUMBER = 999_999_999
"""Of an item: a number has at most nine digits (CommonMark 0.31, 5.2)."""
SPARSE = 10
"""Rows of a table with so many places for each cell end with their last cell; a reader adds empty ones."""

_SIGN = re.compile(
    r"(?P<formula>(?<![\\$\w])(?P<dollars>\$\$?)(?![\s$])[^$\n]*[^$\s](?P=dollars)(?![\d$]))"
    r"|(?P<run>\*+|_+|~+)"
    r"|\\(?=[!-/:-@\[-`{-~]|$)|`|<(?=[A-Za-z/!?]|[^\s<>]+@)|&(?=#\d{1,7};|#[xX][\da-fA-F]{1,6};|[A-Za-z][A-Za-z\d]*;)"
    r"|\](?=\()",
    re.MULTILINE,
)
"""A formula, a run of signs that may be emphasis, or a sign that means something by itself: a backslash before
punctuation or at the end of a line, code, a tag or an address, an entity, a link."""
_LINE_START = re.compile(
    r"^(?:(?P<number>\d{1,9})(?=[.)](?:\s|$))"
    r"|(?=\#{1,6}(?:\s|$)|[-+*](?:\s|$)|>|~~~|(?:(?:-[ ]*)+|(?:_[ ]*){3,}|(?:\*[ ]*){3,})$"
    r"|\[(?:[ xX]\]\s|[\s\S]{1,999}?\]:)"
    r"|(?<=\n)(?:=+[ ]*$|\|?[ ]*:?-+:?[ ]*(?:\|[ ]*:?-+:?[ ]*)*\|?[ ]*$)))",
    re.MULTILINE,
)
"""Where a line begins like an item, a heading, a quote, code, a rule, a task, what a link refers to; or below another
like what makes that a heading or a table."""
_CLOSING = re.compile(r"(?:^|(?<=\s))#(?=#*$)")
"""Signs at the end of a heading that close it."""
_TAG_IN_FORMULA = re.compile(r"<(?=[A-Za-z/!?])")


def escaped(text: str) -> str:
    """A text of which a reader shows every sign, in a line that has begun, such as a heading or a cell."""
    if _SIGN.search(text) is None:
        return text
    paired = _paired(text)

    def written(found: re.Match[str]) -> str:
        if found["formula"]:
            return _TAG_IN_FORMULA.sub("< ", found[0])
        if not found["run"]:
            return f"\\{found[0]}"
        return found[0] if found[0][0] not in paired or _opens_closes(found) == (False, False) else _all_escaped(found)

    return _SIGN.sub(written, text)


def _all_escaped(run: re.Match[str]) -> str:
    return "".join(f"\\{sign}" for sign in run[0])


def _opens_closes(run: re.Match[str]) -> tuple[bool, bool]:
    """Whether a run of signs may open emphasis, and whether it may close it; true where readers differ."""
    before, after = run.string[: run.start()][-1:], run.string[run.end() : run.end() + 1]
    if run[0][0] == "_" and before.isalnum() and after.isalnum():
        return False, False
    return bool(after.strip()), bool(before.strip())


def _paired(text: str) -> set[str]:
    """The signs of which one may open what a later one closes."""
    opened, paired = set(), set()
    for found in _SIGN.finditer(text):
        if found["run"]:
            sign = found[0][0]
            opens, closes = _opens_closes(found)
            if closes and sign in opened:
                paired.add(sign)
            if opens:
                opened.add(sign)
    return paired


def paragraph(text: str) -> list[str]:
    """The lines of a paragraph; where the text has a line end, a reader shows one."""
    stripped = "\n".join(line.strip() for line in text.split("\n"))
    marked = _LINE_START.sub(lambda found: f"{found['number'] or ''}\\", escaped(stripped))
    # Not a backslash, which is punctuation: a sign before it might open emphasis.
    return re.sub(r"(?<=[^\n])\n(?=[^\n])", "  \n", marked).split("\n")


def heading(text: str, level: int) -> list[str]:
    """A heading, which has one line."""
    line = _CLOSING.sub(r"\\#", escaped(" ".join(text.split())))
    return [f"{'#' * level} {line}"]


def code(text: str, language: str) -> list[str]:
    """Code between fences that are longer than any run of their sign in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}{language}", *text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), fence]


def table(rows: Sequence[dict[int, str]], columns: int) -> list[str]:
    """A table by the texts of its rows' cells at their columns; the first row is its header."""

    def line(row: dict[int, str], width: int) -> str:
        cells = (escaped(" ".join(row.get(column, "").split())).replace("|", "\\|") for column in range(width))
        return f"| {' | '.join(cells)} |"

    is_sparse = columns * len(rows) > SPARSE * sum(map(len, rows))
    lines = [line(row, max(row) + 1 if is_sparse and at else columns) for at, row in enumerate(rows)]
    return [lines[0], "|---" * columns + "|", *lines[1:]]


@dataclass(frozen=True)
class Container:
    """An item of a list, or a quote.

    Attributes:
        element: its number on the page.
        list: of an item the element of its list.
        number: of an item of an ordered list; else None.
        is_quote: whether it is a quote.
    """

    element: int
    list: int = 0
    number: int | None = None
    is_quote: bool = False


@dataclass(frozen=True)
class _Open:
    """A container that has been begun: what stands before its first line and before others, and after its number."""

    container: Container
    first: str
    rest: str
    delimiter: str = ""


@dataclass
class MarkdownWriter:
    """Blocks one after the other, each behind the marks of the lists and quotes that it lies in.

    Attributes:
        lines: written so far.
    """

    lines: list[str] = field(default_factory=list)
    _open: list[_Open] = field(default_factory=list)
    _is_paragraph: bool = False

    def write(self, within: Sequence[Container], lines: Sequence[str], *, is_paragraph: bool = False) -> None:
        """Write a block's lines, within containers from the outermost one."""
        path = within[:DEEPEST]
        common = 0
        while common < min(len(path), len(self._open)) and path[common] == self._open[common].container:
            common += 1
        opened: list[_Open] = []
        for at, container in enumerate(path[common:], start=common):
            before = self._open[at] if at == common < len(self._open) else None
            opened.append(_begun(container, before))
            if container.number is not None and not 0 <= container.number <= LARGEST_NUMBER:
                lines = [f"{container.number}.", "", *lines]
        kept = self._open[:common]
        if self.lines and not self._follows_closely(common, opened):
            self.lines.append("".join(one.rest for one in kept).rstrip())
        outer = "".join(one.rest for one in kept)
        first = outer + "".join(one.first for one in opened)
        rest = outer + "".join(one.rest for one in opened)
        self.lines += [first + lines[0], *(rest + line if line else rest.rstrip() for line in lines[1:])]
        self._open, self._is_paragraph = kept + opened, is_paragraph

    def _follows_closely(self, common: int, opened: Sequence[_Open]) -> bool:
        """Whether a block is the next line: of the next item of a list, or of a list in an item below its text."""
        if not opened or opened[0].container.is_quote:
            return False
        if common < len(self._open):
            before = self._open[common].container
            return not before.is_quote and before.list == opened[0].container.list
        # Only a list that begins with 1 may end a paragraph (CommonMark 0.31, 5.2).
        is_in_item = common > 0 and not self._open[-1].container.is_quote
        return is_in_item and self._is_paragraph and opened[0].container.number in (None, 1)


def _begun(container: Container, before: _Open | None) -> _Open:
    """A container as it is begun, after one at the same place that has just ended, if any.

    A reader counts items by itself from the first one of a list. Where the next number is another, or another list
    follows, the other delimiter begins a list anew (CommonMark 0.31, 5.3).
    """
    if container.is_quote:
        return _Open(container, "> ", "> ")
    number = container.number
    if number is None or not 0 <= number <= LARGEST_NUMBER:
        return _Open(container, "- ", "  ")
    delimiter = "."
    if before is not None and before.delimiter:
        goes_on = before.container.list == container.list and before.container.number == number - 1
        delimiter = before.delimiter if goes_on else ").".replace(before.delimiter, "")
    mark = f"{number}{delimiter} "
    return _Open(container, mark, " " * len(mark), delimiter)
