"""What dedup and datatrove take for near-duplicates in the corpus, beside the similarity of all pairs of documents."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from measuring import write_json_lines
from peers import python_of, versions_in
from real_corpus_pieces.road import Road, read_all, run, summary_of, taken, webtext
from real_corpus_pieces.similarity import truth

FILES = 8
OURS = "webtext"
THEIRS: Mapping[str, tuple[int, int]] = {"datatrove": (14, 8), "datatrove, 128 hashes": (16, 8)}
"""Buckets, and hashes in each: its default, and as many hashes as ours."""
SHARES = (0.25, 0.5, 1.0)
"""Of the pages of one package, for how it grows."""


def compare(road: Road) -> dict[str, Any]:
    """Both tools on the documents that `clean` left, the truth, and how ours grows on pages of one package."""
    folder = road.folder / "duplicates"
    documents = list(read_all(road.place("clean")))
    rows = [{"url": document.url, "text": document.text} for document in documents]
    python = python_of("datatrove")
    kept: dict[str, set[str]] = {}
    took: dict[str, Any] = {"documents": len(rows), "versions": versions_in(python, "datatrove"), "tools": {}}
    took["tools"][OURS], kept[OURS] = ours(folder / "ours", rows)
    for name, (buckets, hashes) in THEIRS.items():
        place = folder / f"theirs-{buckets}"
        write_input(place / "in", rows, "jsonl.gz")
        shutil.rmtree(place / "work", ignore_errors=True)
        script = Path(__file__).with_name("datatrove_dedup.py")
        took["tools"][name] = taken(run([python, script, str(buckets), str(hashes)], place))
        kept[name] = unique_in(place / "work" / "unique")
    flags = np.array([[row["url"] in urls for row in rows] for urls in kept.values()], np.bool_)
    found, near = truth([row["text"] for row in rows], flags)
    for name, figures in zip(kept, found, strict=True):
        took["tools"][name] |= figures
    near_urls = [(rows[left]["url"], rows[right]["url"], similarity) for left, right, similarity in near]
    (folder / "near.json").write_text(json.dumps(near_urls), encoding="utf-8")
    took["growth"] = growth(folder / "growth", rows)
    return took


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


def unique_in(folder: Path) -> set[str]:
    """The URLs that datatrove keeps."""
    found = set()
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found |= {json.loads(line)["metadata"]["url"] for line in file}
    return found


def growth(place: Path, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """What parts of the package with the most documents take: pages of one template."""
    hosts = Counter(row["url"].split("/")[2] for row in rows)
    ((host, _),) = hosts.most_common(1)
    own = [row for row in rows if row["url"].split("/")[2] == host]
    found = []
    for share in SHARES:
        count = round(share * len(own))
        used, _ = ours(place / str(count), own[:: round(1 / share)][:count])
        found.append({"host": host, "documents": count, **used})
    return found
