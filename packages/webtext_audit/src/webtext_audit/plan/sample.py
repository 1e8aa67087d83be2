"""The sample of the input that the stages of a plan run on: chosen by hashes, so that it is the same each time.

Of a list of URLs, and of document shards, rows are chosen by the hash of what makes two URLs one page: copies of a row
are all in the sample or none of them is, so that their share is that of the whole. Files that are one document each are
chosen like rows; of anything else (dumps, web archives) whole files for a share of the bytes: both by the hash of their
names. Costs two passes over a list; of document shards some ten times the bytes of the sample are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from command_kit import Progress, atomic_file, write_json
from webtext_audit.lookup.index import url_hash
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.folders.url_lists import encode_url, read_urls
from webtext_prep.errors import InputError
from webtext_prep.running.markers import digest
from webtext_prep.running.stage import Stage
from webtext_prep.storage.stores.base import Location
from webtext_prep.urls.urls import host_of

NAME = "sample.json"
FILES = "files"
"""What a sample of whole files counts."""
FILES_FOR_ROWS = 10
"""Of document shards, rows are chosen from files that together hold the wanted share times this."""
MOST_HOSTS = 500_000
"""Hosts that are counted at once; a host with a smaller share of the URLs than 1 in this many may be missed."""
KEPT_HOSTS = 1000
"""The busiest ones, which are remembered."""
_SEED = 0x736D616C
"""Of the hash by which rows of a sample are chosen once more."""
Read = Callable[[Location], Iterator[Document]]


@dataclass(frozen=True)
class Sample:
    """A sample of the input.

    Attributes:
        key: what it depends on.
        files: where it lies: files of its own, or the chosen files of the input.
        unit: what `rows` and `total` count, "files" where whole files were chosen.
        rows: how many it holds.
        total: how many the input holds. Of shards that were not all read this is an estimate.
        scale: how many times as much the whole input is: in rows, or in bytes where whole files were chosen.
        hosts: of a list of URLs the busiest hosts: URLs in all, and URLs in the sample.
    """

    key: str
    files: tuple[str, ...]
    unit: str
    rows: int
    total: int
    scale: float
    hosts: dict[str, tuple[int, int]]

    @property
    def share(self) -> float:
        """The sample's part of the input, up to 1."""
        return 1 / self.scale


def take(paths: Sequence[str], stage: Stage, folder: Path, *, share: float, at_least: int, at_most: int) -> Sample:
    """The sample of what `paths` name, as the first stage reads it; written to `folder`, if it is not there already.

    Args:
        paths: files, folders, globs.
        stage: the first stage, which says what it reads.
        folder: where the sample goes.
        share: of the rows, or of the bytes where whole files are chosen.
        at_least, at_most: rows.

    Raises InputError for input that is not there, or holds no rows.
    """
    files, _ = stage.find(paths, folder)
    stamps = storage.stamps(files)
    key = digest([stage.name, stage.unit, [str(file) for file in files], stamps, share, at_least, at_most])
    kept = folder / NAME
    if (earlier := _read(kept)) is not None and earlier.key == key:
        return earlier
    folder.mkdir(parents=True, exist_ok=True)
    if _reads_urls(stage) or type(stage).accepts is Stage.accepts:
        sample = _of_rows(files, stage, folder, share, at_least, at_most)
    elif all(map(stage.is_one_document, files)):
        wanted = min(max(at_least, round(share * len(files))), at_most, len(files))
        names = tuple(map(str, _in_order_of_hashes(files)[:wanted]))
        sample = Sample("", names, stage.unit, wanted, len(files), len(files) / wanted, {})
    else:
        chosen = _by_hash(files, share)
        sizes = [sum(storage.sizes(some)) for some in (files, chosen)]
        scale = max(1.0, sizes[0] / max(sizes[1], 1))
        sample = Sample("", tuple(map(str, chosen)), FILES, len(chosen), len(files), scale, {})
    sample = dataclasses.replace(sample, key=key)
    write_json(kept, dataclasses.asdict(sample))
    return sample


def _reads_urls(stage: Stage) -> bool:
    """Whether it reads lists of URLs, and nothing else with that suffix."""
    return stage.accepts(Path("a.urls"))


def _read(path: Path) -> Sample | None:
    with contextlib.suppress(OSError, ValueError):
        return msgspec.json.decode(path.read_bytes(), type=Sample)
    return None


def _in_order_of_hashes(files: Sequence[Location]) -> list[Location]:
    return sorted(files, key=lambda file: (xxhash.xxh3_64_intdigest(os.fsencode(file.name)), str(file)))


def _by_hash(files: Sequence[Location], share: float) -> list[Location]:
    """Files by the hash of their names until they hold `share` of the bytes, one at least, in their order."""
    sizes = dict(zip(files, storage.sizes(files), strict=True))
    wanted, taken = share * sum(sizes.values()), 0
    chosen: set[Location] = set()
    for file in _in_order_of_hashes(files):
        if chosen and taken >= wanted:
            break
        chosen.add(file)
        taken += sizes[file]
    return [file for file in files if file in chosen]


def _of_rows(
    files: Sequence[Location], stage: Stage, folder: Path, share: float, at_least: int, at_most: int
) -> Sample:
    is_list = _reads_urls(stage)
    read: Read = read_urls if is_list else read_documents
    some = list(files) if is_list else _by_hash(files, min(1.0, FILES_FOR_ROWS * share))
    hosts = BusyHosts()

    def hashes() -> Iterator[int]:
        for row in progress.counted(itertools.chain.from_iterable(map(read, some))):
            if is_list:
                hosts.add(row.url)
            yield url_hash(row.url)

    with Progress("plan: choosing the sample", stage.unit) as progress:
        lowest = heapq.nsmallest(at_most, hashes())
    if not (count := progress.done):
        raise InputError(f"no {stage.unit} in the input ({', '.join(map(str, files[:3]))}): check what made it.")
    read_share = sum(storage.sizes(some)) / max(1, sum(storage.sizes(files)))
    total = round(count / read_share) if read_share else count
    wanted = min(max(at_least, round(share * total)), at_most, count)
    limit = lowest[wanted - 1]
    # A name of its own, as a document shard or as a list: the first stage goes by it.
    place = folder / ("urls.txt" if is_list else "part-00000.jsonl")
    sampled = _write_rows(some, stage, place, lambda url: url_hash(url) <= limit)
    rows = sampled.total()
    busiest = {host: (number, sampled[host]) for host, number in hosts.most_common(KEPT_HOSTS)}
    return Sample("", (str(place),), stage.unit, rows, total, max(1.0, total / rows), busiest)


class BusyHosts:
    """URLs by host, in bounded memory: Misra and Gries, "Finding repeated elements" (1982).

    Counts are too low by at most the number of URLs divided by `most`, and exact while there are no more hosts.
    """

    def __init__(self, most: int = MOST_HOSTS) -> None:
        self._most, self._counts = most, dict[str, int]()

    def add(self, url: str) -> None:
        """Count one URL; a text that is none is left out."""
        host = host_of(url)
        if not host:
            return
        if host in self._counts or len(self._counts) < self._most:
            self._counts[host] = self._counts.get(host, 0) + 1
            return
        self._counts = {name: count - 1 for name, count in self._counts.items() if count > 1}

    def most_common(self, number: int) -> list[tuple[str, int]]:
        """The busiest hosts, equal ones by name."""
        return heapq.nsmallest(number, self._counts.items(), key=lambda item: (-item[1], item[0]))


def some_rows(files: Sequence[Location], stage: Stage, one_in: int, place: Path) -> int:
    """Write one row in `one_in` of what a stage reads, by hash, to `place`; returns how many."""
    return _write_rows(files, stage, place, lambda url: url_hash(url, _SEED) % one_in == 0).total()


def _write_rows(files: Sequence[Location], stage: Stage, place: Path, is_chosen: Callable[[str], bool]) -> Counter[str]:
    """Write the rows whose URL is chosen to `place`; returns how many there are of each host."""
    read: Read = read_urls if _reads_urls(stage) else read_documents
    found = Counter[str]()
    with atomic_file(place) as file_:
        for row in itertools.chain.from_iterable(map(read, files)):
            if is_chosen(row.url):
                file_.write(encode_url(row) + b"\n")
                found[host_of(row.url)] += 1
    return found
