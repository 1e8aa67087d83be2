"""The sample of the input that the stages of a plan run on: chosen by hashes, so that it is the same each time.

Of a list of URLs, and of document shards, rows are chosen by the hash of what makes two URLs one page: copies of a row
are all in the sample or none of them is, so that their share is that of the whole. Of anything else (texts, dumps, web
archives) whole files by the hash of their names. Costs two passes over a list; of document shards some ten times the
bytes of the sample are read.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from command_kit import Progress, atomic_file
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import is_document_shard, read_documents
from webtext_prep.documents.folders.url_lists import encode_url, read_urls
from webtext_prep.errors import InputError
from webtext_prep.running.stage import Stage
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import url_key

FILES = "files"
"""What a sample of whole files counts."""
FILES_FOR_ROWS = 10
"""Of document shards, rows are chosen from files that together hold the wanted share times this."""
SMALL_SEED = 0x736D616C
"""Of the hash by which rows of a sample are chosen once more."""


@dataclass(frozen=True)
class ChosenSample:
    """A sample of the input.

    Attributes:
        files: where it lies: a file of its own, or the chosen files of the input.
        unit: what `rows` and `total` count, "files" where whole files were chosen.
        rows: how many it holds.
        total: how many the input holds. Of shards that were not all read this is an estimate.
        scale: how many times as much the whole input is: in rows, or in bytes where whole files were chosen.
    """

    files: tuple[str, ...]
    unit: str
    rows: int
    total: int
    scale: float


def take(
    files: Sequence[Location], stage: Stage, folder: Path, share: float, at_least: int, at_most: int
) -> ChosenSample:
    """The sample of files, as the first stage reads them; rows are written to `folder`.

    Args:
        files: the whole input.
        stage: the first stage, which says what it reads.
        folder: where a sample of rows goes.
        share: of the rows, or of the bytes where whole files are chosen.
        at_least, at_most: rows, or files that are one document each.

    Raises InputError for input that holds no rows.
    """
    if reads_urls(stage) or reads_documents(stage):
        return _of_rows(files, stage, folder, share, at_least, at_most)
    if all(map(stage.reads.is_one_document, files)):
        wanted = min(max(at_least, round(share * len(files))), at_most, len(files))
        chosen, scale, unit = _in_order_of_hashes(files)[:wanted], len(files) / wanted, stage.reads.unit
    else:
        chosen, unit = _by_hash(files, share), FILES
        scale = max(1.0, sum(storage.sizes(files)) / max(sum(storage.sizes(chosen)), 1))
    return ChosenSample(tuple(map(str, chosen)), unit, len(chosen), len(files), scale)


def reads_urls(stage: Stage) -> bool:
    """Whether it reads lists of URLs, and nothing else with that suffix."""
    return stage.reads.accepts(Path("a.urls"))


def reads_documents(stage: Stage) -> bool:
    """Whether it reads document shards."""
    return stage.reads.accepts is is_document_shard


def url_hash(url: str, seed: int = 0) -> int:
    """64 bits that two URLs of one page share, as `url_key` decides; others for each seed."""
    return xxhash.xxh3_64_intdigest(url_key(url).encode("utf-8", "surrogatepass"), seed)


def _in_order_of_hashes(files: Sequence[Location]) -> list[Location]:
    return sorted(files, key=lambda file: (xxhash.xxh3_64_intdigest(os.fsencode(file.name)), str(file)))


def _by_hash(files: Sequence[Location], share: float) -> list[Location]:
    """Files by the hash of their names until they hold `share` of the bytes, one at least, in their order."""
    order = _in_order_of_hashes(files)
    sizes = storage.sizes(order)
    before = [0, *itertools.accumulate(sizes)]
    chosen = {file for file, done in zip(order, before, strict=False) if done < share * sum(sizes)} or {order[0]}
    return [file for file in files if file in chosen]


def _of_rows(
    files: Sequence[Location], stage: Stage, folder: Path, share: float, at_least: int, at_most: int
) -> ChosenSample:
    is_list = reads_urls(stage)
    some = list(files) if is_list else _by_hash(files, min(1.0, FILES_FOR_ROWS * share))
    with Progress("plan: choosing the sample", stage.reads.unit) as progress:
        lowest = heapq.nsmallest(at_most, (url_hash(row.url) for row in progress.counted(_rows(some, stage))))
    if not (count := progress.done):
        raise InputError(f"no {stage.reads.unit} in the input ({', '.join(map(str, files[:3]))}): check what made it.")
    total = round(count * sum(storage.sizes(files)) / max(1, sum(storage.sizes(some))))
    limit = lowest[min(max(at_least, round(share * total)), at_most, count) - 1]
    # A name of its own, as a document shard or as a list: the first stage goes by it.
    place = folder / ("urls.txt" if is_list else "part-00000.jsonl")
    rows = write_rows(some, stage, place, lambda url: url_hash(url) <= limit)
    return ChosenSample((str(place),), stage.reads.unit, rows, max(total, rows), max(1.0, total / rows))


def _rows(files: Sequence[Location], stage: Stage) -> Iterator[Document]:
    read: Callable[[Location], Iterator[Document]] = read_urls if reads_urls(stage) else read_documents
    return itertools.chain.from_iterable(map(read, files))


def write_rows(files: Sequence[Location], stage: Stage, place: Path, is_chosen: Callable[[str], bool]) -> int:
    """Write the rows that a stage reads and whose URL is chosen to `place`; returns how many."""
    count = 0
    with atomic_file(place) as file_:
        for row in _rows(files, stage):
            if is_chosen(row.url):
                file_.write(encode_url(row) + b"\n")
                count += 1
    return count
