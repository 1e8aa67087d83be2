"""Reddit dumps to lists of pages: the whole stage, and the loop that anybody would write.

The dump is made of real rows (those of the tests) with ids, URLs and scores of their own; as in the real dumps of 2005,
71% have a score of 3, and no row is a self post: that much is the most work, as dropped rows are half as dear.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import zstandard

from measuring import Row, Usage, rate_of, webtext
from webtext_prep.documents.formats.compression import read_chunks
from webtext_prep.documents.formats.lines import lines_in
from webtext_prep.reddit.pages import page_key
from webtext_prep.reddit.rows import Submission, read_blocks, read_rows

TITLE = "urls: dumps of submissions, rows of 1.6 kB, a tenth of the pages submitted twice"
PEERS = ("msgspec", "zstandard", "xxhash")
GOAL = 100_000
SAMPLE = Path(__file__).resolve().parents[2] / "tests" / "webtext_prep" / "submissions" / "RS_v2_2005-07.jsonl"
KEPT = 0.71
"""The share of rows with a score of 3 in the dumps of June and July 2005."""


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """The stage where most rows are kept, and few; its steps; the loop."""
    count = 3_000 if quick else 100_000
    dump, first = write_dump(folder / "RS_2005-07.zst", count), write_dump(folder / "RS_2005-06.zst", 100)
    start = min(_run(first, folder / "first").cpu for _ in range(8))
    size = sum(len(block) for block, _ in read_blocks(dump, None, 0))
    settings: list[tuple[str, tuple[str, ...]]] = [
        ("71% kept", ()),
        ("71% kept, scores summed", ("--sum-scores",)),
        ("2% kept", ("--min-score", "98")),
    ]
    for name, flags in settings:
        used = min((_run(dump, folder / name, *flags) for _ in range(8)), key=lambda usage: usage.cpu)
        seconds = used.cpu - start
        rate, speed, note = count / seconds, size / seconds / 1e6, f"after {start:.1f} s of start-up"
        yield Row(f"ours: the whole stage, {name}", rate, "submissions", speed, GOAL, used.peak, note)
    blocks = [block for block, _ in itertools.islice(read_blocks(dump, None, 0), 32)]
    some = sum(block.count(b"\n") for block in blocks)
    taken = sum(map(len, blocks))
    yield rate_of("ours: reading rows alone", lambda: [read_rows(block) for block in blocks], some, size=taken,
                  unit="submissions")  # fmt: skip
    urls = [row.url for block in blocks for row in read_rows(block) if isinstance(row, Submission)]
    yield rate_of("ours: keys of pages alone", lambda: [page_key(url) for url in urls], some, unit="submissions")
    small = write_dump(folder / "RS_2005-08.zst", count // 10)
    yield rate_of("a plain loop: zstandard, json, a set of URLs", lambda: _loop(small, folder / "loop.jsonl.zst"),
                  count // 10, size=size // 10, unit="submissions")  # fmt: skip


def _run(dump: Path, output: Path, *flags: str) -> Usage:
    return webtext("urls", "--input", dump, "--output", output, "--workers", "1", "--restart", *flags)


def _loop(dump: Path, target: Path) -> None:
    """What the original recipe does, with a set of URLs and the metadata."""
    seen = set()
    with target.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
        for line in lines_in(dump, read_chunks(dump)):
            row = json.loads(line)
            if row["is_self"] or row["over_18"] or row["score"] < 3 or row["url"] in seen:
                continue
            seen.add(row["url"])
            kept = {name: row[name] for name in ("url", "score", "subreddit", "title", "id", "created_utc")}
            stream.write(json.dumps(kept, ensure_ascii=False).encode() + b"\n")


def write_dump(path: Path, count: int) -> Path:
    """A dump of `count` rows, the same each time."""
    source = random.Random(count)
    real = [json.loads(line) for line in SAMPLE.read_bytes().splitlines()]
    with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as stream:
        for number in range(count):
            page = number if source.random() < 0.9 else source.randrange(number + 1)
            row = dict(real[page % len(real)])
            site, _, rest = row["url"].partition("://")[2].partition("/")
            row["url"] = f"http://{site.replace('.', f'-{page % 9973}.', 1)}/{page}/{rest}"
            row |= {"id": f"{number:x}", "created_utc": row["created_utc"] + number}
            row["score"] = source.randrange(3, 100) if source.random() < KEPT else source.randrange(3)
            stream.write(json.dumps(row, separators=(",", ":")).replace("/", "\\/").encode() + b"\n")
    return path
