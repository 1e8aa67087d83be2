"""The prose of the documentation that comes with Python and the packages that this project needs, as HTML pages.

A page for each source file: what the docstrings of its public classes and functions say in whole sentences, under their
names, without signatures, tables, formulas and examples, which a small model would spend its time on. Sources are
parsed, never imported: nothing runs, no page depends on what else is loaded, and none shows a path or an object of this
machine. Then a page for each topic of the language. A file takes some 10 ms.
"""

from __future__ import annotations

import ast
import functools
import html
import importlib.util
import inspect
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

PACKAGES = ("mpmath", "networkx", "nltk", "numpy", "scipy", "sympy", "torch")
"""What the project needs anyway, with the most to say; one that is not installed has no pages."""

LEFT_OUT = {
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "testing",
    "turtledemo",
    "ensurepip",
}
"""Folders without pages: tests, and programs of their own."""

LEAST_DOCUMENTED = 5000
"""Characters between triple quotes, without which a source file has no page."""

_ROLE = re.compile(r":[a-z:+-]+:`([^`<]*?)\s*(?:<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]*?)\s*<[^`>]*>`_+")
_MARKUP = re.compile(r"`+_*|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|\[\d+\]_|\|\w+\|")
_NOT_PROSE = re.compile(r"[=<>{}\\|$^~@#;/]|\.\.\.|::|--|__|\(\)\.")
_UNDERLINE = re.compile(r"([-=~^\"*+#])\1+\s*")
_FIRST, _LAST = re.compile(r"[A-Z][a-z]*['a-z ,]"), re.compile(r"[a-z0-9)\"'][.!?]$")
FEWEST_WORDS = 6


@functools.cache
def sources() -> dict[str, Path]:
    """The source files that have a page, by the name of their module, sorted."""
    places = [("", Path(sysconfig.get_paths()["stdlib"]))]
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        places += [(f"{package}.", Path(place)) for place in found.submodule_search_locations or ()] if found else []
    names = {
        prefix + ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for prefix, root in places
        for file in _python_files(root)
    }
    return {name: names[name] for name in sorted(names) if _is_documented(names[name])}


def _python_files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(("__", ".")) and entry.name != "__init__.py":
            continue
        if entry.is_dir() and entry.name not in LEFT_OUT:
            yield from _python_files(entry)
        elif entry.suffix == ".py" and not entry.name.startswith("test_"):
            yield entry


def _is_documented(file: Path) -> bool:
    texts = file.read_bytes().split(b'"""')[1::2]
    return sum(map(len, texts)) >= LEAST_DOCUMENTED


def module_page(name: str) -> str | None:
    """The page of one module, or None if it has none."""
    file = sources().get(name)
    if file is None:
        return None
    title = f"The module {name}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    said: set[str] = set()
    for heading, docstring in docstrings(ast.parse(file.read_bytes())):
        new = [text for text in paragraphs(docstring) if text not in said]
        said.update(new)
        if new and heading:
            parts.append(f"<h2>{html.escape(heading)}</h2>")
        parts += [f"<p>{html.escape(text)}</p>" for text in new]
    return page(title, parts)


def docstrings(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, docstring) of a module, whose name is empty, and of what is public in it, in its order."""
    if isinstance(tree, ast.Module) and (text := ast.get_docstring(tree, clean=False)):
        yield "", text
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            if text := ast.get_docstring(node, clean=False):
                yield prefix + node.name, text
            if isinstance(node, ast.ClassDef):
                yield from docstrings(node, f"{prefix}{node.name}.")


def paragraphs(docstring: str) -> Iterator[str]:
    """The paragraphs of whole sentences in a docstring, each on one line and without markup."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.splitlines()
        if len(lines) > 1 and _UNDERLINE.fullmatch(lines[1]):
            lines = lines[2:]
        if lines and not any(line.startswith((" ", "\t", ">>>", "..", "- ", "* ")) for line in lines):
            text = " ".join(" ".join(lines).split())
            text = _LINK.sub(r"\1", _ROLE.sub(_last_name, text))
            text = _MARKUP.sub("", text)
            if is_prose(text):
                yield text


def _last_name(role: re.Match[str]) -> str:
    text = role[1]
    return text.rpartition(".")[2] if text.startswith("~") else text


def is_prose(text: str) -> bool:
    """Whether a text is sentences: it begins and ends as one, and is made of words, not of symbols."""
    if len(text.split()) < FEWEST_WORDS or not (_FIRST.match(text) and _LAST.search(text)) or _NOT_PROSE.search(text):
        return False
    return text.isascii() and sum(map(str.isalpha, text)) + text.count(" ") >= 0.92 * len(text)


def topic_page(name: str) -> str | None:
    """The page of one topic of the language, or None if it has none."""
    if name not in topics:
        return None
    title = f"Python topic: {name}"
    parts = [f"<p>{html.escape(text)}</p>" for text in paragraphs(topics[name])]
    return page(title, [f"<h1>{html.escape(title)}</h1>", *parts])


def page(title: str, parts: list[str], language: str = "en") -> str:
    """A page of HTML with such parts of a body."""
    body = "\n".join(parts)
    head = f"<head><title>{html.escape(title)}</title></head>"
    return f'<!DOCTYPE html><html lang="{language}">{head}<body><main>{body}</main></body></html>'
