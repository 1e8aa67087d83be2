"""A small web site on loopback to practise on: the documentation that comes with Python and its packages.

Some 1,400 pages of prose: one for each well documented source file of the standard library and of the packages that the
project needs, one for each topic of the language. A page says what the docstrings of public classes and functions say
in whole sentences, under their names, without signatures, tables, formulas and examples, which a small model would
spend its time on. Sources are parsed, never imported: nothing runs, no page depends on what else is loaded, and none
shows a path or an object of this machine. A file takes some 10 ms. The pages differ in length, repeat each other
here and there as real sites do, and need no internet. `/urls.txt` lists them, together with addresses of the kind that
every real list holds: pictures, video sites, repeated and broken ones, copies and printed versions of pages, pages in
other languages, pages that are gone or that robots.txt closes. `/RS_2026-01.xz` is a dump as Reddit's submissions come
in, made up, with links to some fifty of the pages.

    python pipelines/documentation_site.py

The pages are the same in every run with the same Python and packages, for any folder, port, user and
environment. The site stays up until a signal ends it. A program that starts it says `--until-input-ends`, and holds a
pipe to its standard input, so that it never outlives that program.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import html
import http.server
import importlib.util
import inspect
import json
import lzma
import os
import re
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from urllib.parse import quote, unquote

PACKAGES = ("mpmath", "networkx", "nltk", "numpy", "scipy", "sympy", "torch")
"""The packages that the project needs anyway, with the most to say; one that is not installed has no pages."""

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
    """(dotted name, docstring) of a module, whose name is empty, and of all that is public in it, in its order."""
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


HOST = "127.0.0.1"
PORT = 8100
"""Another one than that of `gpt2 serve`: both may be up at once."""

ROBOTS = "User-agent: *\nDisallow: /drafts/\n"

UNWANTED = """\
https://www.youtube.com/watch?v=dQw4w9WgXcQ
https://en.wikipedia.org/wiki/Python_(programming_language)
https://i.imgur.com/gallery.jpg
http://files.example.org/archive.7z
http://files.example.org/paper.PDF
http://example.org/slides.pptx
https://twitter.com/somebody/status/1
ftp://ftp.example.org/readme
this line is no address
http://[broken
"""
"""URLs that `webtext blacklist` is there to drop."""


LINKED = 51
"""Pages that the dump of submissions links to; one of them twice, at both of its addresses."""

OTHER_LANGUAGES = {
    "de": (
        "Über diese Seiten",
        "Diese Seiten enthalten die Dokumentation, die mit Python und seinen Paketen ausgeliefert wird. Sie werden aus "
        "den Quelltexten erzeugt, sobald jemand sie abruft, und sind auf jedem Rechner mit denselben Paketen gleich.",
        "Wer eine Seite sucht, findet sie unter dem Namen ihres Moduls. Die Themen der Sprache haben eigene Seiten, "
        "auf denen die Regeln der Grammatik, die Anweisungen und die eingebauten Typen der Reihe nach erklärt werden. "
        "Beispiele und Tabellen fehlen auf den meisten Seiten, weil hier nur zusammenhängende Sätze stehen sollen.",
    ),
    "fr": (
        "À propos de ces pages",
        "Ces pages contiennent la documentation fournie avec Python et avec ses paquets. Elles sont produites à partir "
        "des fichiers sources au moment où on les demande, et restent identiques d'une machine à l'autre.",
        "Chaque page porte le nom de son module. Les sujets du langage ont leurs propres pages, où les règles de la "
        "grammaire, les instructions et les types intégrés sont expliqués l'un après l'autre. Les exemples et les "
        "tableaux manquent sur la plupart des pages, car seules les phrases entières y ont leur place.",
    ),
}
"""Pages that `webtext clean` drops for their language."""

COPIES = 12
"""Pages that are there under a second address, and as many in a printed version with a few words more."""


def copied() -> list[str]:
    """Names of the modules whose pages are there in other versions, too."""
    return list(sources())[:: len(sources()) // COPIES][:COPIES]


def printed_page(name: str) -> str | None:
    """A page for printers: the same text, and where it comes from."""
    found = module_page(name) if name in copied() else None
    note = (
        "<p>This version of the page is meant for printing. Follow the links of the original page instead.</p></main>"
    )
    return None if found is None else found.replace("</main>", note)


def language_page(name: str) -> str | None:
    """A page in another language than the others."""
    if name not in OTHER_LANGUAGES:
        return None
    title, *texts = OTHER_LANGUAGES[name]
    return page(title, [f"<h1>{title}</h1>", *(f"<p>{text}</p>" for text in texts)], name)


FOLDERS = {
    "module": module_page,
    "topic": topic_page,
    "mirror": lambda name: module_page(name) if name in copied() else None,
    "print": printed_page,
    "about": language_page,
}
"""The makers of the pages of each folder, by their names; None where there is none."""


def url_list(base: str) -> str:
    """One URL a line: every page, and what a real list has besides."""
    pages = [f"{base}/module/{quote(name)}.html" for name in sources()]
    pages += [f"{base}/topic/{quote(name)}.html" for name in sorted(topics)]
    copies = [f"{base}/{folder}/{quote(name)}.html" for folder in ("mirror", "print") for name in copied()]
    foreign = [f"{base}/about/{name}.html" for name in OTHER_LANGUAGES]
    repeated = [f"{page}#top" for page in pages[:5]]
    lost = [f"{base}/gone/{number}.html" for number in range(3)]
    closed = [f"{base}/drafts/{number}.html" for number in range(2)]
    assets = [f"{base}/style.css", f"{base}/logo.png", f"{base}/data"]
    return "\n".join([*pages, *copies, *foreign, *repeated, *lost, *closed, *assets, *UNWANTED.splitlines()]) + "\n"


def submissions(base: str) -> Iterator[dict[str, Any]]:
    """Rows of a dump of Reddit submissions, with the fields that such dumps have, that link to pages of this site."""
    pages = [page for page in url_list(base).splitlines() if page.startswith((f"{base}/module/", f"{base}/topic/"))]
    links = [page for page in pages if "#" not in page]
    links = links[:: len(links) // LINKED][: LINKED - 1]
    links.append(links[0].replace("module", "mirror", 1))  # the first page with copies is the first of all
    for number, url in enumerate([*links, *(f"{link}#top" for link in links[:3]), *UNWANTED.splitlines()[:4]]):
        yield {
            "id": f"{number:06x}",
            "created_utc": 1767225600 + 3600 * number,
            "subreddit": ("Python", "programming", "learnpython")[number % 3],
            "title": url.rpartition("/")[2].partition(".html")[0],
            "url": url,
            "score": 1 if number % 9 == 8 else 3 + number * 7 % 40,
            "over_18": number % 31 == 30,
            "is_self": False,
        }
    for number, question in enumerate(("Which editor do you use?", "Show us your first program")):
        row = {"id": f"{number:06x}s", "created_utc": 1767225600, "subreddit": "learnpython", "title": question}
        yield {**row, "url": "https://www.reddit.com/r/learnpython", "score": 12, "over_18": False, "is_self": True}


def dump(base: str) -> bytes:
    """A monthly dump: a row in JSON on each line, compressed."""
    return lzma.compress("".join(json.dumps(row) + "\n" for row in submissions(base)).encode())


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET for the pages, `/urls.txt`, `/robots.txt` and the dump."""

    protocol_version = "HTTP/1.1"
    server_version = "documentation"

    def do_GET(self) -> None:
        """Send one page."""
        folder, _, name = unquote(self.path.split("?")[0].split("#")[0]).lstrip("/").partition("/")
        found: str | bytes | None = None
        kind = "text/html; charset=utf-8"
        if folder == "robots.txt":
            found, kind = ROBOTS, "text/plain; charset=utf-8"
        elif folder == "urls.txt":
            found, kind = url_list(f"http://{self.headers['Host']}"), "text/plain; charset=utf-8"
        elif folder == "RS_2026-01.xz":
            found, kind = dump(f"http://{self.headers['Host']}"), "application/x-xz"
        elif folder == "data":
            found, kind = "PK\x03\x04", "application/zip"
        elif folder in FOLDERS:
            found = FOLDERS[folder](name.removesuffix(".html"))
        text = "<html><body>No such page.</body></html>" if found is None else found
        body = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


class SiteServer(http.server.ThreadingHTTPServer):
    """A thread for each connection; a reader that went away is not an error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet of connections that the other side closed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve until a signal, or the end of standard input; the first line printed is the site's address."""
    parser = argparse.ArgumentParser(description="Serve the documentation of Python on loopback.")
    parser.add_argument("--port", type=int, help=f"0 for any free one (default: {PORT})")
    parser.add_argument(
        "--until-input-ends", action="store_true", help="end when standard input does; without --port, any will do"
    )
    arguments = parser.parse_args()
    port: int = PORT if arguments.port is None else arguments.port
    warnings.simplefilter("ignore", SyntaxWarning)  # of the sources that are parsed
    sources()
    try:
        try:
            server = SiteServer((HOST, port), Handler)
        except OSError:
            if arguments.port is not None or not arguments.until_input_ends:
                raise
            server = SiteServer((HOST, 0), Handler)
    except (OSError, OverflowError) as error:
        sys.exit(f"documentation_site.py: error: can't serve on port {port} ({error}): give another --port.")
    print(f"http://{HOST}:{server.server_port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        if arguments.until_input_ends:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            sys.stdin.read()
            print("documentation_site.py: standard input ended, and the site with it.", file=sys.stderr, flush=True)
        else:
            print("documentation_site.py: serving until Ctrl-C; leave it running.", file=sys.stderr, flush=True)
            server.serve_forever()
    os._exit(0)


if __name__ == "__main__":
    main()
