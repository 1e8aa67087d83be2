"""The URLs of the documents of token files, in their order, from the shards that were tokenized.

Token files hold no URLs: they are Megatron-LM's. But the record beside them leads to the shards, and where a document
comes follows from its URL, its text and the seed of the shuffle. So the shards are read once more, each by a task, and
what they hold is put in order: some 100 bytes of disk and 60 of memory for each document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from webtext_prep import storage
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.folders.stage_record import Step, trace
from webtext_prep.errors import InputError
from webtext_prep.running.tasks import Context, Task
from webtext_prep.storage.stores.base import Location
from webtext_prep.tokens.runs import shuffle_key

KINDS = (".keys.npy", ".ends.npy", ".urls")
"""What is known of a shard: its documents' keys and the ends of their URLs (u64 of shape (documents,)), and these."""
_AT_ONCE = 100_000


@dataclass(frozen=True)
class Tokenized:
    """What one run of `webtext tokenize` read: documents in one shuffle, or in the order of the input."""

    shards: tuple[Location, ...]
    is_shuffled: bool
    seed: int


def tokenized(prefix: Path) -> list[Tokenized]:
    """What token files were made from, one after another where several were joined.

    Raises InputError where that is not known, or gone.
    """
    return list(_tokenized(trace(prefix)))


def _tokenized(step: Step) -> Iterator[Tokenized]:
    if step.place is None:
        raise InputError(f"{step.name} is gone, or was made again since.")
    if step.stage == "tokenize":
        settings = step.record["settings"]
        yield Tokenized(tuple(step.input_files()), settings["shuffle"], settings["seed"])
    elif step.stage == "merge-tokens" and not step.plain_files:
        for source in step.inputs:
            yield from _tokenized(source)
    else:
        raise InputError(f"{step.name} is not known to be made from documents.")


def shard_tasks(sources: Sequence[Tokenized], scratch: Location) -> list[Task]:
    """A task for each shard, for `read_shard`."""
    shards = [(number, source, place) for number, source in enumerate(sources) for place in source.shards]
    return [
        Task(
            f"part-{at:05}",
            (place,),
            tuple(scratch / f"urls-{at:05}{kind}" for kind in KINDS),
            {"source": number, "shuffle": source.is_shuffled, "seed": source.seed},
        )
        for at, (number, source, place) in enumerate(shards)
    ]


def read_shard(task: Task, context: Context) -> int:
    """Task: the keys and URLs of the documents of a shard that have tokens. Returns their number."""
    keys: list[int] = []
    ends: list[int] = []
    size = 0
    with storage.create(task.outputs[2], durable=False) as file:
        for read, document in enumerate(context.counted(read_documents(task.inputs[0])), 1):
            if document.text:
                keys.append(shuffle_key(document, task.options["seed"]) if task.options["shuffle"] else read)
                size += file.write(document.id.encode("utf-8", "replace").replace(b"\n", b"%0A") + b"\n")
                ends.append(size)
    for place, values in zip(task.outputs, (keys, ends), strict=False):
        save_array(place, np.array(values, np.uint64))
    return len(keys)


@dataclass(frozen=True)
class _Urls:
    """The URLs of one shard, and where each ends, counted in bytes from the first one."""

    content: memoryview
    ends: npt.NDArray[np.uint64]


def write_urls(task: Task) -> tuple[int, int]:
    """Task: the URLs of all documents in the order of the token files, from what the tasks of all shards left.

    Its option `shards` holds the source of each shard, and whether that is shuffled. Returns the CRC-32 of both files.
    """
    ends_of_all, found, size = [], [0, 0], 0
    files = zip(*(task.inputs[kind :: len(KINDS)] for kind in range(len(KINDS))), strict=True)
    shards = [(*about, its) for about, its in zip(task.options["shards"], files, strict=True)]
    with storage.create(task.outputs[0]) as urls:
        for source in sorted({source for source, _, _ in shards}):
            own = [(is_shuffled, its) for its_source, is_shuffled, its in shards if its_source == source]
            for some in _in_order([its for _, its in own], is_shuffled=own[0][0]):
                found[0] = crc32(b"".join(some), found[0])
                urls.writelines(some)
                lengths = np.fromiter(map(len, some), np.uint64, len(some))
                ends_of_all.append(np.uint64(size) + np.cumsum(lengths, dtype=np.uint64))
                size += int(lengths.sum())
    with storage.create(task.outputs[1]) as file:
        for ends in ends_of_all:
            found[1] = crc32(ends.tobytes(), found[1])
            file.write(ends.astype("<u8").tobytes())
    return found[0], found[1]


def _in_order(files: Sequence[tuple[Location, ...]], *, is_shuffled: bool) -> Iterator[list[bytes]]:
    """The URLs of one source in the order of its documents, some at a time; `files` of each of its shards."""
    shards = [_Urls(_content(urls), load_array(ends)) for _, ends, urls in files]
    firsts = np.cumsum([0, *(len(shard.ends) for shard in shards)])
    keys = np.concatenate([np.zeros(0, np.uint64), *(load_array(its_keys) for its_keys, _, _ in files)])
    # Without a shuffle the order is that of the shards, whatever the keys.
    order = np.argsort(keys, kind="stable") if is_shuffled else np.arange(len(keys))
    del keys
    for at in range(0, len(order), _AT_ONCE):
        documents = order[at : at + _AT_ONCE]
        of_shard = np.searchsorted(firsts, documents, side="right") - 1
        yield [
            _url(shards[shard], document)
            for shard, document in zip(of_shard.tolist(), (documents - firsts[of_shard]).tolist(), strict=True)
        ]


def _url(shard: _Urls, document: int) -> bytes:
    begin = int(shard.ends[document - 1]) if document else 0
    return bytes(shard.content[begin : int(shard.ends[document])])


def _content(place: Location) -> memoryview:
    path = storage.local_path(place)
    return np.memmap(path, np.uint8, "r").data if storage.size(path) else memoryview(b"")
