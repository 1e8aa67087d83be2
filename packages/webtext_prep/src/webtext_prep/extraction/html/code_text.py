"""Code in a page: its lines with their indentation, without line numbers."""

from __future__ import annotations

import re
from itertools import islice
from textwrap import dedent
from typing import Any

from webtext_prep.extraction.html.page_tree import text_of

_CODE = r"line-|linen|listing_lines|gutter|blob|\blnt?\b|crayon|hljs|syntaxhighlighter|CodeMirror|dp-|\bfragment\b"
CODE = re.compile(_CODE, re.IGNORECASE)
"""What the classes of code have in them, and of its line numbers."""
_OF_NUMBERS = r"linen|line-?num|line-no\b|listing_lines|gutter|blob-num|\blnt?\b|crayon-num|hljs-ln-n"
_NUMBERS = re.compile(_OF_NUMBERS, re.IGNORECASE)
_HIGHLIGHTERS = "syntaxhighlighter blob-wrapper blob-code CodeMirror-code crayon-main dp-highlighter"
_BLOCKS = frozenset(_HIGHLIGHTERS.split())
_LOOSE = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "section", "article", "form", "pre",
                    "blockquote", "header", "footer"})  # fmt: skip
"""Elements that code has none of: what holds them is a container, perhaps since its end tag is missing."""
_LINES = frozenset({"div", "li", "tr", "p"})
_LINE = re.compile(r"(?:^|[\s_-])line(?:\s|$)", re.IGNORECASE)
"""The class of an inline element that is a line. Where no line end stands behind it, styles make it one: in the manual
of Tailwind 4, and Gatsby's highlighted lines."""
_LANGUAGE = re.compile(r"(?:^|\s)(?:language|lang|brush|highlight(?:-source|-text)?|sourceCode)[-:\s]+([\w+#.-]{1,30})")
_NOT_LANGUAGES = frozenset({"default", "none", "text", "plain", "plaintext", "wrapper", "code", "block", "inline"})


def is_line_numbers(node: Any) -> bool:
    """Whether an element holds the numbers of lines of code, and nothing else."""
    if not _NUMBERS.search(node.get("class") or ""):
        return False
    text = text_of(node).lstrip(_BLANK)
    is_number = text[:1].isdigit() and text.translate(_WITHOUT_BLANKS).isdigit()
    return is_number or node.get("data-line-number") is not None


_BLANK = " \t\n\r\xa0.:|"
_WITHOUT_BLANKS = str.maketrans("", "", _BLANK)


def is_code(node: Any, tag: str) -> bool:
    """Whether an element is a piece of code whose lines count."""
    if tag == "pre":
        return next(node.iterdescendants(*_LOOSE), None) is None
    classes = (node.get("class") or "").split()
    return not _BLOCKS.isdisjoint(classes) or ("fragment" in classes and bool(_lines_of_doxygen(node)))


def _lines_of_doxygen(node: Any) -> list[Any]:
    """The lines of a `fragment` as Doxygen (1.8 and later) writes code, without the tips beside them; else none."""
    if node.tag != "div" or any(child.get("class") not in ("line", "foldopen", "ttc") for child in node):
        return []
    return [line for line in node.iter("div") if line.get("class") == "line"]


def code_of(node: Any) -> str:
    """The lines of a piece of code."""
    pieces: list[str] = []
    of_doxygen = _lines_of_doxygen(node)
    for part in of_doxygen or [node]:
        _read(part, pieces)
    code = "".join(pieces).replace("\xa0", " ")
    return dedent(code) if of_doxygen else code  # a space stands behind each number


def _read(node: Any, pieces: list[str]) -> None:
    if node.tag in ("script", "style", "button", "svg") or is_line_numbers(node):
        return
    if node.tag == "br":
        pieces.append("\n")
    begins_line = node.tag in _LINES
    if begins_line:
        _end_line(pieces)
    elif _follows_a_line(node):
        pieces.append("\n")
    pieces.append(node.text or "")
    for child in node:
        _read(child, pieces)
        pieces.append(child.tail or "")
    if begins_line:
        _end_line(pieces)


def _follows_a_line(node: Any) -> bool:
    """Whether an inline element is a line, as is the one right before it, which has not ended itself."""
    before = node.getprevious()
    if before is None or before.tail or before.tag != node.tag or not (_is_line(before) and _is_line(node)):
        return False
    return not text_of(before).endswith("\n") and before.find(".//br") is None


def _is_line(node: Any) -> bool:
    return _LINE.search(node.get("class") or "") is not None


def _end_line(pieces: list[str]) -> None:
    last = next((piece for piece in reversed(pieces) if piece), "\n")
    if not last.endswith("\n"):
        pieces.append("\n")


def language_of(node: Any) -> str:
    """The language that the classes of code, or of what it lies in, name; "" where none does."""
    for one in (*node.iter("code"), node, *islice(node.iterancestors(), 2)):
        for found in _LANGUAGE.finditer(one.get("class") or ""):
            if found[1].lower() not in _NOT_LANGUAGES:
                return found[1].lower().removeprefix("source-")
    return ""
