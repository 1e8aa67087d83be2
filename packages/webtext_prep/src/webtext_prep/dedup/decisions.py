"""Deciding about the candidates of one part: their sets are made again, compared, and each that goes gets a receipt.

Candidates are documents that share a bucket with another. Their texts are kept in scratch files, compressed; their sets
of shingles are made again by the task that compares them: sets take 1.4 (words) to 7 bytes (characters) a byte of text,
compressed texts 0.4.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from webtext_prep.dedup.candidates import PackedRecord
from webtext_prep.documents.document import BATCH_DOCUMENTS, Document, encode_document
from webtext_prep.documents.packed import PackedTexts
from webtext_prep.text.fingerprints import Shingling, packed_sets, shingle_spans
from webtext_prep.urls.urls import is_held_out

LOSERS = ("new", "old", "shorter")
"""Which of a new and an old document that are alike may go."""


class Against(NamedTuple):
    """The old documents of a corpus.

    Attributes:
        first: the number of the first of them; they come after all new documents.
        loses: one of `LOSERS`.
        hold_out: the share of pages that are held out of training; their documents go last.
        contained: the share of a document's 3-grams that the one that stays must have.
    """

    first: int
    loses: str = LOSERS[0]
    hold_out: float = 0.0
    contained: float = 0.0


TRIGRAMS = Shingling("word", 3)
"""What a document that goes may have and its representative not: as Marin (marin-community/marin, #7591) has it."""


MEMORY_BYTES = 256 << 20
"""Sets that take more than this are kept in a file mapped into memory: sets of one large component."""


class CandidateFrame(PackedRecord):
    """Some candidates of one block, in the order of the input.

    Attributes:
        numbers: of the documents, as int64.
        keys: their band keys, as uint64 of shape (documents, bands).
        urls: their `Document.id`, in UTF-8.
        domains: the registered name of each document's host.
        texts: in UTF-8.
        lengths: in characters, as int64.
        places: of each among preferred sources, as uint16.
    """

    numbers: bytes
    keys: bytes
    urls: list[bytes]
    domains: list[str]
    texts: list[bytes]
    lengths: bytes
    places: bytes

    @classmethod
    def of(
        cls,
        numbers: npt.NDArray[np.int64],
        keys: npt.NDArray[np.uint64],
        documents: list[Document],
        place: Callable[[Document], int],
    ) -> CandidateFrame:
        """A frame of documents with their numbers, their band keys of shape (bands, documents), and their places."""
        return cls(
            numbers.tobytes(),
            keys.T.tobytes(),
            [as_bytes(document.id) for document in documents],
            [document.domain for document in documents],
            [as_bytes(document.text) for document in documents],
            np.fromiter((len(document.text) for document in documents), np.int64, len(documents)).tobytes(),
            np.fromiter(map(place, documents), np.uint16, len(documents)).tobytes(),
        )

    def packed(self, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[PackedTexts]:
        """The texts, in batches; those that are not wanted are empty."""
        lengths = np.frombuffer(self.lengths, np.int64)
        for first in range(0, len(self.texts), BATCH_DOCUMENTS):
            some = slice(first, first + BATCH_DOCUMENTS)
            texts, own = self.texts[some], lengths[some]
            if wanted is not None:
                texts = [text if is_wanted else b"" for text, is_wanted in zip(texts, wanted[some], strict=True)]
                own = np.where(wanted[some], own, 0)
            yield PackedTexts.of_encoded(texts, own)


def as_bytes(text: str) -> bytes:
    """UTF-8, also of text with lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def as_text(content: bytes) -> str:
    """The inverse of `as_bytes`."""
    return content.decode("utf-8", "surrogatepass")


Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Of each document the place of its representative, or -1 if it stays, and how similar they are."""
Sets = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Sorted sets, one after another, and where each ends."""


MATCH_CHARACTERS = 200
"""The longest passage of matching text in a row of the table."""


class Decided(PackedRecord):
    """What was decided about the documents of one block by one task: which ones go, in the order of the input.

    Attributes:
        numbers: of the documents, as int64.
        rows: of the table of duplicates, one line each.
    """

    numbers: bytes
    rows: list[bytes]


class SetStore:
    """Sets of shingles, collected text by text: in memory as long as they are few, then in a file.

    Args:
        folder: for the file, which has no name and goes with the process.
        memory: the most bytes in memory.
    """

    def __init__(self, folder: Path, memory: int = MEMORY_BYTES) -> None:
        self._folder, self._memory = folder, memory
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self._count = 0
        self._file: BinaryIO | None = None  # nameless, so that it goes with the process

    def add(self, hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64]) -> None:
        """Add the sets of some texts, as `fingerprints.shingle_sets` gives them."""
        self._ends.append(ends + self._count)
        self._count += len(hashes)
        self._hashes.append(hashes)
        if self._file is None and 8 * self._count > self._memory:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - `finish` closes it
        if self._file is not None:
            for entry in self._hashes:
                self._file.write(entry.data)
            self._hashes = []

    def finish(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """All sets one after another, and where each ends."""
        ends = np.concatenate(self._ends) if self._ends else np.zeros(0, np.int64)
        if self._file is None:
            return np.concatenate(self._hashes) if self._hashes else np.zeros(0, np.uint64), ends
        with self._file as file:
            file.flush()
            return np.asarray(np.memmap(file, np.uint64, "r+", shape=(self._count,))), ends


def matching_passages(
    texts: PackedTexts, shingling: Shingling, sets: Sets, others: npt.NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Where in each text its longest passage begins and ends whose shingles are all in another set.

    Args:
        texts: some texts.
        shingling: what sets were made with.
        sets: as `fingerprints.shingle_sets` gives them.
        others: the number of the set for each text.
    """
    from webtext_prep.dedup.kernels import longest_runs

    spans, (hashes, ends) = shingle_spans(texts, shingling), sets
    starts = np.where(others > 0, ends[others - 1], 0)
    first, last = longest_runs(spans.hashes, spans.text_ends, hashes, starts, ends[others]).T
    is_none = last < first
    begin, end = spans.starts[np.where(is_none, 0, first)], spans.ends[np.where(is_none, 0, last)]
    return list(zip(np.where(is_none, 0, begin).tolist(), np.where(is_none, 0, end).tolist(), strict=True))


@dataclass(frozen=True)
class Duplicate:
    """A document that goes.

    Attributes:
        number: of the document.
        url: its `Document.id`.
        domain: the registered name in it.
        duplicate_of: that of its representative, which stays.
        duplicate_of_domain: the registered name in that.
        similarity: the Jaccard similarity of both.
        match: the beginning of the longest passage of its text that is also in the representative's.
        lacking: the share of its 3-grams that the representative lacks.
        place: that of the representative among preferred sources, if it stays for that; else -1.
    """

    number: int
    url: str
    domain: str
    duplicate_of: str
    duplicate_of_domain: str
    similarity: float
    match: str
    lacking: float
    place: int

    def row(self, relation: str, prefer: Sequence[str]) -> bytes:
        """A line of the table of duplicates, in which the representative is named as `relation`."""
        preferred = {"preferred": prefer[self.place]} if self.place >= 0 else {}
        return encode_document(Document(self.url, "", self.metadata(relation) | preferred)) + b"\n"

    def metadata(self, relation: str) -> dict[str, Any]:
        """What the table says about it besides its URL."""
        return {
            relation: self.duplicate_of,
            "similarity": round(self.similarity, 6),
            "domain": self.domain,
            f"{relation}_domain": self.duplicate_of_domain,
            "match": self.match,
            "lacking": round(self.lacking, 6),
        }


@dataclass(frozen=True)
class CandidatePart:
    """The candidates of one part, in the order of the input.

    Attributes:
        numbers: of the documents, rising.
        keys: their band keys, shape (documents, bands).
        urls: their `Document.id`, in UTF-8.
        domains: the registered names in them.
        lengths: of their texts, in characters.
        hashes: their sets of shingles, one after another.
        ends: of each of them.
        places: among preferred sources.
    """

    numbers: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    urls: list[bytes]
    domains: list[str]
    lengths: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]
    places: npt.NDArray[np.uint16]

    @classmethod
    def read(
        cls,
        frames: Iterable[bytes],
        shingling: Shingling,
        folder: Path,
        report: Callable[[int], None],
    ) -> CandidatePart:
        """The part that packed frames make up, with sets that don't fit into memory in a file of `folder`."""
        store = SetStore(folder)
        numbers, keys, lengths, places, count = [], [], [], [], 0
        urls: list[bytes] = []
        domains: list[str] = []
        for frame in frames:
            found = CandidateFrame.unpack(frame)
            numbers.append(np.frombuffer(found.numbers, np.int64))
            keys.append(np.frombuffer(found.keys, np.uint64).reshape(len(found.urls), -1))
            for texts in found.packed():
                store.add(*packed_sets(texts, shingling))
                count += len(texts.ends)
                report(count)
            lengths.append(np.frombuffer(found.lengths, np.int64))
            urls += found.urls
            domains += found.domains
            places.append(np.frombuffer(found.places, np.uint16))
        hashes, ends = store.finish()
        of_all = (np.concatenate(lengths), hashes, ends, np.concatenate(places))
        return cls(np.concatenate(numbers), np.concatenate(keys), urls, domains, *of_all)

    def trigrams(self, frames: Iterable[bytes], wanted: npt.NDArray[np.bool_], folder: Path) -> Sets:
        """The sets of 3-grams of the wanted documents, of the same frames once more; those of others are empty."""
        store, done = SetStore(folder), 0
        for frame in frames if wanted.any() else ():
            found = CandidateFrame.unpack(frame)
            for texts in found.packed(wanted[done : done + len(found.texts)]):
                store.add(*packed_sets(texts, TRIGRAMS))
            done += len(found.texts)
        hashes, ends = store.finish()
        return hashes, ends if len(ends) else np.zeros(len(wanted), np.int64)

    def duplicates_at(
        self,
        threshold: float,
        against: Against,
        trigrams: Sets | None = None,
        report: Callable[[int], None] = lambda decided: None,
    ) -> Found:
        """Who goes at a threshold. Documents of pages that are held out, then of preferred sources, come before others
        of any length. `trigrams` are those of all, where a document that goes must be contained in another.

        Returns, for each document, the place in this part of its representative, or -1 if it stays; and how similar
        they are.
        """
        from webtext_prep.dedup.kernels import Ranges, find_duplicates

        is_old = self.numbers >= against.first
        yields = {"new": ~is_old, "old": is_old}.get(against.loses, np.zeros(len(is_old), np.bool_))
        ranks = 2 * yields.astype(np.int64) + ~self.held_out(against.hold_out)
        # Documents that yield come last, for any length; the longest first, equals by URL, then by number.
        order = np.lexsort((self.numbers, np.array(self.urls, object), -self.lengths, self.places, ranks))

        def in_order(hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64]) -> Ranges:
            return hashes, np.append(0, ends[:-1])[order], ends[order]

        by_rank, similarity_by_rank = find_duplicates(
            *in_order(self.hashes, self.ends),
            self.keys[order],
            threshold,
            is_old=is_old[order],
            grams=in_order(*trigrams) if trigrams else None,
            contained=against.contained,
            report=report,
        )
        representatives = np.empty(len(order), np.int64)
        similarities = np.empty(len(order), np.float64)
        representatives[order] = np.where(by_rank >= 0, order[by_rank], -1)
        similarities[order] = similarity_by_rank
        return representatives, similarities

    def held_out(self, share: float) -> npt.NDArray[np.bool_]:
        """Which documents are of pages that are held out, shape (documents,)."""
        if not share:
            return np.zeros(len(self.urls), np.bool_)
        return np.fromiter((is_held_out(as_text(url), share) for url in self.urls), np.bool_, len(self.urls))

    def copies_of_held_out(self, representatives: npt.NDArray[np.int64], against: Against) -> int:
        """How many new documents go since they repeat one that is held out, and are not held out themselves."""
        is_held_out = self.held_out(against.hold_out)
        goes = (representatives >= 0) & (self.numbers < against.first)
        return int((goes & is_held_out[representatives] & ~is_held_out).sum())

    def compared(self, found: Found, shingling: Shingling) -> npt.NDArray[np.bool_]:
        """Whose 3-grams must be looked at: of documents that go, and those that stay for them, but for equal ones."""
        representatives, similarities = found
        is_plain = shingling.kind == "word" and shingling.size >= TRIGRAMS.size  # equal shingles, then, say all
        wanted = (representatives >= 0) & ~(is_plain & (similarities == 1))
        wanted[representatives[wanted]] = True
        return wanted

    def receipts(self, frame: bytes, decided: Found, trigrams: Sets, shingling: Shingling) -> Iterator[Duplicate]:
        """The documents of one frame that go."""
        representatives, similarities = decided
        found = CandidateFrame.unpack(frame)
        first = int(np.searchsorted(self.numbers, np.frombuffer(found.numbers, np.int64)[0]))
        rows = np.flatnonzero(representatives[first : first + len(found.texts)] >= 0)
        for some in np.split(rows, range(BATCH_DOCUMENTS, len(rows), BATCH_DOCUMENTS)) if len(rows) else []:
            texts, others = [found.texts[row] for row in some.tolist()], representatives[first + some]
            packed = PackedTexts.of_encoded(texts, self.lengths[first + some])
            passages = matching_passages(packed, shingling, (self.hashes, self.ends), others)
            for at, other, content, (begin, end) in zip(
                (first + some).tolist(), others.tolist(), texts, passages, strict=True
            ):
                match = as_text(content)[begin : min(end, begin + MATCH_CHARACTERS)]
                number, url, duplicate_of = int(self.numbers[at]), as_text(self.urls[at]), as_text(self.urls[other])
                lacking = share_lacking(_set_of(at, *trigrams), _set_of(other, *trigrams))
                place = int(self.places[other]) if self.places[other] < self.places[at] else -1
                domains, similarity = (self.domains[at], self.domains[other]), float(similarities[at])
                yield Duplicate(number, url, domains[0], duplicate_of, domains[1], similarity, match, lacking, place)


def _set_of(document: int, hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return hashes[ends[document - 1] if document else 0 : ends[document]]


def share_lacking(ours: npt.NDArray[np.uint64], theirs: npt.NDArray[np.uint64]) -> float:
    """The share of a sorted set that another sorted one lacks; 0 of an empty set."""
    from webtext_prep.dedup.kernels import count_lacking

    return count_lacking(ours, theirs) / max(1, len(ours))
