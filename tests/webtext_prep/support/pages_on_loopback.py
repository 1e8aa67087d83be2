"""A web server on loopback for tests that need no more than pages."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator


class QuietServer(http.server.ThreadingHTTPServer):
    """For clients that hang up, or are killed: that is what is tested."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass


@contextlib.contextmanager
def serve_pages(page: Callable[[str], str | None]) -> Iterator[str]:
    """Serve the HTML that `page` gives for a path, 404 where it gives None; yields the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            html = page(self.path)
            body = (html or "").encode()
            self.send_response(200 if html is not None else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
