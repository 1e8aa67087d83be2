"""A small web site on loopback to practise on: the documentation that comes with the Python interpreter.

Some 500 real pages, made by pydoc when they are asked for: one for each module of the standard library that can be
imported without side effects, one for each topic of the language. They differ in length, repeat each other here and
there as real sites do, and need no internet. `/urls.txt` lists them, together with addresses of the kind that every
real list holds: pictures, video sites, repeated and broken ones, pages that are gone or that robots.txt closes.
`/RS_2026-01.xz` is a dump as Reddit's submissions come in, made up, with links to some fifty of the pages.

    python pipelines/documentation_site.py --port 8000

The pages are the same in every run, whatever the folder, the port, the user and the environment. The site ends, and
says so, when its standard input does, so that it never outlives the command that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import html
import http.server
import importlib
import io
import json
import lzma
import os
import pkgutil
import pydoc
import re
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from urllib.parse import quote, unquote

HOST = "127.0.0.1"

# Importing these opens windows or browsers, prints, needs another system, or brings thousands of lines of tests.
_LEFT_OUT = {
    "__main__", "antigravity", "idlelib", "lib2to3", "msilib", "msvcrt", "nt", "test", "this", "tkinter", "turtle",
    "turtledemo", "winreg", "winsound", "ensurepip", "venv", "pip",
}  # fmt: skip

_PACKAGES = (
    "asyncio", "collections", "concurrent", "ctypes", "curses", "dbm", "email", "encodings", "html", "http",
    "importlib", "json", "logging", "multiprocessing", "os", "sqlite3", "unittest", "urllib", "wsgiref", "xml",
    "xml.dom", "xml.etree", "xml.sax", "xmlrpc", "zoneinfo",
)  # fmt: skip

_OF_THIS_PROCESS = ("site", "sys")
"""Modules whose values say where this interpreter lies and how it was started: nothing to learn from."""

ENVIRONMENT = {"PYTHONHASHSEED": "0", "PATH": os.defpath}
"""What the pages are made in, and shown on some of them."""

_MEMORY_ADDRESS = re.compile(r"(?: |&nbsp;)(?:at|handle)(?: |&nbsp;)(?:0x)?[0-9a-fA-F]{6,}")

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
"""What `webtext blacklist` is there to drop."""


def module_names() -> list[str]:
    """Names of the modules that have a page, sorted."""
    names = {name for name in sys.stdlib_module_names if not name.startswith("_") and name not in _LEFT_OUT}
    for package in _PACKAGES:
        with contextlib.suppress(ImportError):
            path = importlib.import_module(package).__path__ if package != "os" else []
            found = (entry.name for entry in pkgutil.iter_modules(path))
            names |= {f"{package}.{name}" for name in found if not name.startswith("_") and name != "__main__"}
    # A page for each of the hundred code pages of old PCs would be too much of the same.
    return sorted(name for name in names if not name.startswith("encodings.cp"))


@functools.cache
def modules() -> dict[str, types.ModuleType]:
    """Every module that has a page and can be imported on this system, by name.

    All are imported before the first page is made: what a page shows of a package depends on what is loaded.
    """
    for environment in (os.environ, getattr(sys.modules.get("posix"), "environ", {})):
        environment.clear()
        environment.update(ENVIRONMENT if environment is os.environ else {})
    found = {}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in module_names():
            with contextlib.suppress(Exception, SystemExit):
                found[name] = importlib.import_module(name)
    for module in found.values():
        vars(module).pop("__warningregistry__", None)
    return found


class Writer(pydoc.HTMLDoc):
    """pydoc's writer of pages; `shows_values` says whether the values of a module's names are shown."""

    shows_values = True

    def docother(self, object: Any, name: Any = None, mod: Any = None, *rest: Any) -> str:
        """One name of a module and its value."""
        if self.shows_values:
            return str(super().docother(object, name, mod, *rest))
        return f"<strong>{html.escape(name or '')}</strong>"


def module_page(name: str) -> str | None:
    """The pydoc page of one module, or None if it has none."""
    module = modules().get(name)
    if module is None:
        return None
    writer = Writer()
    writer.shows_values = name not in _OF_THIS_PROCESS
    page: str = writer.page(pydoc.describe(module), writer.document(module, name))
    # Where the interpreter lies on this machine, and its objects in memory, is nothing to learn from.
    page = _MEMORY_ADDRESS.sub("", page)
    for path in (sys.prefix, sys.base_prefix, str(Path(__file__).parent)):
        page = page.replace(path, "/usr")
    return page


def topic_page(name: str) -> str | None:
    """The page of one topic of the language: its paragraphs as HTML."""
    if name not in topics:
        return None
    blocks = [block for block in topics[name].split("\n\n") if block.strip()]
    body = "\n".join(
        f"<pre>{html.escape(block)}</pre>" if block.startswith("   ") else f"<p>{html.escape(block)}</p>"
        for block in blocks
    )
    title = html.escape(f"Python topic: {name}")
    return f"<!DOCTYPE html><html><head><title>{title}</title></head><body><h1>{title}</h1>\n{body}</body></html>"


def url_list(base: str) -> str:
    """One URL a line: every page, and what a real list has besides."""
    known = [f"{base}/module/{quote(name)}.html" for name in modules()]
    pages = [*known, *(f"{base}/topic/{quote(name)}.html" for name in sorted(topics))]
    repeated = [f"{page}#top" for page in pages[:5]]
    lost = [f"{base}/gone/{number}.html" for number in range(3)]
    closed = [f"{base}/drafts/{number}.html" for number in range(2)]
    assets = [f"{base}/style.css", f"{base}/logo.png", f"{base}/data"]
    return "\n".join([*pages, *repeated, *lost, *closed, *assets, *UNWANTED.splitlines()]) + "\n"


def submissions(base: str) -> Iterator[dict[str, Any]]:
    """Rows of a dump of Reddit submissions, with the fields that such dumps have, that link to pages of this site."""
    pages = [page for page in url_list(base).splitlines() if page.startswith((f"{base}/module/", f"{base}/topic/"))]
    links = [page for page in pages if "#" not in page][::10]
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
        page: str | bytes | None = None
        kind = "text/html; charset=utf-8"
        if folder == "robots.txt":
            page, kind = ROBOTS, "text/plain; charset=utf-8"
        elif folder == "urls.txt":
            page, kind = url_list(f"http://{self.headers['Host']}"), "text/plain; charset=utf-8"
        elif folder == "RS_2026-01.xz":
            page, kind = dump(f"http://{self.headers['Host']}"), "application/x-xz"
        elif folder == "data":
            page, kind = "PK\x03\x04", "application/zip"
        elif folder == "module":
            page = module_page(name.removesuffix(".html"))
        elif folder == "topic":
            page = topic_page(name.removesuffix(".html"))
        text = "<html><body>No such page.</body></html>" if page is None else page
        body = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        self.send_response(200 if page is not None else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection; a reader that went away is not an error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet of connections that the other side closed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve until standard input ends; the first line printed is the site's address."""
    parser = argparse.ArgumentParser(description="Serve the interpreter's documentation on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0 for any free one (default)")
    port = parser.parse_args().port
    if os.environ.get("PYTHONHASHSEED") != ENVIRONMENT["PYTHONHASHSEED"]:
        # Sets are shown in the order of their hashes, which is decided when the interpreter starts.
        os.execve(sys.executable, [sys.executable, __file__, "--port", str(port)], os.environ | ENVIRONMENT)  # noqa: S606
    modules()
    try:
        server = Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        sys.exit(f"documentation_site.py: error: can't serve on port {port} ({error}): give another --port.")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://{HOST}:{server.server_port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()
        print("documentation_site.py: standard input ended, and the site with it.", file=sys.stderr, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
