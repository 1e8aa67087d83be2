"""The documents of a corpus in blocks.

A block is a run of documents of one shard that is held in memory at once, however large the shard is. Documents are
numbered through all shards, so that a number stands for the same document in each phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from webtext_prep import storage
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.storage.locations import Location

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
    """

    shards: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, counts: list[list[int]]) -> DocumentBlocks:
        """The blocks of shards of which block by block the number of documents is given."""
        shards = [shard for shard, blocks in enumerate(counts) for _ in blocks]
        firsts = np.cumsum([0, *(count for blocks in counts for count in blocks)], dtype=np.int64)
        return cls(np.array(shards, dtype=np.int64), firsts)

    @classmethod
    def load(cls, place: Location) -> DocumentBlocks:
        """Read the blocks of documents that `save` wrote at `place`."""
        shards, counts = load_array(place)
        return cls(shards, np.append(0, np.cumsum(counts)).astype(np.int64))

    def save(self, place: Location) -> None:
        """Write them to a scratch file, unless it holds them already: tasks that read it are not done again then."""
        content = np.stack([self.shards, np.diff(self.firsts)])
        if storage.is_file(place) and np.array_equal(load_array(place), content):
            return
        save_array(place, content)

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


class PackedRecord(msgspec.Struct, array_like=True):
    """Records that pass from one task to another as bytes."""

    def pack(self) -> bytes:
        """The content of a partition or file."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, content: bytes) -> Self:
        """Read what `pack` returned."""
        return msgspec.msgpack.decode(content, type=cls)


def runs_of(values: npt.NDArray[np.integer]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each value from 0 on in `values`, in rising order, with the positions that hold it."""
    order = np.argsort(values, kind="stable")
    order = order[np.searchsorted(values, 0, sorter=order) :]
    bounds = np.flatnonzero(np.diff(values[order])) + 1
    for positions in np.split(order, bounds) if len(order) else []:
        yield int(values[positions[0]]), positions


LOSERS = ("new", "old", "shorter")
"""Which of a new and an old document that are alike may go."""


class Against(NamedTuple):
    """The old documents of a corpus.

    Attributes:
        first: the number of the first of them; they come after all new documents.
        loses: one of `LOSERS`.
        hold_out: the share of pages that are held out of training; their documents go last.
    """

    first: int
    loses: str = LOSERS[0]
    hold_out: float = 0.0
