"""Web servers on loopback: one of pages alone, and one whose answers the tests choose."""

import collections
import contextlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import write_documents


class QuietServer(http.server.ThreadingHTTPServer):
    """For clients that hang up, or are killed: that is what is tested."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass


class Request(http.server.BaseHTTPRequestHandler):
    """One request, and how to answer it."""

    protocol_version = "HTTP/1.1"

    def answer(self, status=200, body=b"", kind="text/html; charset=utf-8", **headers):
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
        for name, value in {"Content_Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def servers_of(hosts, handler):
    """Running servers, one for each address, all at one port."""
    while True:  # until there is a port that is free at all addresses
        found = []
        try:
            for host in hosts:
                found.append(QuietServer((host, found[0].server_port if found else 0), handler))
        except OSError:
            for one in found:
                one.server_close()
            continue
        for one in found:
            threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
        return found


def write_list(path, urls):
    """A list for a download, of URLs or of rows with metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_documents(path) as writer:
        for url in urls:
            writer.write(url if isinstance(url, Document) else Document(url))
    return path


@contextlib.contextmanager
def serve_pages(page: Callable[[str], str | None]) -> Iterator[str]:
    """Serve the HTML that `page` gives for a path, 404 where it gives None; yields the address."""

    class Handler(Request):
        def do_GET(self) -> None:
            html = page(self.path)
            self.answer(200 if html is not None else 404, (html or "").encode())

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


SENTENCE = "This is a sentence of the page, long enough for anybody to see that it is text. "
PATIENCE = 60
"""Seconds after which a test that waits for something has failed."""


def html(title, text=SENTENCE * 5):
    return f"<html><head><title>{title}</title></head><body><article><p>{text}</p></article></body></html>".encode()


WISHES = ("/ai.txt", "/.well-known/tdmrep.json")


class Site:
    """A web server on loopback. `routes` maps a path to a function of the request; other paths are pages.

    Files for a host's preferences are missing, and no request for them is noted, unless they have a route.
    """

    def __init__(self, hosts=("127.0.0.1",)):
        self.routes = {}
        self.asked = []  # (path, headers, time)
        self.answers = None  # after this many requests it says nothing more
        self.condition = threading.Condition()
        site = self

        class Handler(Request):
            def do_GET(self):
                if self.path in WISHES and self.path not in site.routes:
                    self.answer(404)
                    return
                asked = (self.path, dict(self.headers), time.monotonic())
                with site.condition:
                    site.asked.append(asked)
                    site.condition.notify_all()
                with contextlib.suppress(ConnectionError):
                    if site.answers is not None and len(site.asked) > site.answers:
                        site.asked.remove(asked)  # as if it had not been there: it was not answered
                        self.connection.recv(1)
                        return
                    site.routes.get(self.path, site.page)(self)

        self.servers = servers_of(hosts, Handler)
        self.port = self.servers[0].server_port
        self.routes["/robots.txt"] = lambda request: request.answer(404)

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def page(self, request):
        request.answer(body=html(f"Page {request.path}"))

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"

    def urls(self, *paths):
        return [self.url(path) for path in paths]

    @property
    def paths(self):
        """What was asked for, in order."""
        return [path for path, _, _ in self.asked]

    def counts(self):
        return collections.Counter(self.paths)

    def times(self, path):
        return [when for asked, _, when in self.asked if asked == path]

    def wait_for(self, condition):
        with self.condition:
            assert self.condition.wait_for(lambda: condition(self.counts()), PATIENCE)
