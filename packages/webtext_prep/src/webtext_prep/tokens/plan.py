"""Which documents of the encoded shards go where in the final token files: parts that can be written in any order.

The parts follow from the corpus alone. In a shuffle each takes an equal share of the range of keys; since keys are
hashes, that is about an equal share of the documents. In the order of the input each is one run.
"""

from __future__ import annotations

import base64
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from command_kit import atomic_file
from indexed_tokens.writer import PairDraft, Written
from webtext_prep.tokens.runs import EncodedShard, read_slices

KEYS = 1 << 64
DOCUMENT_BYTES = 40
"""What a document of a part costs in memory besides its tokens, about."""


@dataclass(frozen=True)
class Part:
    """A part of the output: the documents of some shards whose keys are `low` to `high`, both included.

    Attributes:
        shards: the first of the shards, and one behind the last.
        document: the number of its first document in the output.
        token: the number of its first token in the output.
    """

    low: int
    high: int
    shards: tuple[int, int]
    document: int
    token: int


def parts_by_key(shards: Sequence[EncodedShard], token_bytes: int, part_bytes: int) -> Iterator[Part]:
    """Parts that take about `part_bytes` of memory each, by ascending keys; a token takes `token_bytes`."""
    size = sum(token_bytes * shard.count_tokens() + DOCUMENT_BYTES * sum(shard.runs) for shard in shards)
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
        yield Part(low, high, (0, len(shards)), document, token)


def parts_in_order(shards: Sequence[EncodedShard]) -> Iterator[Part]:
    """A part for each run, in the order of the input, where keys are the numbers of documents in their shard."""
    document = token = 0
    for number, shard in enumerate(shards):
        for run in shard.open_runs():
            yield Part(int(run.keys[0]), int(run.keys[-1]), (number, number + 1), document, token)
            document += len(run.keys)
            token += int(run.ends[-1]) - run.begin


@dataclass(frozen=True)
class Plan:
    """The encoded shards, the parts, and the draft that they are written to."""

    shards: list[EncodedShard]
    parts: list[Part]
    draft: PairDraft

    def write(self, path: Path) -> None:
        """Write it for tasks to read: it may take megabytes, and they may be thousands."""
        with atomic_file(path, durable=False) as file:
            file.write(msgspec.json.encode(self, enc_hook=bytes))

    def read_part(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """The tokens in each document of one part, and all of them. Memory is twice the part's tokens."""
        part = self.parts[number]
        slices = read_slices(self.shards[slice(*part.shards)], np.dtype(self.draft.dtype), part.low, part.high)
        return slices.sorted()

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


def read_plan(path: Path) -> Plan:
    """The plan in a file. Raises OSError."""

    def path_of(kind: Any, value: str) -> Any:
        return kind(os.fsdecode(base64.b64decode(value)))

    return msgspec.json.decode(path.read_bytes(), type=Plan, dec_hook=path_of)
