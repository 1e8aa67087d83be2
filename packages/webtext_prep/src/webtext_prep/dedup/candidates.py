"""Which documents of a corpus may be alike, from files of band keys: buckets, components, and parts of work.

The files of one shard are its keys (uint64, block after block, each of shape (bands, documents), so that a band is read
without the others) and the lengths of its texts (int64, in characters).

Documents whose signatures agree in all rows of a band share a bucket (Leskovec, Rajaraman, Ullman, Mining of Massive
Datasets, 3.4). A band of a document is one 64-bit key: two different bands that share one by chance (never seen in
practice) make a false candidate, which the exact comparison refutes. Only documents that buckets connect can ever be
compared, so each component of that graph is decided by itself. A band of 10 million documents is sorted in about a
second in 240 MB; the union-find takes 4 bytes a document (8 from 2^31 documents on), in a file mapped into memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep import storage
from webtext_prep.dedup.blocks import BLOCK_CHARACTERS, BLOCK_DOCUMENTS, PART_CHARACTERS, DocumentBlocks
from webtext_prep.documents.batches import in_batches
from webtext_prep.documents.document import Document
from webtext_prep.running.tasks import Files
from webtext_prep.storage.locations import Location
from webtext_prep.text.compiled import compiled
from webtext_prep.text.fingerprints import Shingling, bands_for, signatures

Numbers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Numbers of documents: 32 bits wide where that will do."""

DOCUMENT_WEIGHT = 256
"""What a document weighs besides its text, in characters: its keys, its URL, and its place in memory."""


def number_type(documents: int) -> type[np.int32] | type[np.int64]:
    """The smallest integers that can number all documents."""
    return np.int32 if documents <= np.iinfo(np.int32).max else np.int64


def band_keys(signatures: npt.NDArray[np.uint32], bands: int, rows: int) -> npt.NDArray[np.uint64]:
    """The key of each band, shape (bands, documents), of signatures of shape (documents, at least bands * rows)."""
    keys = np.full((bands, len(signatures)), rows, np.uint64)
    for row in range(rows):
        # One round of MurmurHash3's 64-bit finalizer for each value (A. Appleby, public domain).
        keys ^= signatures[:, row : bands * rows : rows].T
        keys *= np.uint64(0xFF51AFD7ED558CCD)
        keys ^= keys >> np.uint64(33)
    keys *= np.uint64(0xC4CEB9FE1A85EC53)
    keys ^= keys >> np.uint64(33)
    return keys


def shared_buckets(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which positions of `keys` hold the same key: the buckets of one band with more than one member.

    Returns:
        members, one bucket after the other; and ends, of each bucket in `members`. The order in a bucket is arbitrary.
    """
    order = np.argsort(keys)
    ranked = keys[order]
    is_last = np.append(ranked[1:] != ranked[:-1], True)[: len(ranked)]
    bounds = np.flatnonzero(is_last) + 1
    sizes = np.diff(bounds, prepend=0)
    is_shared = np.repeat(sizes > 1, sizes)
    return order[is_shared], np.cumsum(sizes[sizes > 1])


_I32S, _I64S = types.int32[::1], types.int64[::1]


@compiled(types.void(_I32S, _I32S, _I64S), types.void(_I64S, _I64S, _I64S))
def unite(parents: Numbers, members: Numbers, ends: npt.NDArray[np.int64]) -> None:
    """Join the components of the members of each bucket.

    `parents` is a forest, shape (documents,), that begins as `arange`: its roots are the smallest numbers of their
    components, so that the result does not depend on the order of the buckets.
    """
    start = 0
    for end in ends:
        root = members[start]
        for at in range(start, end):
            other = members[at]
            while parents[other] != other:
                parents[other] = parents[parents[other]]  # path halving
                other = parents[other]
            if other < root:
                parents[root] = other
                root = other
            elif root < other:
                parents[other] = root
        start = end


@compiled(types.void(_I32S, _I64S, _I64S), types.void(_I64S, _I64S, _I64S))
def flatten(parents: Numbers, lengths: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> None:
    """Let each document point to the root of its component, and add up there what the component weighs.

    Args:
        parents: as `unite` leaves it; changed in place.
        lengths: of the documents' texts.
        weights: zeros, shape (documents,). That of the root of a component with several members becomes the sum
            of their lengths and `DOCUMENT_WEIGHT`; all others become 0.
    """
    for document in range(len(parents)):
        root = parents[parents[document]]  # a parent is smaller than its child, so its own root is known already
        parents[document] = root
        weight = lengths[document] + DOCUMENT_WEIGHT
        # Until a second member comes, a root holds its own weight as a negative number.
        if root == document:
            weights[root] = -weight
        elif weights[root] < 0:
            weights[root] = weight - weights[root]
        else:
            weights[root] += weight
    for document in range(len(parents)):
        weights[document] = max(weights[document], 0)


@compiled(types.int64(_I32S, _I64S, types.int64, _I32S), types.int64(_I64S, _I64S, types.int64, _I32S))
def divide(parents: Numbers, weights: npt.NDArray[np.int64], most: int, parts: npt.NDArray[np.int32]) -> int:
    """Divide the components into parts of at most `most`, but for a component that weighs more by itself.

    Args:
        parents: as `flatten` leaves it.
        weights: as `flatten` leaves it.
        most: the weight of a part.
        parts: is filled with the part of each document, shape (documents,); -1 for one that no bucket connects.

    Returns the number of parts.
    """
    part, filled = 0, 0
    for document in range(len(parents)):
        root = parents[document]
        if root != document:
            parts[document] = parts[root]
        elif weights[document] == 0:
            parts[document] = -1
        else:
            if filled > 0 and filled + weights[document] > most:
                part, filled = part + 1, 0
            filled += weights[document]
            parts[document] = part
    return part + 1 if filled > 0 else 0


BATCH_DOCUMENTS = 256
"""Documents whose shingles are made at once."""
PARTS = 1024
"""Parts that keep all cores at work: larger corpora have larger ones, up to the most."""


def fingerprint_blocks(
    documents: Iterable[Document],
    shingling: Shingling,
    threshold: float,
    report: Callable[[int], None],
) -> Iterator[tuple[int, bytes, bytes]]:
    """Of each block of documents their number, and its part of the shard's files of keys and of lengths.

    `report` gets the number of `documents` done.
    """
    bands, rows = bands_for(threshold)
    done = 0
    for texts in in_batches((document.text for document in documents), BLOCK_DOCUMENTS, BLOCK_CHARACTERS, len):
        found = np.empty((bands, len(texts)), np.uint64)
        for first in range(0, len(texts), BATCH_DOCUMENTS):
            batch = texts[first : first + BATCH_DOCUMENTS]
            found[:, first : first + len(batch)] = band_keys(signatures(batch, shingling), bands, rows)
            report(done + first + len(batch))
        yield len(texts), found.tobytes(), np.array([len(text) for text in texts], np.int64).tobytes()
        done += len(texts)


@dataclass(frozen=True)
class Fingerprints:
    """The files of all shards, as far as they are needed.

    Attributes:
        blocks: of all shards.
        bands: keys of a document.
        keys_of: the file of keys of each shard, by its number.
        lengths_of: the file of lengths of each shard.
    """

    blocks: DocumentBlocks
    bands: int
    keys_of: Mapping[int, Location] = field(default_factory=dict)
    lengths_of: Mapping[int, Location] = field(default_factory=dict)

    @staticmethod
    def files(folder: Location, shard: int) -> Files:
        """Keys (`prints`) and `lengths` of one shard."""
        return Files(prints=folder / f"part-{shard:05}.keys", lengths=folder / f"part-{shard:05}.lengths")

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
    ) -> tuple[Numbers, npt.NDArray[np.int64]]:
        """The buckets with several members of one of the `ranges` (a power of two) of a band's keys.

        Returns the documents, one bucket after another, and where each bucket ends.
        """
        keys, numbers = [], []
        for block in range(len(self.blocks)):
            own, within = self.keys(block, band, band + 1)[0], self.blocks.numbers(block)
            documents = np.arange(within.start, within.stop, dtype=number_type(self.blocks.documents))
            if ranges > 1:
                is_here = own >> np.uint64(65 - ranges.bit_length()) == np.uint64(number)
                own, documents = own[is_here], documents[is_here]
            keys.append(own)
            numbers.append(documents)
        found = np.concatenate(numbers) if numbers else np.zeros(0, np.int32)
        members, ends = shared_buckets(np.concatenate(keys) if keys else np.zeros(0, np.uint64))
        report(len(found))
        return found[members], ends

    def parts(
        self,
        shared: Iterable[tuple[Numbers, npt.NDArray[np.int64]]],
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
        parents = _mapped(count, number_type(count), scratch)
        parents[:] = np.arange(count)
        for members, ends in shared:
            unite(parents, members, ends)
        lengths, weights = self.all_lengths(scratch), _mapped(count, np.int64, scratch)
        flatten(parents, lengths, weights)
        if wanted is not None:
            is_wanted = np.zeros(count, np.bool_)
            is_wanted[parents[wanted]] = True
            weights[~is_wanted] = 0
        least, most = PART_CHARACTERS
        found = np.empty(count, np.int32)
        return found, divide(parents, weights, int(min(max(weights.sum() // PARTS, least), most)), found)


def _mapped(count: int, kind: type[np.generic], folder: Path) -> npt.NDArray[Any]:
    """An array of zeros in a nameless file of `folder`, mapped into memory: the system writes out what it must."""
    if not count:
        return np.zeros(0, kind)
    with tempfile.TemporaryFile(dir=folder) as file:
        # Written before it is mapped: in a file with holes a full disk is a signal that ends the process.
        file.write(np.zeros(count, kind).data)
        file.flush()
        return np.asarray(np.memmap(file, kind, "r+", shape=(count,)))
