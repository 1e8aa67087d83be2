"""What a run loses, and what one would drop: the alarm of `dedup`, and its dry run.

**Losses**: which domains and sources lose most of their documents, what a boilerplate page or a too low threshold looks
like. Each shard's documents are counted by themselves, names by their hashes, so that memory follows from the number of
different names a shard (24 bytes each), and only the names that are reported are ever held all at once.

**The dry run** is counted over a corpus, or estimated from a sample of its documents. A sample is chosen by a hash of
their URLs, and each of its documents is decided as in the whole corpus, among all documents that buckets connect it
with. So the share of the sample that goes is an unbiased estimate of the corpus's (to look for duplicates within a
sample would miss nearly all of them). Candidates are found for the lowest similarity: at higher ones a run may find a
little less, but at least 99% of the pairs.
"""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep.dedup.candidates import PackedRecord
from webtext_prep.dedup.decisions import Against, CandidatePart, Sets, as_bytes
from webtext_prep.documents.document import Document, without_surrogates
from webtext_prep.text.fingerprints import Shingling

# Losses


LEAST = 20
"""Groups of fewer documents are not reported: one family of pages is most of them."""
MOST_LISTED = 1000
"""Groups that are listed, by the greatest share lost."""


KINDS = ("domain", "source")
"""The kinds of groups, in the order in which `Groups.members` has them."""


class Groups(PackedRecord):
    """To which groups the documents of a shard belong.

    Attributes:
        names: of the groups: their kind, a space, and what they are called.
        members: int32 of shape (documents, kinds), an index of `names` for each kind of group, or -1 for none.
    """

    names: list[str]
    members: bytes

    def hashes(self) -> npt.NDArray[np.uint64]:
        """A 64-bit hash of each name, shape (names,)."""
        digests = (xxhash.xxh3_64_intdigest(name.encode()) for name in self.names)
        return np.fromiter(digests, np.uint64, len(self.names))

    def count(self, dropped: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Documents of each name, and how many of them are among `dropped`; shape (2, names)."""
        members = np.frombuffer(self.members, np.int32).reshape(-1, len(KINDS))
        chosen = (members.ravel(), members[dropped].ravel())
        return np.stack([np.bincount(entry[entry >= 0], minlength=len(self.names)) for entry in chosen])


class GroupCounter:
    """Puts the documents of a shard into their groups.

    Args:
        folder: the source of documents that name none themselves; empty if that says nothing.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._indexes: dict[str, int] = {}
        self._members = array.array("i")

    def add(self, documents: Iterable[Document]) -> None:
        """Count some documents."""
        indexes, members = self._indexes, self._members
        for document in documents:
            domain, source = document.domain, document.metadata.get("source", self._folder)
            if not isinstance(source, str):
                source = self._folder
            members.append(indexes.setdefault(f"domain {domain}", len(indexes)) if domain else -1)
            members.append(indexes.setdefault(f"source {source}", len(indexes)) if source else -1)

    def groups(self) -> Groups:
        """The groups of the documents counted so far."""
        names = [name.encode("utf-8", "replace").decode() for name in self._indexes]
        return Groups(names, np.array(self._members, np.int32).tobytes())


@dataclass(frozen=True)
class Loss:
    """A group that loses documents.

    Attributes:
        group: its kind and its name.
        documents: how many it had.
        dropped: how many of them go.
    """

    group: str
    documents: int
    dropped: int

    @property
    def share(self) -> float:
        """The share of the group's documents that are dropped, from 0 to 1."""
        return self.dropped / self.documents

    def as_dict(self) -> dict[str, Any]:
        """For JSON: `domain` or `source` with its name, documents and dropped."""
        kind, _, name = self.group.partition(" ")
        return {kind: name, "documents": self.documents, "dropped": self.dropped}

    def __str__(self) -> str:
        return f"{self.group} loses {self.dropped:,} of {self.documents:,} documents ({self.share:.0%})"


def largest_losses(
    shards: Iterable[Callable[[], tuple[Groups, npt.NDArray[np.int64]]]], share: float, least: int = LEAST
) -> list[Loss]:
    """The groups of at least a number of documents that lose more than a share of them, the greatest share first.

    Args:
        shards: functions that load the groups of a shard and which of its documents go; each is called twice.
        share: from 0 to 1.
        least: documents.
    """
    loaders = list(shards)
    hashes, counts = [np.zeros(0, np.uint64)], [np.zeros((2, 0), np.int64)]
    for load in loaders:
        groups, dropped = load()
        hashes.append(groups.hashes())
        counts.append(groups.count(dropped))
    known, rows = np.unique(np.concatenate(hashes), return_inverse=True)
    totals = np.zeros((2, len(known)), np.int64)
    for total, entries in zip(totals, np.concatenate(counts, axis=1), strict=True):
        np.add.at(total, rows, entries)
    chosen = np.flatnonzero((totals[0] >= least) & (totals[1] > share * totals[0]))
    names: dict[int, str] = {}
    for load in loaders if len(chosen) else []:
        groups = load()[0]
        own = groups.hashes()
        for at in np.flatnonzero(np.isin(own, known[chosen])).tolist():
            names[int(own[at])] = groups.names[at]
    losses = [Loss(names[int(known[at])], *totals[:, at].tolist()) for at in chosen]
    return sorted(losses, key=lambda loss: (-loss.share, -loss.dropped, loss.group))


LACKING = (0.0, 0.01, 0.05, 0.1, 0.2)
"""Shares of the 3-grams of a document that goes which the one that stays lacks: those up to each are counted."""


def count_lacking(shares: Iterable[float]) -> list[int]:
    """How many shares are up to each of `LACKING`, and above all."""
    return np.bincount(np.searchsorted(LACKING, list(shares)), minlength=len(LACKING) + 1).tolist()


def told_lacking(counts: Iterable[list[int]]) -> list[str]:
    """The sum of such counts, in words."""
    names = ["no 3-gram", *(f"up to {share:.0%}" for share in LACKING[1:]), f"over {LACKING[-1]:.0%}"]
    totals = np.array([[0] * len(names), *counts]).sum(axis=0)
    return [f"{name}: {count:,}" for name, count in zip(names, totals.tolist(), strict=True) if count]


# The dry run


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
    trigrams: Sets,
    against: Against,
    last: int,
    shingling: Shingling,
    report: Callable[[int], None],
) -> dict[str, Any]:
    """What becomes of the documents of one part at each similarity.

    Args:
        part: the candidates.
        frames: the same once more, packed.
        trigrams: of the same.
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
        representatives, similarities = part.duplicates_at(threshold, against, trigrams)
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
            for found in part.receipts(content, (pairs, similarities), trigrams, shingling):
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
