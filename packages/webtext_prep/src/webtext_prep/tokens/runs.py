"""The tokens of documents between the two phases of tokenize: runs sorted by key, in two files for each shard.

A run is what fits into memory: the tokens of its documents in the order of their keys, and the table of them. Memory is
that of one run for any size of a shard. Since a run is sorted, the documents of any range of keys lie side by side
in it: all ranges can be gathered in parallel, each with one read a run.

`NAME.tokens` holds tokens alone. `NAME.table` holds for each run the keys of its n documents (u64) and then the ends of
their tokens in `NAME.tokens` (u64), 16 bytes a document.

A `ShufflePlan` says which documents go where in the final token files, in parts that can be written in any order. The
parts follow from the corpus alone. In a shuffle each takes an equal share of the range of keys; since keys are hashes,
that is about an equal share of the documents. In the order of the input each is one run.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from command_kit import atomic_file
from indexed_tokens.writer import PairDraft, Written
from webtext_prep.documents.document import Document
from webtext_prep.errors import WebtextError
from webtext_prep.urls.urls import held_out_reason

Keys = npt.NDArray[np.uint64]
DOCUMENT_BYTES = 160
"""What a document costs in memory besides its tokens, about."""
_AT_ONCE = 100_000
_PORT = re.compile(r"^(\w+://[^/?#:]*):\d+")


def document_key(document: Document, use: str) -> int:
    """A random number for a document: 64 bits that follow from its URL and text, and from what they are for, alone.

    Each use has a name of its own, so that what one chooses says nothing of what another chooses. The port in a URL
    does not count: a server on this machine has another one each time.
    """
    text = xxhash.xxh3_128_digest(document.text.encode("utf-8", "surrogatepass"))
    url = document.url
    if url.count(":") > 1:
        url = _PORT.sub(r"\1", url)
    return xxhash.xxh3_64_intdigest(b"%b %b %b" % (use.encode(), text, url.encode("utf-8", "surrogatepass")))


def shuffle_key(document: Document, seed: int) -> int:
    """Where a document comes in the shuffle of that seed: one more or one less leaves the order of all others as it
    was."""
    return document_key(document, str(seed))


def encoding_refused(document: Document, hold_out: float, *, only_held_out: bool) -> str:
    """Why a document does not go into token files, by the settings of `webtext tokenize`; empty if it does."""
    return held_out_reason(document.url, hold_out, is_only=only_held_out) if document.text else "empty"


def held_out_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Which pages `webtext tokenize` with recorded `settings` wrote, as `encoding_refused` takes it."""
    return {name: settings.get(name, default) for name, default in (("hold_out", 0.0), ("only_held_out", False))}


Entries = npt.NDArray[np.uint64]
"""Key and bytes of a document in each row."""


def first_by_key(entries: Entries, size: int) -> Entries:
    """The rows with the smallest keys that hold `size` bytes together; the last of them may reach beyond."""
    entries = entries[np.argsort(entries[:, 0], kind="stable")]
    before = np.cumsum(entries[:, 1]) - entries[:, 1]
    return entries[before < size]


class RunWriter:
    """Collects documents and appends them to a shard's two files, run after run. Use as a context manager.

    Args:
        tokens: `NAME.tokens`.
        table: `NAME.table`.
        dtype: the type of a token.
        end: tokens after each document.

    Attributes:
        runs: documents in each run that is in the files.
        pending: bytes of memory for documents that are in no run yet.
    """

    def __init__(self, tokens: Path, table: Path, dtype: np.dtype[Any], end: Sequence[int] = ()) -> None:
        self.dtype, self.runs, self.pending = dtype, list[int](), 0
        self._end_of_document = np.array(end, dtype)
        self._keys: list[int] = []
        self._documents: list[npt.NDArray[Any]] = []
        tokens.parent.mkdir(parents=True, exist_ok=True)
        self._table, self._tokens, self._end = table.open("wb"), tokens.open("wb"), 0

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._table.close()
        self._tokens.close()

    def add(self, key: int, tokens: Sequence[int] | npt.NDArray[Any]) -> None:
        """Add one document: `tokens`, and after them the writer's `end`."""
        document = np.asarray(tokens).astype(self.dtype)
        self._keys.append(key)
        self._documents.append(document)
        self.pending += document.nbytes + self._end_of_document.nbytes + DOCUMENT_BYTES

    def flush(self) -> None:
        """Write what was added since the last run as a run, sorted by key; equal keys stay in order."""
        if not self._keys:
            return
        keys = np.array(self._keys, np.uint64)
        order = np.argsort(keys, kind="stable")
        documents = [self._documents[at] for at in order.tolist()]
        end = self._end_of_document
        lengths = np.fromiter(map(len, documents), np.uint64, len(documents)) + np.uint64(len(end))
        ends = np.uint64(self._end) + np.cumsum(lengths)
        self._tokens.write(np.concatenate([piece for own in documents for piece in (own, end)]).data)
        self._table.write(keys[order].data)
        self._table.write(ends.data)
        self._end = int(ends[-1])
        self.runs.append(len(keys))
        self._keys, self._documents, self.pending = [], [], 0


@dataclass(frozen=True)
class SortedRun:
    """One run of a shard.

    Attributes:
        keys: of its documents, ascending, shape (documents,).
        ends: one after the last token of each, counted from the first of the shard, shape (documents,).
        begin: the first token of the run.
    """

    keys: Keys
    ends: Keys
    begin: int

    def documents(self, low: int, high: int) -> tuple[int, int]:
        """The range of its documents whose keys are `low` to `high`, both included."""
        first = int(np.searchsorted(self.keys, np.uint64(low)))
        return first, int(np.searchsorted(self.keys, np.uint64(high), side="right"))

    def tokens(self, first: int, last: int) -> tuple[int, int]:
        """The range of tokens of documents `first` to `last` (not included)."""
        begin = int(self.ends[first - 1]) if first else self.begin
        return begin, int(self.ends[last - 1]) if last > first else begin


@dataclass(frozen=True)
class EncodedShard:
    """The two files of one shard, and how many documents are in each of its runs."""

    tokens: Path
    table: Path
    runs: list[int]

    def count_tokens(self) -> int:
        """How many tokens its documents have."""
        return max((int(run.ends[-1]) for run in self.open_runs()), default=0)

    def open_runs(self) -> Iterator[SortedRun]:
        """The runs of the shard, mapped into memory: only the parts looked at are read."""
        if not self.runs:
            return
        table = np.memmap(self.table, np.uint64, "r")
        at = begin = 0
        for count in self.runs:
            run = SortedRun(table[at : at + count], table[at + count : at + 2 * count], begin)
            begin, at = int(run.ends[-1]), at + 2 * count
            yield run


Tokens = tuple[npt.NDArray[np.int64], npt.NDArray[Any]]
"""How many tokens each of some documents has, and all of them, one document after another."""


def read_sorted(shards: Sequence[EncodedShard], dtype: np.dtype[Any], low: int, high: int) -> Tokens:
    """All documents of `shards` whose keys are `low` to `high`, both included: one read for each run.

    They are in the order of their keys; those of equal keys in the order of the shards, then as added. Raises
    WebtextError if a file is shorter than its table says.
    """
    keys, lengths = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    places: list[tuple[Path, int, int]] = []
    for shard in shards:
        for run in shard.open_runs():
            first, last = run.documents(low, high)
            if first < last:
                begin, end = run.tokens(first, last)
                keys.append(np.array(run.keys[first:last]))
                ends = run.ends[first:last].astype(np.int64)
                lengths.append(ends - np.concatenate([[begin], ends[:-1]]))
                places.append((shard.tokens, begin, end))
    tokens = np.empty(sum(end - begin for _, begin, end in places), dtype)
    at = 0
    for path, of_path in itertools.groupby(places, key=lambda place: place[0]):
        with path.open("rb", buffering=0) as file:
            for _, begin, end in of_path:
                _read_into(file, begin * dtype.itemsize, tokens[at : at + end - begin].view(np.uint8).data, path)
                at += end - begin
    return _by_key(np.concatenate(keys), np.concatenate(lengths), tokens)


def _by_key(keys: Keys, lengths: npt.NDArray[np.int64], tokens: npt.NDArray[Any]) -> Tokens:
    order = np.argsort(keys, kind="stable")
    begins, lengths = (np.cumsum(lengths) - lengths)[order], lengths[order]
    found, at = np.empty_like(tokens), 0
    # Some documents at a time: an object for each of millions of short ones would be far more than their tokens.
    for first in range(0, len(order), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        pieces = [tokens[a : a + n] for a, n in zip(begins[some].tolist(), lengths[some].tolist(), strict=True)]
        size = int(lengths[some].sum())
        np.concatenate(pieces, out=found[at : at + size])
        at += size
    return lengths, found


def _read_into(file: FileIO, offset: int, place: memoryview, path: Path) -> None:
    file.seek(offset)
    while place:
        count = file.readinto(place)
        if not count:
            raise WebtextError(f"{path}, a file between two phases, was cut off: run the command again with --restart.")
        place = place[count:]


KEYS = 1 << 64


@dataclass(frozen=True)
class ShufflePart:
    """A part of the output: the documents of some shards whose keys are `low` to `high`, both included.

    Attributes:
        shards: the first of the shards, and one after the last.
        document: the number of its first document in the output.
        token: the number of its first token in the output.
    """

    low: int
    high: int
    shards: tuple[int, int]
    document: int
    token: int


def parts_by_key(shards: Sequence[EncodedShard], token_bytes: int, part_bytes: int) -> Iterator[ShufflePart]:
    """Parts that take about `part_bytes` of memory each, by ascending keys; a token takes `token_bytes`."""
    # A document costs some 40 bytes of memory besides its tokens.
    size = sum(token_bytes * shard.count_tokens() + 40 * sum(shard.runs) for shard in shards)
    count = max(1, -(-size // part_bytes))
    lows = [number * KEYS // count for number in range(count)]
    documents_before = np.zeros(count, np.int64)
    tokens_before = np.zeros(count, np.int64)
    for run in itertools.chain.from_iterable(shard.open_runs() for shard in shards):
        firsts = np.searchsorted(run.keys, np.array(lows, np.uint64))
        documents_before += firsts
        tokens_before += np.where(firsts > 0, run.ends[firsts - 1].astype(np.int64), run.begin) - run.begin
    highs = [low - 1 for low in [*lows[1:], KEYS]]
    for low, high, document, token in zip(lows, highs, documents_before.tolist(), tokens_before.tolist(), strict=True):
        yield ShufflePart(low, high, (0, len(shards)), document, token)


def parts_in_order(shards: Sequence[EncodedShard]) -> Iterator[ShufflePart]:
    """A part for each run, in the order of the input, where keys are the numbers of documents in their shard."""
    document = token = 0
    for number, shard in enumerate(shards):
        for run in shard.open_runs():
            yield ShufflePart(int(run.keys[0]), int(run.keys[-1]), (number, number + 1), document, token)
            document += len(run.keys)
            token += int(run.ends[-1]) - run.begin


@dataclass(frozen=True)
class ShufflePlan:
    """The encoded shards, the parts, and the draft that they are written to."""

    shards: list[EncodedShard]
    parts: list[ShufflePart]
    draft: PairDraft

    def write(self, path: Path) -> None:
        """Write the plan for tasks to read: it may take megabytes, and they may be thousands."""
        with atomic_file(path, durable=False) as file:
            file.write(msgspec.json.encode(self, enc_hook=bytes))

    def read_part(self, number: int) -> Tokens:
        """The tokens in each document of one part, and all of them. Memory is twice the part's tokens."""
        part = self.parts[number]
        return read_sorted(self.shards[slice(*part.shards)], np.dtype(self.draft.dtype), part.low, part.high)

    def write_part(self, number: int, lengths: npt.NDArray[np.int64], tokens: npt.NDArray[Any]) -> Written:
        """Write what `read_part` gave to its place in the draft; returns its checksums. Raises OSError."""
        part, itemsize = self.parts[number], np.dtype(self.draft.dtype).itemsize
        offset = part.token * itemsize
        return {
            **self.draft.write_tokens(offset, tokens.view(np.uint8).data),
            **self.draft.write_sequences(part.document, lengths, offset),
            # One sequence a document.
            **self.draft.write_documents(part.document, np.arange(part.document, part.document + len(lengths))),
        }


def read_plan(path: Path) -> ShufflePlan:
    """The plan in a file. Raises OSError."""

    def path_of(kind: Any, value: str) -> Any:
        return kind(os.fsdecode(base64.b64decode(value)))

    return msgspec.json.decode(path.read_bytes(), type=ShufflePlan, dec_hook=path_of)
