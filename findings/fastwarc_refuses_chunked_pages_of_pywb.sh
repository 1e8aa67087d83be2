#!/usr/bin/env bash
# Packages: pywb 2.10.0, warcio 1.8.1, FastWARC 2.0.1 (PyPI); Python 3.11.
#
# Behaviour: pywb's recorder takes the chunks out of an answer that was sent in chunks, and leaves `Transfer-Encoding:
# chunked` in its header. FastWARC with `auto_decode="all"` (or "transfer") believes the header, finds no size of a chunk,
# and raises an error in the place of the body. warcio notices that the body has no chunks, and gives it.
#
# Why it matters here: most pages that programs make are sent in chunks. Who reads an archive of pywb with the faster
# library, and passes over what can't be read, loses them, and keeps mostly pages that were lying there as files.
#
# Output seen:
#   stored:   Transfer-Encoding: chunked, above a body that begins with <html>
#   warcio:   <html><p>The boats leave in the morning.</p></html>
#   FastWARC: OSError: Invalid chunk header
set -euo pipefail

folder=$(mktemp -d)
trap 'kill "${started[@]}" 2>/dev/null; rm -rf "$folder"' EXIT
started=()
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pywb==2.10.0 warcio==1.8.1 fastwarc==2.0.1
cat >serve.py <<'PYTHON'
import http.server


class Chunked(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (b"<html><p>The boats ", b"leave in the morning.</p></html>", b""):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chunked)
open("port", "w").write(str(server.server_address[1]))
server.serve_forever()
PYTHON
venv/bin/python serve.py &
started+=($!)
venv/bin/wb-manager init pages >/dev/null 2>&1
port=$(venv/bin/python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
venv/bin/wayback --live --record --bind 127.0.0.1 --port "$port" >log 2>&1 &
started+=($!)
venv/bin/python - "$port" <<'PYTHON'
import glob
import sys
import time
import urllib.error
import urllib.request

from fastwarc.warc import ArchiveIterator as FastIterator
from fastwarc.warc import WarcRecordType
from warcio.archiveiterator import ArchiveIterator

for _ in range(120):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/pages/record/http://127.0.0.1:{open('port').read()}/a").read()
        break
    except (OSError, urllib.error.URLError):
        time.sleep(0.5)
for _ in range(120):
    archives = glob.glob("collections/pages/archive/*.warc.gz")
    if archives and any(True for _ in FastIterator(archives[0], record_types=WarcRecordType.response)):
        break
    time.sleep(0.5)
(archive,) = archives
with open(archive, "rb") as file:
    page = next(record for record in ArchiveIterator(file) if record.rec_type == "response")
    head, body = page.http_headers.get_header("Transfer-Encoding"), page.content_stream().read().decode()
(stored,) = (same.reader.read() for same in FastIterator(archive, record_types=WarcRecordType.response))
error = ""
for record in FastIterator(archive, record_types=WarcRecordType.response, auto_decode="all"):
    try:
        record.reader.read()
    except OSError as raised:
        error = str(raised)
print(f"stored:   Transfer-Encoding: {head}, above a body that begins with {stored[:6].decode()}")
print(f"warcio:   {body}")
print(f"FastWARC: OSError: {error.partition(':')[0]}")
assert head == "chunked" and stored.startswith(b"<html>") and error.startswith("Invalid chunk header")
assert body == "<html><p>The boats leave in the morning.</p></html>"
PYTHON
