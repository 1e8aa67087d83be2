#!/usr/bin/env bash
# Packages: FastWARC 2.0.1, warcio 1.8.1 (PyPI).
#
# Behaviour: FastWARC parses the HTTP header of a record before it hands the record out, unless told otherwise, and
# `verify_block_digest()` then counts what is left of the block, the body alone: it says False of every right digest of a
# response. Before the header is parsed the same call says True, and that of a payload digest False.
#
# Why it matters here: who leaves out damaged pages by this check leaves out all pages, or, since that is plainly wrong,
# checks no more. Both digests are right only in turn: the block's, then `parse_http()`, then the payload's.
#
# Output seen:
#   by default:       block False, payload True
#   parse_http=False: block True, payload False
#   in turn:          block True, payload True
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check fastwarc==2.0.1 warcio==1.8.1
venv/bin/python - <<'PYTHON'
import io

from fastwarc.warc import ArchiveIterator
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

with open("page.warc.gz", "wb") as file:
    writer = WARCWriter(file, gzip=True)
    head = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
    body = io.BytesIO(b"<html><p>The boats leave in the morning.</p></html>")
    writer.write_record(writer.create_warc_record("http://example.org/", "response", payload=body, http_headers=head))


def verdict(record):
    return record.verify_block_digest(), record.verify_payload_digest()


(default,) = map(verdict, ArchiveIterator("page.warc.gz"))
(unparsed,) = map(verdict, ArchiveIterator("page.warc.gz", parse_http=False))
for record in ArchiveIterator("page.warc.gz", parse_http=False):
    block = record.verify_block_digest()
    record.parse_http()
    in_turn = block, record.verify_payload_digest()
for name, (block, payload) in {"by default": default, "parse_http=False": unparsed, "in turn": in_turn}.items():
    print(f"{name + ':':17} block {block}, payload {payload}")
assert (default, unparsed, in_turn) == ((False, True), (True, False), (True, True))
PYTHON
venv/bin/warcio check page.warc.gz
