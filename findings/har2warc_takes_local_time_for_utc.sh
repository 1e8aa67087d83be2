#!/usr/bin/env bash
# Package: har2warc 1.0.4 (PyPI).
#
# Behaviour: a HAR's `startedDateTime` has an offset from UTC (ISO 8601, HAR 1.2), as Firefox writes it. har2warc drops
# the offset and calls the rest UTC: 10:00 at +02:00 becomes the WARC-Date 10:00Z instead of 08:00Z. And a HAR without
# `pages`, which HAR 1.2 calls optional, ends with a KeyError, behind which an empty archive is left.
#
# Why it matters here: dates of captures decide which of two copies of a page is the newer one, and are asked for in
# archives; those of browsers are off by hours, those near midnight by a day.
#
# Output seen:
#   WARC-Date: 2026-11-01T10:00:00Z
#   without pages: KeyError: 'pages', and an archive of 0 bytes
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check har2warc==1.0.4
venv/bin/python - <<'PYTHON'
import json

time, page = "2026-11-01T10:00:00.000+02:00", "<html><p>A page.</p></html>"
entry = {
    "startedDateTime": time, "time": 10, "cache": {}, "timings": {"send": 0, "wait": 5, "receive": 5}, "pageref": "page_1",
    "request": {"method": "GET", "url": "https://example.org/", "httpVersion": "HTTP/1.1", "cookies": [], "queryString": [],
                "headers": [{"name": "Host", "value": "example.org"}], "headersSize": 100, "bodySize": 0},
    "response": {"status": 200, "statusText": "OK", "httpVersion": "HTTP/1.1", "cookies": [], "redirectURL": "",
                 "headers": [{"name": "Content-Type", "value": "text/html"}], "headersSize": 100, "bodySize": len(page),
                 "content": {"mimeType": "text/html", "size": len(page), "text": page}},
}
log = {"version": "1.2", "creator": {"name": "Firefox", "version": "150"}, "entries": [entry]}
pages = [{"startedDateTime": time, "id": "page_1", "title": "A page", "pageTimings": {}}]
json.dump({"log": log | {"pages": pages}}, open("pages.har", "w"))
del entry["pageref"]
json.dump({"log": log}, open("none.har", "w"))
PYTHON
venv/bin/har2warc pages.har pages.warc.gz
date=$(zcat pages.warc.gz | tr -d '\r' | grep -A3 '^WARC-Type: response' | grep -m1 '^WARC-Date')
error=$(venv/bin/har2warc none.har none.warc.gz 2>&1 | tail -1) || true
echo "$date"
echo "without pages: $error, and an archive of $(wc -c <none.warc.gz) bytes"
[ "$date" = "WARC-Date: 2026-11-01T10:00:00Z" ]
[ "$error" = "KeyError: 'pages'" ] && [ ! -s none.warc.gz ]
