#!/usr/bin/env bash
# Packages: warcio 1.8.1 with all its extras, FastWARC 2.0.1, brotli 1.2.1, zstandard 0.25.0 (PyPI).
#
# Behaviour: `content_stream()` of warcio is to give a page decoded. Of a body whose `Content-Encoding` is `zstd` it gives
# the packed bytes, and so it does of `br` where the package brotli is not there (`pip install warcio` does not bring
# it). There is no error and no mark. FastWARC decodes both, if it is opened with `auto_decode="all"`; by default
# it decodes none, not even gzip.
#
# Why it matters here: pywb, warcprox and wget keep a body as the server packed it, and servers send `br` and `zstd` to
# who accepts them. Readers on top of warcio, such as datatrove's `WarcReader` (0.10.1), take the bytes for a page in an
# unknown encoding and leave it out: pages vanish from a corpus, by the server's choice of packing.
#
# Output seen:
#   warcio alone:  none page, gzip page, deflate page, br packed, zstd packed
#   warcio[all]:   none page, gzip page, deflate page, br page, zstd packed
#   FastWARC, all: none page, gzip page, deflate page, br page, zstd page
#   FastWARC:      none page, gzip packed, deflate packed, br packed, zstd packed
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for name in alone all; do python3 -m venv "$name"; done
alone/bin/pip install --quiet --disable-pip-version-check warcio==1.8.1
all/bin/pip install --quiet --disable-pip-version-check "warcio[all]==1.8.1" fastwarc==2.0.1 brotli==1.2.1 zstandard==0.25.0
all/bin/python - <<'PYTHON'
import gzip
import io
import zlib

import brotli
import zstandard
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

page = b"<html><title>A page</title><p>The boats leave in the morning.</p></html>"
packers = {"none": bytes, "gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstandard.compress}
with open("pages.warc.gz", "wb") as file:
    writer = WARCWriter(file, gzip=True)
    for name, pack in packers.items():
        fields = [("Content-Type", "text/html")] + ([] if name == "none" else [("Content-Encoding", name)])
        head, body = StatusAndHeaders("200 OK", fields, protocol="HTTP/1.1"), io.BytesIO(pack(page))
        writer.write_record(writer.create_warc_record(f"http://example.org/{name}", "response", payload=body, http_headers=head))
PYTHON
cat >by_warcio.py <<'PYTHON'
from warcio.archiveiterator import ArchiveIterator

with open("pages.warc.gz", "rb") as file:
    found = [(r.rec_headers.get_header("WARC-Target-URI"), r.content_stream().read()) for r in ArchiveIterator(file)]
print(", ".join(f"{url.rpartition('/')[2]} {'page' if body.startswith(b'<html>') else 'packed'}" for url, body in found))
PYTHON
cat >by_fastwarc.py <<'PYTHON'
import sys

from fastwarc.warc import ArchiveIterator

settings = {"auto_decode": sys.argv[1]} if sys.argv[1:] else {}
found = [(r.headers["WARC-Target-URI"], r.reader.read()) for r in ArchiveIterator("pages.warc.gz", **settings)]
print(", ".join(f"{url.rpartition('/')[2]} {'page' if body.startswith(b'<html>') else 'packed'}" for url, body in found))
PYTHON
alone=$(alone/bin/python by_warcio.py)
all=$(all/bin/python by_warcio.py)
decoding=$(all/bin/python by_fastwarc.py all)
default=$(all/bin/python by_fastwarc.py)
echo "warcio alone:  $alone"
echo "warcio[all]:   $all"
echo "FastWARC, all: $decoding"
echo "FastWARC:      $default"
[ "$alone" = "none page, gzip page, deflate page, br packed, zstd packed" ]
[ "$all" = "none page, gzip page, deflate page, br page, zstd packed" ]
[ "$decoding" = "none page, gzip page, deflate page, br page, zstd page" ]
[ "$default" = "none page, gzip packed, deflate packed, br packed, zstd packed" ]
