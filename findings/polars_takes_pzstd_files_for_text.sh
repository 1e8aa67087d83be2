#!/usr/bin/env bash
# Packages: polars 2.1.0, zstandard 0.25.0 (PyPI).
#
# Behaviour: Polars tells how a file of JSON lines is compressed by its first bytes alone, and knows only how a frame of
# data begins. A file may begin with a frame that readers pass over (RFC 8878, section 3.1.2): `pzstd` writes one before
# each frame, with its length. Polars takes such a file for plain text and refuses it as no valid UTF-8, whatever its name
# says. The same frames without the one in front are read, all of them.
#
# Why it matters here: `pzstd` is how one packs a corpus on many cores, and `.jsonl.zst` is what it makes; what reads one
# with pandas, datasets or pyarrow does not with Polars, and the error speaks of encodings, not of compression.
#
# Output seen:
#   two frames:            2 rows
#   with pzstd's in front: ComputeError: stream did not contain valid UTF-8
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check polars==2.1.0 zstandard==0.25.0
venv/bin/python - <<'PYTHON'
import polars
import zstandard

frames = [zstandard.compress(b'{"text": "page %d"}\n' % number) for number in range(2)]
plain = b"".join(frames)
sized = b"".join(b"\x50\x2a\x4d\x18\x04\0\0\0" + len(frame).to_bytes(4, "little") + frame for frame in frames)
with zstandard.ZstdDecompressor().stream_reader(sized, read_across_frames=True) as stream:
    assert stream.read() == b'{"text": "page 0"}\n{"text": "page 1"}\n'
open("plain.jsonl.zst", "wb").write(plain)
open("sized.jsonl.zst", "wb").write(sized)
rows, error = polars.scan_ndjson("plain.jsonl.zst").collect().height, ""
try:
    polars.scan_ndjson("sized.jsonl.zst").collect()
except polars.exceptions.ComputeError as raised:
    error = str(raised)
print(f"two frames:            {rows} rows")
print(f"with pzstd's in front: ComputeError: {error.partition(' at line')[0]}")
assert rows == 2 and error.startswith("stream did not contain valid UTF-8"), error
PYTHON
