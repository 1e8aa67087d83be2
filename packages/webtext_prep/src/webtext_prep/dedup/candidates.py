"""Which documents of a corpus may be alike, from files of band keys: buckets, components, and parts of work.

The files of one shard are its keys (uint64, block after block, each of shape (bands, documents), so that a band is read
without the others) and the lengths of its texts (int64, in characters).

A block is a run of documents of one shard that is held in memory at once, however large the shard is. Documents are
numbered through all shards, so that a number stands for the same document in each phase.

Documents whose signatures agree in all rows of a band share a bucket (Leskovec, Rajaraman, Ullman, Mining of Massive
Datasets, 3.4). A band of a document is one 64-bit key: two different bands that share one by chance (never seen in
practice) make a false candidate, which the exact comparison refutes. Only documents that buckets connect can ever be
compared, so each component of that graph is decided by itself. A band of 10 million documents is sorted in about a
second in 240 MB; the union-find takes 4 bytes a document (8 from 2^31 documents on), in a file mapped into memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from command_kit.atomic import WriteOnly
from webtext_prep import storage
from webtext_prep.documents.folders.partitions import load_array
from webtext_prep.documents.packed import PackedTexts
from webtext_prep.running.tasks import Files
from webtext_prep.storage.locations import Location
from webtext_prep.text.fingerprints import Shingling, bands_for, packed_signatures

BLOCK_DOCUMENTS = 16_384
BLOCK_CHARACTERS = 32 << 20
"""Documents, or characters of text, at which a block ends."""
PART_CHARACTERS = (32 << 20, 128 << 20)
"""What a part of the work weighs, at the least and at the most, but for a component that is heavier by itself."""


@dataclass(frozen=True)
class DocumentBlocks:
    """All blocks of a corpus, in the order of the input.

    Attributes:
        shards: the number of the shard of each block, shape (blocks,), rising.
        firsts: the number of the first document of each, and after them that of all documents, shape (blocks + 1,).
        may_be_copied: whether the lines of its shard may be copied as they are, shape (blocks,).
    """

    shards: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    may_be_copied: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, counts: list[list[int]], compared: Sequence[bool]) -> DocumentBlocks:
        """The blocks of shards of which block by block the number of documents is given, and which may be copied."""
        shards = [shard for shard, blocks in enumerate(counts) for _ in blocks]
        firsts = np.cumsum([0, *(count for blocks in counts for count in blocks)], dtype=np.int64)
        return cls(np.array(shards, dtype=np.int64), firsts, np.array([compared[at] for at in shards], np.bool_))

    @classmethod
    def load(cls, place: Location) -> DocumentBlocks:
        """Read the blocks of documents that `save` wrote at `place`."""
        shards, counts, compared = load_array(place)
        return cls(shards, np.append(0, np.cumsum(counts)).astype(np.int64), compared.astype(np.bool_))

    def save(self, place: Location) -> None:
        """Write the blocks to a scratch file; one that holds them stays: tasks that read it are not done again then."""
        with storage.create(place) as file:
            np.save(
                WriteOnly(file), np.stack([self.shards, np.diff(self.firsts), self.may_be_copied]), allow_pickle=False
            )

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return int(self.firsts[-1])

    def in_shard(self, shard: int) -> range:
        """The blocks of one shard."""
        return range(*np.searchsorted(self.shards, [shard, shard + 1]).tolist())

    def first_of(self, shard: int) -> int:
        """The number of the first document of a shard."""
        return int(self.firsts[np.searchsorted(self.shards, shard)])

    def numbers(self, block: int) -> slice:
        """The documents of one block."""
        return slice(int(self.firsts[block]), int(self.firsts[block + 1]))


def runs_of(values: npt.NDArray[np.integer]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each value from 0 on in `values`, in rising order, with the positions that hold it."""
    order = np.argsort(values, kind="stable")
    order = order[np.searchsorted(values, 0, sorter=order) :]
    bounds = np.flatnonzero(np.diff(values[order])) + 1
    for positions in np.split(order, bounds) if len(order) else []:
        yield int(values[positions[0]]), positions


class PackedRecord(msgspec.Struct, array_like=True):
    """Records that pass from one task to another as bytes."""

    def pack(self) -> bytes:
        """The content of a partition or file."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, content: bytes) -> Self:
        """Read what `pack` returned."""
        return msgspec.msgpack.decode(content, type=cls)


Numbers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Numbers of documents: 32 bits wide where that will do."""


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


def fingerprint_blocks(
    texts: Iterable[PackedTexts],
    shingling: Shingling,
    threshold: float,
    report: Callable[[int], None],
) -> Iterator[tuple[int, bytes, bytes]]:
    """Number of documents, band keys and lengths of texts of each block, as the bytes of the shard's two files.

    `report` gets the number of `texts` done.
    """
    bands, rows = bands_for(threshold)
    keys, lengths = list[npt.NDArray[np.uint64]](), list[npt.NDArray[np.int64]]()
    done = held = characters = 0

    def block() -> tuple[int, bytes, bytes]:
        return held, np.concatenate(keys, axis=1).tobytes(), np.concatenate(lengths).tobytes()

    for some in texts:
        keys.append(band_keys(packed_signatures(some, shingling), bands, rows))
        lengths.append(some.lengths)
        held += len(some.ends)
        characters += int(some.lengths.sum())
        report(done + held)
        if held >= BLOCK_DOCUMENTS or characters >= BLOCK_CHARACTERS:
            yield block()
            keys, lengths, done, held, characters = [], [], done + held, 0, 0
    if held:
        yield block()


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

    def shared_buckets(self, band: int, number: int, ranges: int) -> tuple[Numbers, npt.NDArray[np.int64]]:
        """The buckets with several members of one of the `ranges` (a power of two) of a band's keys.

        Returns the documents, one bucket after another, and where each bucket ends.
        """
        from webtext_prep.dedup.kernels import shared_buckets

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
        from webtext_prep.dedup.kernels import divide, flatten, unite

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
        # So many parts keep all cores at work: larger corpora have larger ones, up to the most.
        return found, divide(parents, weights, int(min(max(weights.sum() // 1024, least), most)), found)


def _mapped(count: int, kind: type[np.generic], folder: Path) -> npt.NDArray[Any]:
    """An array of zeros in a nameless file of `folder`, mapped into memory: the system writes out what it must."""
    if not count:
        return np.zeros(0, kind)
    with tempfile.TemporaryFile(dir=folder) as file:
        # Written before it is mapped: in a file with holes a full disk is a signal that ends the process.
        file.write(np.zeros(count, kind).data)
        file.flush()
        return np.asarray(np.memmap(file, kind, "r+", shape=(count,)))
