"""Which domains and sources lose most of their documents: what a boilerplate page or a too low threshold looks like.

Each shard's documents are counted by themselves, names by their hashes, so that memory follows from the number of
different names a shard (24 bytes each), and only the names that are reported are ever held all at once.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep.dedup.blocks import PackedRecord
from webtext_prep.documents.document import Document

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
        """One for each name."""
        digests = (xxhash.xxh3_64_intdigest(name.encode()) for name in self.names)
        return np.fromiter(digests, np.uint64, len(self.names))

    def count(self, dropped: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Documents of each name, and how many of them are among `dropped`; shape (2, names)."""
        members = np.frombuffer(self.members, np.int32).reshape(-1, len(KINDS))
        chosen = (members.ravel(), members[dropped].ravel())
        return np.stack([np.bincount(entry[entry >= 0], minlength=len(self.names)) for entry in chosen])


class GroupCounter:
    """Puts the documents of a shard into their groups, one after another.

    Args:
        folder: the source of documents that name none themselves; empty if that says nothing.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._indexes: dict[str, int] = {}
        self._members = array.array("i")

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Pass `documents` on."""
        for document in documents:
            source = document.metadata.get("source")
            names = (document.domain, source if isinstance(source, str) else self._folder)
            for kind, name in zip(KINDS, names, strict=True):
                key = f"{kind} {name}"
                self._members.append(self._indexes.setdefault(key, len(self._indexes)) if name else -1)
            yield document

    def groups(self) -> Groups:
        """Of the documents so far."""
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
        """Its documents that go."""
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
