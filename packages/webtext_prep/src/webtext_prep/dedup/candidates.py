"""Which documents of a corpus may be alike, from files of band keys: buckets, components, and parts of work.

The files of one shard are its keys (uint64, block after block, each of shape (bands, documents), so that a band is read
without the others) and the lengths of its texts (int64, in characters).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep import storage
from webtext_prep.dedup import buckets
from webtext_prep.dedup.blocks import BLOCK_CHARACTERS, BLOCK_DOCUMENTS, PART_CHARACTERS, Blocks
from webtext_prep.documents.document import Document
from webtext_prep.storage.stores.base import Location
from webtext_prep.text.fingerprints import Shingling, bands_for, check_against_datasketch, signatures

BATCH_DOCUMENTS = 256
"""Documents whose shingles are made at once."""
PLAIN_DOCUMENTS = 1 << 16
"""Corpora of more documents are divided into parts by machine code."""
PARTS = 1024
"""So many parts keep all cores at work: larger corpora have larger ones, up to the most."""


def fingerprint_blocks(
    documents: Iterable[Document],
    shingling: Shingling,
    threshold: float,
    report: Callable[[int], None],
    *,
    compiled: bool = True,
) -> Iterator[tuple[int, bytes, bytes]]:
    """Of each block of documents their number, and its part of the shard's files of keys and of lengths.

    `report` is told how many of `documents` are done; `compiled` is whether there are enough for machine code.
    Raises WebtextError if the signatures of a sample of the documents are not datasketch's.
    """
    bands, rows = bands_for(threshold)
    done = 0
    for texts in _text_blocks(documents):
        if compiled and not done:
            check_against_datasketch(texts[:: len(texts) // 4 + 1], shingling)
        found = np.empty((bands, len(texts)), np.uint64)
        for first in range(0, len(texts), BATCH_DOCUMENTS):
            batch = texts[first : first + BATCH_DOCUMENTS]
            printed = signatures(batch, shingling, compiled=compiled)
            found[:, first : first + len(batch)] = buckets.band_keys(printed, bands, rows)
            report(done + first + len(batch))
        yield len(texts), found.tobytes(), np.array([len(text) for text in texts], np.int64).tobytes()
        done += len(texts)


def _text_blocks(documents: Iterable[Document]) -> Iterator[list[str]]:
    """The texts of documents in blocks, none of them empty."""
    texts: list[str] = []
    characters = 0
    for document in documents:
        texts.append(document.text)
        characters += len(document.text)
        if len(texts) >= BLOCK_DOCUMENTS or characters >= BLOCK_CHARACTERS:
            yield texts
            texts, characters = [], 0
    if texts:
        yield texts


@dataclass(frozen=True)
class Fingerprints:
    """The files of all shards, as far as they are needed.

    Attributes:
        blocks: of all shards.
        bands: keys of a document.
        keys_of: the file of keys of each shard, by its number.
        lengths_of: the file of lengths of each shard.
    """

    blocks: Blocks
    bands: int
    keys_of: Mapping[int, Location] = field(default_factory=dict)
    lengths_of: Mapping[int, Location] = field(default_factory=dict)

    @staticmethod
    def files(folder: Location, shard: int) -> tuple[Location, Location]:
        """Keys and lengths of one shard."""
        return folder / f"part-{shard:05}.keys", folder / f"part-{shard:05}.lengths"

    def keys(self, block: int, first: int, last: int) -> npt.NDArray[np.uint64]:
        """The keys of one block in the bands `first` to `last` - 1, shape (bands, documents)."""
        shard = int(self.blocks.shards[block])
        within = self.blocks.numbers(block)
        count, before = within.stop - within.start, within.start - self.blocks.first_of(shard)
        with storage.local_path(self.keys_of[shard]).open("rb", buffering=0) as file:
            file.seek(8 * (before * self.bands + first * count))
            return np.fromfile(file, np.uint64, (last - first) * count).reshape(-1, count)

    def lengths(self, shard: int) -> npt.NDArray[np.int64]:
        """The lengths of the texts of one shard."""
        return np.fromfile(storage.local_path(self.lengths_of[shard]), np.int64)

    def all_lengths(self, scratch: Path) -> npt.NDArray[np.int64]:
        """The lengths of all texts, in a nameless file of the folder `scratch` mapped into memory."""
        found = _mapped(self.blocks.documents, np.int64, scratch)
        for shard in np.unique(self.blocks.shards).tolist():
            own, first = self.lengths(shard), self.blocks.first_of(shard)
            found[first : first + len(own)] = own
        return found

    def shared_buckets(
        self, band: int, number: int, ranges: int, report: Callable[[int], None]
    ) -> tuple[buckets.Numbers, npt.NDArray[np.int64]]:
        """The buckets with several members of one of the `ranges` (a power of two) of a band's keys.

        Returns the documents, one bucket after another, and where each bucket ends.
        """
        keys, numbers = [], []
        for block in range(len(self.blocks)):
            own, within = self.keys(block, band, band + 1)[0], self.blocks.numbers(block)
            documents = np.arange(within.start, within.stop, dtype=buckets.number_type(self.blocks.documents))
            if ranges > 1:
                is_here = own >> np.uint64(65 - ranges.bit_length()) == np.uint64(number)
                own, documents = own[is_here], documents[is_here]
            keys.append(own)
            numbers.append(documents)
        found = np.concatenate(numbers) if numbers else np.zeros(0, np.int32)
        members, ends = buckets.shared_buckets(np.concatenate(keys) if keys else np.zeros(0, np.uint64))
        report(len(found))
        return found[members], ends

    def parts(
        self,
        shared: Iterable[tuple[buckets.Numbers, npt.NDArray[np.int64]]],
        scratch: Path,
        wanted: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[npt.NDArray[np.int32], int]:
        """The parts of the work, so that documents that buckets connect are in one.

        Args:
            shared: buckets of all bands, as `shared_buckets` gives them.
            scratch: a folder for arrays mapped into memory, 20 bytes a document.
            wanted: documents of which one at least must be in a component, or it is left out; all of them if None.

        Returns the part of each document, -1 for one that no bucket connects; and the number of parts.
        """
        count = self.blocks.documents
        loops: Any = buckets
        if count > PLAIN_DOCUMENTS:
            from webtext_prep.dedup import forests as loops
        parents = _mapped(count, buckets.number_type(count), scratch)
        parents[:] = np.arange(count)
        for members, ends in shared:
            loops.unite(parents, members, ends)
        lengths, weights = self.all_lengths(scratch), _mapped(count, np.int64, scratch)
        loops.flatten(parents, lengths, weights)
        if wanted is not None:
            is_wanted = np.zeros(count, np.bool_)
            is_wanted[parents[wanted]] = True
            weights[~is_wanted] = 0
        least, most = PART_CHARACTERS
        found = np.empty(count, np.int32)
        return found, loops.divide(parents, weights, int(min(max(weights.sum() // PARTS, least), most)), found)


def _mapped(count: int, kind: type[np.generic], folder: Path) -> npt.NDArray[Any]:
    """An array of zeros in a nameless file of `folder`, mapped into memory: the system writes out what it must."""
    if not count:
        return np.zeros(0, kind)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.asarray(np.memmap(file, kind, "w+", shape=(count,)))
