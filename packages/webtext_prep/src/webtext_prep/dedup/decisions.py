"""Deciding about the suspects of one part: their sets are made again, compared, and each that goes gets a receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.dedup import pairs
from webtext_prep.dedup.candidate_pairs import SetStore, Suspects, as_text, matching_text
from webtext_prep.dedup.reference_index import NOTHING, Against
from webtext_prep.documents.document import Document, encode_document
from webtext_prep.text.fingerprints import Shingling, shingle_sets, shingle_spans

BATCH_DOCUMENTS = 256
"""Documents whose shingles are made at once."""


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
    """

    number: int
    url: str
    domain: str
    duplicate_of: str
    duplicate_of_domain: str
    similarity: float
    match: str

    def row(self, relation: str) -> bytes:
        """Its line in a table, in which its representative is named as `relation`."""
        return encode_document(Document(self.url, "", self.metadata(relation))) + b"\n"

    def metadata(self, relation: str) -> dict[str, Any]:
        """What the table says about it besides its URL."""
        return {
            relation: self.duplicate_of,
            "similarity": round(self.similarity, 6),
            "domain": self.domain,
            f"{relation}_domain": self.duplicate_of_domain,
            "match": self.match,
        }


@dataclass(frozen=True)
class Part:
    """The suspects of one part, in the order of the input.

    Attributes:
        numbers: of the documents, rising.
        keys: their band keys, shape (documents, bands).
        urls: their `Document.id`, in UTF-8.
        domains: the registered names in them.
        lengths: of their texts, in characters.
        hashes: their sets of shingles, one after another.
        ends: of each of them.
        compiled: whether there is enough to do for machine code.
    """

    numbers: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    urls: list[bytes]
    domains: list[str]
    lengths: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]
    compiled: bool

    @classmethod
    def read(
        cls,
        frames: Iterable[bytes],
        shingling: Shingling,
        folder: Path,
        report: Callable[[int], None],
        *,
        compiled: bool = True,
    ) -> Part:
        """The part that packed `Suspects` make up, with sets that don't fit into memory in a file of `folder`."""
        store = SetStore(folder)
        numbers, keys, lengths = [], [], []
        urls: list[bytes] = []
        domains: list[str] = []
        for frame in frames:
            found = Suspects.unpack(frame)
            numbers.append(np.frombuffer(found.numbers, np.int64))
            keys.append(np.frombuffer(found.keys, np.uint64).reshape(len(found.urls), -1))
            for first in range(0, len(found.texts), BATCH_DOCUMENTS):
                texts = [as_text(content) for content in found.texts[first : first + BATCH_DOCUMENTS]]
                store.add(*shingle_sets(texts, shingling, compiled=compiled))
                lengths += [len(text) for text in texts]
                report(len(lengths))
            urls += found.urls
            domains += found.domains
        hashes, ends = store.finish()
        whole = np.array(lengths, np.int64)
        return cls(np.concatenate(numbers), np.concatenate(keys), urls, domains, whole, hashes, ends, compiled)

    def duplicates_at(
        self,
        threshold: float,
        against: Against = NOTHING,
        report: Callable[[int], None] = lambda decided: None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Who goes at a threshold.

        Returns, for each document, the place in this part of its representative, or -1 if it stays; and how similar
        they are.
        """
        is_old = self.numbers >= against.first
        yields = {"new": ~is_old, "old": is_old}.get(against.loses, np.zeros(0, np.bool_)).tolist()
        order = ranking(self.lengths.tolist(), self.urls, self.numbers.tolist(), yields)
        starts = np.append(0, self.ends[:-1])
        keys = self.keys[order]
        decide = pairs.find_duplicates
        if self.compiled or pairs.pairs_in_buckets(keys) > pairs.MOST_PAIRS:
            from webtext_prep.dedup import greedy

            decide = greedy.find_duplicates
        by_rank, similarity_by_rank = decide(
            self.hashes,
            starts[order],
            self.ends[order],
            keys,
            threshold,
            is_old=is_old[order],
            report=report,
        )
        representatives = np.empty(len(order), np.int64)
        similarities = np.empty(len(order), np.float64)
        representatives[order] = np.where(by_rank >= 0, order[by_rank], -1)
        similarities[order] = similarity_by_rank
        return representatives, similarities

    def receipts(
        self,
        frame: bytes,
        representatives: npt.NDArray[np.int64],
        similarities: npt.NDArray[np.float64],
        shingling: Shingling,
        most_characters: int,
    ) -> Iterator[Duplicate]:
        """Those of one frame that go, with at most so many characters of matching text."""
        found = Suspects.unpack(frame)
        first = int(np.searchsorted(self.numbers, np.frombuffer(found.numbers, np.int64)[0]))
        for row, content in enumerate(found.texts):
            at, other = first + row, int(representatives[first + row])
            if other < 0:
                continue
            text = as_text(content)
            theirs = self.hashes[self.ends[other - 1] if other else 0 : self.ends[other]]
            spans = shingle_spans(text, shingling, compiled=self.compiled)
            yield Duplicate(
                int(self.numbers[at]),
                as_text(self.urls[at]),
                self.domains[at],
                as_text(self.urls[other]),
                self.domains[other],
                float(similarities[at]),
                matching_text(text, spans, theirs, most_characters),
            )


def ranking(
    lengths: Sequence[int], urls: Sequence[bytes], numbers: Sequence[int], yields: Sequence[bool] = ()
) -> npt.NDArray[np.int64]:
    """The order in which documents are visited: the longest first, equals by URL, then by number.

    Args:
        lengths: of the texts, in characters.
        urls: in UTF-8.
        numbers: their places in the input.
        yields: which documents come after all others, whatever their length; none if empty.

    Returns positions, shape (documents,).
    """
    last = yields or [False] * len(urls)
    order = sorted(range(len(urls)), key=lambda at: (last[at], -lengths[at], urls[at], numbers[at]))
    return np.array(order, dtype=np.int64)
