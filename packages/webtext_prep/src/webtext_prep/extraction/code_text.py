"""Code in a page: its lines with their indentation, without line numbers."""

from __future__ import annotations

import re
from typing import Any

from webtext_prep.extraction.page_tree import text_of

CODE = re.compile(r"linen|line-|gutter|blob|\blnt?\b|crayon|hljs|syntaxhighlighter|CodeMirror|dp-", re.IGNORECASE)
"""What the classes of code have in them, and of its line numbers."""
_NUMBERS = re.compile(r"linen|line-?num|lineno|gutter|blob-num|\blnt?\b|crayon-num|hljs-ln-n", re.IGNORECASE)
_BLOCKS = frozenset(
    {"syntaxhighlighter", "blob-wrapper", "blob-code", "CodeMirror-code", "crayon-main", "dp-highlighter"}
)
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
    classes = node.get("class")
    if not classes or not _NUMBERS.search(classes):
        return False
    return text_of(node).translate(_BLANK).isdigit() or node.get("data-line-number") is not None


_BLANK = {ord(character): None for character in " \t\n\r\xa0.:|"}


def is_code(node: Any, tag: str) -> bool:
    """Whether an element is a piece of code whose lines count."""
    if tag == "pre":
        return all(found.tag not in _LOOSE for found in node.iterdescendants())
    classes = node.get("class")
    return bool(classes) and not _BLOCKS.isdisjoint(classes.split())


def code_of(node: Any) -> str:
    """The lines of a piece of code."""
    pieces: list[str] = []
    _read(node, pieces)
    return "".join(pieces).replace("\xa0", " ")


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
    around = [*node.iter("code"), node, node.getparent()]
    parent = node.getparent()
    if parent is not None:
        around.append(parent.getparent())
    for one in around:
        for found in _LANGUAGE.finditer((one.get("class") or "") if one is not None else ""):
            if found[1].lower() not in _NOT_LANGUAGES:
                return found[1].lower().removeprefix("source-")
    return ""
