"""What each similarity would drop: counted over a corpus, or estimated from a sample of its documents.

A sample of documents is chosen by a hash of their URLs, and each of them is decided as in the whole corpus, among all
documents that buckets connect it with. So the share of the sample that goes is an unbiased estimate of the corpus's (to
look for duplicates within a sample would miss nearly all of them). Candidates are found for the lowest similarity: at
higher ones a run may find a little less, but at least 99% of the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep.dedup.blocks import Against
from webtext_prep.dedup.decisions import as_bytes
from webtext_prep.documents.document import without_surrogates
from webtext_prep.text.fingerprints import Shingling

if TYPE_CHECKING:
    from webtext_prep.dedup.decisions import CandidatePart


STEP = 0.05
THRESHOLDS = tuple(percent / 100 for percent in range(50, 100, 5))
EXAMPLES = 3
"""Pairs that are shown for each similarity: some that are hardly more alike than that."""
EVERYTHING = 2**64 - 1
"""The highest hash of a sample that is the whole corpus."""
_SEED = 0x5EED
_CONFIDENCE = 1.96
"""Standard deviations of a 95% interval."""


def sample_hash(url: bytes) -> int:
    """What decides whether a document is in a sample: the lowest values are."""
    return xxhash.xxh3_64_intdigest(url, _SEED)


def choose(hashes: npt.NDArray[np.uint64], size: int) -> int:
    """The highest hash of a sample of `size` documents; of all of them if `size` is 0."""
    return EVERYTHING if not size or size >= len(hashes) else int(np.partition(hashes, size - 1)[size - 1])


def examine(
    part: CandidatePart,
    frames: Iterable[bytes],
    against: Against,
    last: int,
    shingling: Shingling,
    report: Callable[[int], None],
) -> dict[str, Any]:
    """What becomes of the documents of one part at each similarity.

    Args:
        part: the candidates.
        frames: the same once more, packed.
        against: which of them are old.
        last: the highest hash of the sample.
        shingling: what their sets were made with.
        report: called with the number of similarities done.

    Returns `counts`: for each similarity the documents and the characters that go; and `examples`: lists of a hash and
    a row of the table of duplicates.
    """
    hashes = np.fromiter(map(sample_hash, part.urls), np.uint64, len(part.urls))
    is_counted = (part.numbers < against.first) & (hashes <= np.uint64(last))
    counts, shown = [], []
    for done, threshold in enumerate(THRESHOLDS, 1):
        representatives, similarities = part.duplicates_at(threshold, against)
        goes = is_counted & (representatives >= 0)
        counts.append([int(goes.sum()), int(part.lengths[goes].sum())])
        close = np.flatnonzero(goes & (similarities < threshold + STEP))
        chosen = close[np.argsort(hashes[close], kind="stable")[:EXAMPLES]]
        pairs = np.full(len(representatives), -1)
        pairs[chosen] = representatives[chosen]
        shown.append((pairs, similarities))
        report(done)
    examples: list[list[Any]] = [[] for _ in THRESHOLDS]
    for content in frames:
        for rows, (pairs, similarities) in zip(examples, shown, strict=True):
            for found in part.receipts(content, pairs, similarities, shingling):
                row = {"url": found.url, **found.metadata("duplicate_of")}
                rows.append([sample_hash(as_bytes(found.url)), without_surrogates(row)])
    return {"counts": counts, "examples": examples}


def combine(results: Iterable[dict[str, Any]], documents: int, characters: int, sampled: int) -> list[dict[str, Any]]:
    """The table: a row for each similarity.

    Args:
        results: of `examine`, of all parts.
        documents: how many documents there are.
        characters: of the texts that were looked at.
        sampled: how many were looked at.
    """
    everything = list(results)
    table = []
    for at, threshold in enumerate(THRESHOLDS):
        dropped, length = np.array([[0, 0], *(result["counts"][at] for result in everything)]).sum(axis=0).tolist()
        examples = sorted(
            (entry for result in everything for entry in result["examples"][at]), key=lambda entry: entry[0]
        )
        row: dict[str, Any] = {
            "similarity": threshold,
            "dropped": dropped,
            "share": round(dropped / max(1, sampled), 6),
        }
        if sampled < documents:
            row["interval"] = [round(bound, 6) for bound in wilson(dropped, sampled)]
        row |= {"characters": length, "characters_share": round(length / max(1, characters), 6)}
        table.append({**row, "examples": [entry for _, entry in examples[:EXAMPLES]]})
    return table


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95% interval of a share of which `hits` of `count` were seen (E. B. Wilson, 1927)."""
    if not count:
        return 0.0, 1.0
    square = _CONFIDENCE**2
    middle = (hits + square / 2) / (count + square)
    width = _CONFIDENCE * math.sqrt(hits * (count - hits) / count + square / 4) / (count + square)
    return max(0.0, middle - width), min(1.0, middle + width)


def render(table: list[dict[str, Any]], documents: int, sampled: int) -> str:
    """The table for people, with the examples."""
    is_sample = sampled < documents
    what = f"a sample of {sampled:,} of {documents:,} documents" if is_sample else f"all {documents:,} documents"
    return "\n".join([f"dedup, dry run: {what}; nothing was written.", "", *_lines(table, is_sample)])


def _lines(table: list[dict[str, Any]], is_sample: bool) -> Iterator[str]:
    interval = f"{'95% interval':>16}" if is_sample else ""
    yield f"{'similarity':>10}{'dropped':>12}{'share':>8}{interval}{'characters':>16}{'share':>8}"
    for row in table:
        bounds = "{:.1%} - {:.1%}".format(*row["interval"]) if is_sample else ""
        yield (
            f"{row['similarity']:>10.2f}{row['dropped']:>12,}{row['share']:>8.1%}"
            f"{bounds:>{len(interval)}}{row['characters']:>16,}{row['characters_share']:>8.1%}"
        )
    yield from ("", "Pairs that are hardly more alike than that:")
    for row in table:
        for example in row["examples"]:
            yield ""
            yield f"  {example['similarity']:.3f}  {example['url']}"
            yield f"  {'like':>5}  {example['duplicate_of']}"
            yield f"         {' '.join(example['match'].split())}"
