"""Near-duplicates: fingerprints beside datasketch, rensa and datatrove, and the whole stage with what it finds.

Peers are given what their documentation shows as the fast way; each makes the shingles itself, as ours does.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from datasketch import MinHash
from rensa import RMinHash

import peers
from measuring import Row, documents, rate_of, webtext, write_json_lines
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.text import fingerprints
from webtext_prep.text.fingerprints import PERMUTATIONS, Shingling
from webtext_prep.text.words import fold, words_of

TITLE = "dedup: documents of 3 kB, a tenth of them near-duplicates of another; 128 permutations, similarity 0.8"
PEERS = ("datasketch", "xxhash", "numba", "rensa")
GOALS = {"word:5": 12_000, "char:5": 5000}
STARTED = 5_000
"""After so many documents everything is loaded, machine code too; rates of the whole stage are those from there on."""


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """Fingerprints alone, then the command."""
    found = documents(STARTED + 1_000 if quick else 100_000)
    texts = [row["text"] for row in found[: 1_000 if quick else 20_000]]
    for shingle in GOALS:
        yield from _fingerprints(texts, shingle)
    for shingle, goal in GOALS.items():
        yield _end_to_end(found, shingle, goal, folder)
    for count, seconds in ((2_000, 6),) if quick else ((20_000, 60), (100_000, 600)):
        yield _template(count, seconds, folder)
    yield _quality(documents(500 if quick else 4_000, seed=2, duplicates=0.3), folder)


def _fingerprints(texts: list[str], shingle: str) -> Iterator[Row]:
    shingling = Shingling.parse(shingle)
    size = sum(map(len, texts))

    def measured(what: str, work: Callable[[list[str]], Any], share: int = 1, note: str = "") -> Row:
        some = texts[::share]
        return rate_of(what, lambda: work(some), len(some), size=size // share, note=note)

    yield measured(f"ours: signatures, {shingle}", lambda some: fingerprints.signatures(some, shingling))
    yield measured(f"ours: sets of 64-bit hashes, {shingle}", lambda some: fingerprints.shingle_sets(some, shingling))

    def loop(some: list[str]) -> None:
        for text in some:
            sketch = _sketch()
            for entry in _shingles(text, shingling):
                sketch.update(entry)

    def batch(some: list[str]) -> None:
        for text in some:
            _sketch().update_batch(list(_shingles(text, shingling)))

    yield measured(f"datasketch: update, {shingle}", loop, 100)
    yield measured(f"datasketch: update_batch, {shingle}", batch, 20, _unequal(texts[::20], shingling))
    yield _rensa(measured, shingling)
    if shingling.kind == "word":
        yield _datatrove(texts[::100])


def _sketch() -> MinHash:
    return MinHash(fingerprints.PERMUTATIONS, fingerprints.SEED, hashfunc=xxhash.xxh32_intdigest, scheme="affine32")


def _shingles(text: str, shingling: Shingling) -> set[bytes]:
    """The n-grams of a text that is long enough for one."""
    parts = words_of(text) if shingling.kind == "word" else " ".join(fold(text).split())
    joiner, size = " " if shingling.kind == "word" else "", shingling.size
    return {joiner.join(parts[at : at + size]).encode() for at in range(len(parts) - size + 1)}


def _unequal(texts: list[str], shingling: Shingling) -> str:
    """How many of our signatures differ from datasketch's."""
    ours, theirs = fingerprints.signatures(texts, shingling), []
    for text in texts:
        sketch = _sketch()
        sketch.update_batch(list(_shingles(text, shingling)))
        theirs.append(sketch.hashvalues)
    unequal = int((ours != np.stack(theirs)).any(axis=1).sum())
    return f"{unequal} of {len(texts):,} of our signatures differ"


def _rensa(measured: Callable[..., Row], shingling: Shingling) -> Row:
    what = f"rensa: RMinHash, {shingling.kind}:{shingling.size}"

    def cut(text: str) -> list[str]:
        folded = text.casefold()
        parts: Any = re.findall(r"\w+", folded) if shingling.kind == "word" else " ".join(folded.split())
        joiner = " " if shingling.kind == "word" else ""
        return [joiner.join(parts[at : at + shingling.size]) for at in range(max(1, len(parts) - shingling.size + 1))]

    def work(some: list[str]) -> None:
        RMinHash.digest_matrix_from_token_sets([cut(text) for text in some], num_perm=PERMUTATIONS, seed=1)

    return measured(what, work, 10, "other permutations: not datasketch's signatures")


def _datatrove(texts: list[str]) -> Row:
    version, seconds = peers.datatrove_seconds(texts, {"signatures": len(texts)})
    rate = len(texts) / seconds["signatures"]
    size = sum(map(len, texts)) / seconds["signatures"] / 1e6
    return Row(
        "datatrove: MinhashDedupSignature, word:5", rate, megabytes=size, note=f"datatrove {version}, words by spaCy"
    )


def _end_to_end(found: list[dict[str, str]], shingle: str, goal: float, folder: Path) -> Row:
    """The command, in one process: read, fingerprint, sort bands, verify, write."""
    source = write_json_lines(folder / "in" / "part-00000.jsonl.zst", found).parent
    first = write_json_lines(folder / "first" / "part-00000.jsonl.zst", found[:STARTED]).parent
    settings, name = ("--shingle", shingle, "--workers", "1"), shingle.replace(":", "-")
    webtext("dedup", "--input", first, "--output", folder / f"first-{name}", *settings)  # compiles, if nothing has yet
    start = webtext("dedup", "--input", first, "--output", folder / f"start-{name}", *settings)
    used = webtext("dedup", "--input", source, "--output", folder / f"out-{name}", *settings)
    size = sum(len(row["text"]) for row in found)
    rate = (len(found) - STARTED) / (used.cpu - start.cpu)
    note = (
        f"{len(found):,} documents in {used.cpu:.1f} s; after {start.cpu:.1f} s of start-up and {STARTED:,} documents"
    )
    return Row(
        f"ours: the whole stage, {shingle}", rate, megabytes=size * rate / len(found) / 1e6, goal=goal, peak=used.peak,
        note=note,
    )  # fmt: skip


def _template(count: int, seconds: float, folder: Path) -> Row:
    """The command on pages of one template: a twentieth of the words is their own, so that two have a Jaccard of .7."""
    words, source = [f"word{number}" for number in range(3_000)], random.Random(3)
    template = source.choices(words, k=470)
    own = range(5, 470, 34)
    pages = []
    for number in range(count):
        for slot in own:
            template[slot] = f"{source.choice(words)}-{number}"
        pages.append({"url": f"https://forum.example/{number}", "text": " ".join(template)})
    first, second = (_shingles(page["text"], Shingling("word", 5)) for page in pages[:2])
    written = write_json_lines(folder / f"template-{count}" / "part-00000.jsonl.zst", pages).parent
    used = webtext("dedup", "--input", written, "--output", folder / f"template-{count}-out", "--workers", "1")
    note = f"Jaccard {_similarity(first, second):.2f} to each other, start-up included: {used.cpu:.1f} s of CPU"
    what = f"ours: the whole stage, {count:,} pages of one template"
    return Row(what, count / used.cpu, goal=count / seconds, peak=used.peak, note=note)


def _quality(found: list[dict[str, str]], folder: Path) -> Row:
    """What it drops beside all pairs of documents with their exact similarity, by the plain definition."""
    source = write_json_lines(folder / "pairs" / "part-00000.jsonl.zst", found).parent
    webtext("dedup", "--input", source, "--output", folder / "pairs-out", "--workers", "1")
    rows = [json.loads(line) for line in read_lines(folder / "pairs-out" / "dropped" / "part-00000.jsonl.zst")]
    sets = {row["url"]: _shingles(row["text"], Shingling("word", 5)) for row in found}
    ranked = sorted(found, key=lambda row: (-len(row["text"]), row["url"]))
    holders: dict[bytes, list[str]] = {}
    expected = set()
    for row in ranked:
        own = sets[row["url"]]
        common = Counter(itertools.chain.from_iterable(holders.get(entry, ()) for entry in own))
        if any(count >= 0.8 * (len(own) + len(sets[other]) - count) for other, count in common.items()):
            expected.add(row["url"])
            continue
        for entry in own:
            holders.setdefault(entry, []).append(row["url"])
    wrong = sum(_similarity(sets[row["url"]], sets[row["duplicate_of"]]) < 0.8 for row in rows)
    recall = len(expected & {row["url"] for row in rows}) / max(1, len(expected))
    note = f"recall {recall:.3f} of {len(expected):,} near-duplicates, {wrong} of {len(rows):,} drops below 0.8"
    return Row("ours: what is found, word:5", note=note)


def _similarity(left: set[bytes], right: set[bytes]) -> float:
    return len(left & right) / len(left | right)
