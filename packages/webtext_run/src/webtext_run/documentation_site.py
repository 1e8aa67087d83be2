"""A small web site on loopback to practise on: the documentation that comes with Python and its packages.

Some 1,400 pages of prose (`documentation_pages.py`): one for each well documented source file of the standard library
and of the packages that the project needs, one for each topic of the language. They differ in length, repeat each other
here and there as real sites do, and need no internet. `/urls.txt` lists them, together with addresses of the kind that
every real list holds: pictures, video sites, repeated and broken ones, copies and printed versions of pages, pages in
other languages, pages that are gone or that robots.txt closes. `/RS_2026-01.xz` is a dump as Reddit's submissions come
in, made up, with links to some fifty of the pages.

    python pipelines/documentation_site.py --port 8000

The pages are the same in every run with the same Python and packages, whatever the folder, the port, the user and the
environment. The site ends, and says so, when its standard input does, so that it never outlives the command that
started it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import lzma
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Any
from urllib.parse import quote, unquote

from webtext_run.documentation_pages import module_page, page, sources, topic_page

HOST = "127.0.0.1"

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
"""What makes the pages of each folder, by their names; None where there is none."""


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


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection; a reader that went away is not an error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet of connections that the other side closed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve until standard input ends; the first line printed is the site's address."""
    parser = argparse.ArgumentParser(description="Serve the documentation of Python on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0 for any free one (default)")
    port = parser.parse_args().port
    warnings.simplefilter("ignore", SyntaxWarning)  # of the sources that are parsed
    sources()
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
