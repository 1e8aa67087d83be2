#!/usr/bin/env bash
# Packages: warctools 5.0.1, warcio 1.8.1 (PyPI).
#
# Behaviour: a record of WARC/1.1 (ISO 28500:2017) has a version that warctools does not know. It is to be an error of that
# record, but the sentence about it is joined of text and bytes, which raises a TypeError, so that each of its tools
# ends at the first record: `warcvalid` with status 255 and no word but that on stderr, `warcdump` with a traceback. The same
# records in WARC/1.0 are valid.
#
# Why it matters here: crawlers have written WARC/1.1 for years (Browsertrix, and whoever wants dates with fractions of a
# second). Who checks archives with warcvalid before they are extracted refuses all of them, and takes the tool's fault
# for damage.
#
# Output seen:
#   WARC/1.0: warcvalid 0, warcdump 0
#   WARC/1.1: warcvalid 255, warcdump 1 (TypeError: sequence item 0: expected str instance, bytes found)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check warctools==5.0.1 warcio==1.8.1
venv/bin/python - <<'PYTHON'
import io

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

for version in ("1.0", "1.1"):
    with open(f"{version}.warc.gz", "wb") as file:
        writer = WARCWriter(file, gzip=True, warc_version=version)
        head = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
        body = io.BytesIO(b"<html><p>The boats leave in the morning.</p></html>")
        writer.write_record(writer.create_warc_record("http://example.org/", "response", payload=body, http_headers=head))
PYTHON
venv/bin/warcio check 1.0.warc.gz 1.1.warc.gz
found=()
for version in 1.0 1.1; do
  valid=0 dumped=0
  venv/bin/warcvalid "$version.warc.gz" >/dev/null 2>&1 || valid=$?
  venv/bin/warcdump "$version.warc.gz" >/dev/null 2>error || dumped=$?
  found+=("$valid $dumped")
  echo "WARC/$version: warcvalid $valid, warcdump $dumped$([ "$dumped" = 0 ] || echo " ($(tail -1 error))")"
done
[ "${found[0]}" = "0 0" ] && [ "${found[1]}" = "255 1" ]
