"""What dedup, datatrove and text-dedup take for near-duplicates in the corpus, beside the similarity of all pairs."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from measuring import write_json_lines
from peers import python_of, versions_in
from real_corpus_pieces.packages import Page
from real_corpus_pieces.road import Road, read_all, run, summary_of, taken, webtext
from real_corpus_pieces.similarity import truth

FILES = 8
OURS = "webtext"
SHARES = (0.25, 0.5, 1.0)
"""Of the pages of one template, for how it grows."""


def _datatrove(buckets: int, hashes: int) -> list[str | Path]:
    return [Path(__file__).with_name("datatrove_dedup.py"), str(buckets), str(hashes)]


def _datatrove_kept(folder: Path) -> Iterator[str]:
    for path in sorted((folder / "unique").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from (json.loads(line)["metadata"]["url"] for line in file)


def _text_dedup(bands: int, rows: int) -> list[str | Path]:
    words = "-m text_dedup.minhash --path json --data_files in/*.jsonl.gz --split train --column text --ngram 5"
    words += f" --num_perm {bands * rows} --b {bands} --r {rows} --num_proc 2 --batch_size 10000"
    return [*words.split(), "--cache_dir", "work/cache", "--output", "work/unique"]


def _text_dedup_kept(folder: Path) -> Iterator[str]:
    for path in sorted((folder / "unique").glob("*.arrow")):
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as batches:
            yield from (url for batch in batches for url in batch.column("url").to_pylist())


class Peer(NamedTuple):
    """Another tool.

    Attributes:
        package: whose environment it runs in.
        bands: of its signatures.
        rows: hashes in each.
        command: what follows Python, given both.
        kept: reads the URLs of the documents that it keeps, in the folder that it works in.
    """

    package: str
    bands: int
    rows: int
    command: Callable[[int, int], list[str | Path]]
    kept: Callable[[Path], Iterator[str]]


THEIRS: Mapping[str, Peer] = {
    "datatrove": Peer("datatrove", 14, 8, _datatrove, _datatrove_kept),
    "datatrove, 128 hashes": Peer("datatrove", 16, 8, _datatrove, _datatrove_kept),
    "text-dedup, 128 hashes": Peer("text-dedup", 16, 8, _text_dedup, _text_dedup_kept),
}
"""datatrove by its default, and both with as many hashes as ours."""


def compare(road: Road) -> dict[str, Any]:
    """All tools on the documents that `clean` left, and the truth."""
    folder = road.folder / "duplicates"
    rows = rows_of(road, "clean")
    kept: dict[str, set[str]] = {}
    took: dict[str, Any] = {"documents": len(rows), "versions": {}, "tools": {}}
    took["tools"][OURS], kept[OURS] = ours(folder / "ours", rows)
    for name, peer in THEIRS.items():
        python = python_of(peer.package.replace("-", "_"))
        took["versions"] |= versions_in(python, peer.package)
        place = folder / f"{peer.package}-{peer.bands}"
        write_input(place / "in", rows, "jsonl.gz")
        shutil.rmtree(place / "work", ignore_errors=True)
        took["tools"][name] = taken(run([python, *peer.command(peer.bands, peer.rows)], place))
        kept[name] = set(peer.kept(place / "work"))
    flags = np.array([[row["url"] in urls for row in rows] for urls in kept.values()], np.bool_)
    found, near = truth([row["text"] for row in rows], flags)
    for name, figures in zip(kept, found, strict=True):
        took["tools"][name] |= figures
    near_urls = [(rows[left]["url"], rows[right]["url"], similarity) for left, right, similarity in near]
    (folder / "near.json").write_text(json.dumps(near_urls), encoding="utf-8")
    return took


def rows_of(road: Road, step: str) -> list[dict[str, str]]:
    """The documents that a step left."""
    return [{"url": document.url, "text": document.text} for document in read_all(road.place(step))]


def write_input(folder: Path, rows: Sequence[dict[str, str]], ending: str) -> Path:
    """The documents in some files."""
    for number in range(FILES):
        write_json_lines(folder / f"documents-{number:02}.{ending}", rows[number::FILES])
    return folder


def ours(place: Path, rows: Sequence[dict[str, str]]) -> tuple[dict[str, float], set[str]]:
    """What `webtext dedup` takes for documents, and the URLs that it keeps."""
    shutil.rmtree(place / "out", ignore_errors=True)
    source = write_input(place / "in", rows, "jsonl.zst")
    used = run([*webtext("dedup"), "--input", source, "--output", place / "out", "--workers", "2", "--json"], place)
    kept = {document.url for document in read_all(place / "out")}
    return taken(used) | {"dropped": len(rows) - summary_of(used)["out"]}, kept


def growth(road: Road, pages: Sequence[Page]) -> list[dict[str, Any]]:
    """What parts of the pages by the generator with the most take, however short their texts are."""
    ((generator, _),) = Counter(page.generator for page in pages if page.generator).most_common(1)
    urls = {page.url for page in pages if page.generator == generator}
    own = [row for row in rows_of(road, "merge") if row["url"] in urls]
    found = []
    for share in SHARES:
        count = round(share * len(own))
        used, _ = ours(road.folder / "growth" / str(count), own[:: round(1 / share)][:count])
        found.append({"generator": generator, "documents": count, **used})
    return found
