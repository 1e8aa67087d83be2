"""Merging JSON lines: the whole stage by the number of shards, beside a plain loop over the same file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import zstandard

from measuring import Row, documents, rate_of, webtext

TITLE = "merge: JSON lines of 3 kB documents, a tenth of the URLs repeated"
PEERS = ("msgspec", "zstandard")
GOAL = 5000


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """The stage with few and many shards, of plain and compressed lines, and the loop that anybody would write."""
    found = documents(1_000 if quick else 40_000, duplicates=0)
    for number in range(9, len(found), 10):
        found[number]["url"] = found[number - 5]["url"]
    plain = folder / "plain.jsonl"
    plain.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found), encoding="utf-8")
    packed = folder / "packed.jsonl.zst"
    packed.write_bytes(zstandard.compress(plain.read_bytes()))
    first = folder / "first.jsonl"
    first.write_text("".join(json.dumps(row) + "\n" for row in found[:100]), encoding="utf-8")
    size = plain.stat().st_size
    start = webtext("merge", "--input", first, "--output", folder / "first", "--workers", "1").cpu
    for source, shards in ((plain, 1), (plain, 8 if quick else 1024), (packed, 1)):
        name = "" if shards == 1 and source == plain else f", {shards:,} shards" if source == plain else ", compressed"
        output = folder / f"{source.stem}-{shards}"
        used = webtext("merge", "--input", source, "--output", output, "--workers", "1", "--shards", str(shards))
        seconds = used.cpu - start
        yield Row(
            f"ours: the whole stage{name}", (len(found) - 100) / seconds, megabytes=size / seconds / 1e6, goal=GOAL,
            peak=used.peak, note=f"after {start:.1f} s of start-up",
        )  # fmt: skip
    count, loop_size = min(len(found), 8000), 0
    lines = plain.read_bytes().split(b"\n")[:count]
    loop_size = sum(map(len, lines))
    target = folder / "loop.jsonl.zst"
    yield rate_of("a plain loop: json, a set of URLs, zstandard", lambda: _loop(lines, target), count, size=loop_size)


def _loop(lines: list[bytes], target: Path) -> None:
    seen = set()
    with target.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
        for line in lines:
            row = json.loads(line)
            if row["url"] not in seen:
                seen.add(row["url"])
                stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
