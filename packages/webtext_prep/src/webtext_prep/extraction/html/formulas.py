"""The source of a formula in a page: LaTeX between dollar signs where the page has it, else its characters in order.

Pages show one formula in several ways at once: MathML for programs, boxes or a picture for eyes, a script for MathJax.
One of them is taken, the others are shadows of it. Known are MathML with an annotation or `alttext` (Wikipedia, arXiv,
KaTeX, MathJax 3), scripts of MathJax 2, pictures whose alternative text is LaTeX (MediaWiki, WordPress), and elements
of class `math` that hold the source itself (Sphinx, Pandoc).
"""

from __future__ import annotations

import re
from typing import Any

from webtext_prep.extraction.html.page_tree import NUMBER, raised

_TEX = frozenset({"application/x-tex", "tex", "latex", "application/x-latex", "text/x-tex"})
_SHADOWS = frozenset({"MathJax_Preview", "MathJax", "MathJax_Display", "MathJax_SVG", "MathJax_SVG_Display",
                      "MathJax_CHTML", "mjx-chtml", "MathJax_Error"})  # fmt: skip
_SOURCES = frozenset({"math", "arithmatex", "katex-source"})
_PICTURES = frozenset({"latex", "tex"})
FORMULAS = re.compile(r"katex|mathjax|mjx|math|tex\b|arithmatex", re.IGNORECASE)
"""What the classes of a formula have in them."""
_SCRIPTS = {"msup": "sup", "msub": "sub"}
_APART = {"mfrac": "/"} | dict.fromkeys(("msubsup", "mroot", "mtr", "mtable"), " ")
_DELIMITERS = (("\\(", "\\)", "$"), ("\\[", "\\]", "$$"), ("$$", "$$", "$$"), ("$", "$", "$"))
_DELIMITED = re.compile(r"\\\((.{1,2000}?)\\\)|\\\[(.{1,5000}?)\\\]", re.DOTALL)


def _between_dollars(source: str, *, is_display: bool) -> str:
    source = source.strip()
    for begin, end, dollars in _DELIMITERS:
        if source.startswith(begin) and source.endswith(end) and len(source) > len(begin) + len(end):
            source, is_display = source[len(begin) : -len(end)].strip(), dollars == "$$"
            break
    mark = "$$" if is_display else "$"
    return f"{mark}{' '.join(source.split())}{mark}" if source else ""


def _of_mathml(node: Any) -> str:
    """From `math`."""
    source = next(
        (
            "".join(found.itertext())
            for found in node.iter("annotation")
            if (found.get("encoding") or "").strip().lower() in _TEX
        ),
        None,
    )
    source = source or node.get("alttext")
    if source and source.strip():
        is_display = node.get("display") == "block" or node.get("mode") == "display" or _stands_alone(node)
        return _between_dollars(source, is_display=is_display)
    return _characters(node)


def _characters(node: Any) -> str:
    """The characters of MathML in order, without white space; scripts, fractions, tables make no number of two."""
    if node.tag in ("annotation", "annotation-xml"):
        return ""
    text = "".join((node.text or "").split())
    for child in node:
        part = _characters(child)
        if text[-1:].isdigit() and NUMBER.match(part):
            if node.tag in _SCRIPTS:
                part = raised(_SCRIPTS[node.tag], part)
            elif part[0].isdigit():
                part = _APART.get(node.tag, "") + part
        text += part + "".join((child.tail or "").split())
    return text


def _stands_alone(node: Any) -> bool:
    """Whether something just around a formula says that it has a line of its own."""
    for _ in range(4):
        node = node.getparent()
        if node is None:
            return False
        classes = node.get("class") or ""
        if "katex-display" in classes or "mwe-math-element-block" in classes or node.get("display") == "true":
            return True
    return False


def _is_script(node: Any) -> bool:
    return node is not None and node.tag == "script" and (node.get("type") or "").startswith("math/tex")


def formula_of(node: Any, tag: str) -> str | None:
    """What stands for an element of a page: a formula's text, "" for a shadow of one, None for anything else."""
    if tag == "math":
        return _of_mathml(node)
    if tag == "script":
        if not _is_script(node):
            return None
        return _between_dollars(node.text or "", is_display="mode=display" in node.get("type"))
    names = (node.get("class") or "").split()
    if tag == "img":
        return _of_picture(node, names)
    if "katex-html" in names:
        return ""
    if not _SHADOWS.isdisjoint(names) or tag == "mjx-container":
        return _of_mathjax(node)
    if not _SOURCES.isdisjoint(names) and len(node) == 0 and node.text:
        is_delimited = node.text.strip().startswith(("\\(", "\\[", "$"))
        if is_delimited or "inline" in names or "display" in names:
            return _between_dollars(node.text, is_display="display" in names or tag == "div")
    return None


def _of_picture(node: Any, names: list[str]) -> str | None:
    is_wiki = any(name.startswith("mwe-math-fallback") for name in names)
    if not is_wiki and _PICTURES.isdisjoint(names):
        return None
    around = node.getparent()
    if is_wiki and around is not None and next(around.iter("math"), None) is not None:
        return ""
    return _between_dollars(node.get("alt") or "", is_display=any(name.endswith("display") for name in names))


def _of_mathjax(node: Any) -> str | None:
    follows = node.getnext()
    while (
        follows is not None
        and follows.tag != "script"
        and not _SHADOWS.isdisjoint((follows.get("class") or "").split())
    ):
        follows = follows.getnext()
    if _is_script(follows):
        return ""
    inner = next(node.iter("math"), None)
    return None if inner is None else _of_mathml(inner)


def with_dollars(text: str) -> str:
    """A text in which `\\(...\\)` and `\\[...\\]`, as MathJax and KaTeX read them, stand between dollar signs."""
    if "\\(" not in text and "\\[" not in text:
        return text

    def replaced(found: re.Match[str]) -> str:
        return _between_dollars(found[1] or found[2], is_display=found[1] is None)

    return _DELIMITED.sub(replaced, text)
