"""What earlier runs of a download have fetched, for any lists.

When the lists of a download change, in number, order or content, the shards and journals made so far are set aside as
a generation: a folder of links to them, and an index from URL to shard. A new shard then finds every page that was
ever fetched for this output, wherever it lay. The index is a sorted array on disk, 8 bytes per URL, made and looked up
through a memory map; whoever looks up holds 8 bytes for each URL of its own list.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from webtext_prep import storage
from webtext_prep.crawl.state import SUFFIX, pages_of
from webtext_prep.crawl.state.database import Entry, Journal, url_digest
from webtext_prep.crawl.state.page_cache import SPOOL_SUFFIX, PageSpool, entries_of, segments_in
from webtext_prep.crawl.state.page_cache import SUFFIX as SEGMENT_SUFFIX
from webtext_prep.documents.folders.shards import read_documents, shards_in
from webtext_prep.documents.folders.stage_record import PAGES
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import OUTCOMES, PageOutcome, has_document
from webtext_prep.extraction.pages import PAGE_METADATA
from webtext_prep.storage.stores.base import Location

INDEX = "index.u64"
"""Sorted: of each URL the upper 40 bits of its key, then the number of the source that holds it."""
WHOLE = "whole.json"
"""The last file of a generation: without it, making it was cut short."""
_SOURCE_BITS = np.uint64((1 << 24) - 1)
_CHUNK = 1 << 18
_TOGETHER = 10_000
"""Records that are carried over in one transaction: about a second."""


def key_of(url: str) -> int:
    """The first 8 bytes of a URL's digest as a number: enough to know where to look."""
    return int.from_bytes(url_digest(url)[:8], "big")


def finished_rows(documents: Location, outcomes: Location) -> Iterator[Entry]:
    """The rows of a finished shard with their documents; ends early where the two files do not fit each other."""
    if not (storage.is_file(documents) and storage.is_file(outcomes)):
        return
    with contextlib.suppress(InputError):  # damaged: what can't be read is fetched again
        texts = read_documents(documents)
        for row in read_documents(outcomes):
            values = {"url": row.url, **row.metadata}
            outcome = values.get("outcome")
            if outcome == PageOutcome.DUPLICATE:
                continue
            is_kept = has_document(str(outcome))
            document = next(texts, None) if is_kept else None
            if is_kept and (document is None or document.url != row.url):
                return
            if document is not None:
                # What the list says of the URL is taken from the list as it is now.
                document.metadata = {key: document.metadata[key] for key in PAGE_METADATA if key in document.metadata}
            yield Entry(values, document)


class Generation:
    """What was fetched for one set of lists: `part-*` shards, `outcomes/`, journals, and the index.

    Args:
        folder: where it lies.

    Attributes:
        index: the file with the index.
    """

    def __init__(self, folder: Location) -> None:
        self.folder, self.index = folder, folder / INDEX

    @property
    def sources(self) -> list[Location]:
        """Journals and segments, whose rows are the newest, and then shards; the index knows them by their position."""
        journals = [file for file in storage.files_in(self.folder) if file.name.endswith((SUFFIX, SEGMENT_SUFFIX))]
        return [*journals, *shards_in(self.folder)]

    @property
    def files(self) -> list[Location]:
        """All files of it."""
        folders = (self.folder, self.folder / OUTCOMES, self.folder / PAGES)
        return [file for folder in folders for file in storage.files_in(folder) if file.name != WHOLE]

    def pages(self, source: Location) -> Location:
        """The file that holds the pages of one source, if they were saved."""
        return source.with_suffix(SPOOL_SUFFIX) if source.suffix == SUFFIX else pages_of(source)

    def entries(self, source: Location) -> Iterator[Entry]:
        """The records of one source."""
        if source.suffix == SEGMENT_SUFFIX:
            yield from entries_of(source)
            return
        if source.suffix != SUFFIX:
            yield from finished_rows(source, self.folder / OUTCOMES / source.name)
            return
        with Journal(storage.local_path(source)) as journal:
            yield from journal.entries()

    def _urls(self, source: Location) -> Iterator[str]:
        if source.suffix in (SUFFIX, SEGMENT_SUFFIX):
            yield from (entry.row["url"] for entry in self.entries(source))
        else:
            with contextlib.suppress(InputError):
                for row in read_documents(self.folder / OUTCOMES / source.name):
                    yield row.url

    def build_index(self, place: Location, draft: Path, report: Callable[[int], None]) -> int:
        """Write the index, sorted in the file `draft`; `report` gets the URLs done so far. Returns how many."""
        count = 0
        with draft.open("wb") as file:
            for number, source in enumerate(self.sources):
                keys = map(key_of, self._urls(source))
                while len(chunk := np.fromiter(itertools.islice(keys, _CHUNK), np.uint64)):
                    file.write(np.unique(chunk & ~_SOURCE_BITS | np.uint64(number)).tobytes())
                    count += len(chunk)
                    report(count)
        if count:
            entries = np.memmap(draft, "<u8", "r+")
            entries.sort()
            entries.flush()
        storage.publish(draft, place)
        return count

    def sources_with(self, keys: NDArray[np.uint64]) -> list[Location]:
        """The sources that hold any of the URLs with these keys (sorted); one in a trillion may hold none of them."""
        place = storage.local_path(self.index)
        if not place.stat().st_size:
            return []
        known, wanted = np.memmap(place, "<u8", "r"), set[int]()
        for start in range(0, len(keys), _CHUNK):
            chunk = keys[start : start + _CHUNK]
            first, last = (known.searchsorted(bound) for bound in (chunk & ~_SOURCE_BITS, chunk | _SOURCE_BITS))
            for step in range(int((last - first).max(initial=0))):  # several sources may hold one URL
                found = known[first[first + step < last] + step]
                wanted |= set(np.unique(found & _SOURCE_BITS).tolist())
        sources = self.sources
        return [sources[number] for number in sorted(wanted)]


def generations_in(folder: Location) -> list[Generation]:
    """The generations that were set aside, the newest first."""
    found = [entry for entry, is_folder in storage.list_folder(folder) if is_folder and entry.name.isdigit()]
    return [Generation(entry) for entry in reversed(found) if storage.is_file(entry / WHOLE)]


def generations_of(files: Iterable[Location]) -> list[Generation]:
    """The generations whose files these are, the newest first; one without an index holds nothing."""
    return [
        Generation(folder) for folder in sorted({file.parent for file in files if file.name == INDEX}, reverse=True)
    ]


def set_aside(output: Location, journals: Location, folder: Location) -> None:
    """Make a generation in `folder` of the shards of `output` and what the folder `journals` holds.

    Shards are linked, not copied, where the system can: they are only ever replaced as a whole. Journals are moved.
    """
    unfinished = folder / f"{len(generations_in(folder)):05}"
    storage.remove_folder(unfinished)
    for shard in shards_in(output):
        outcomes = output / OUTCOMES / shard.name
        if storage.is_file(outcomes):
            _link(shard, unfinished / shard.name)
            _link(outcomes, unfinished / OUTCOMES / shard.name)
        pages = pages_of(shard)
        if storage.is_file(pages):
            _link(pages, unfinished / PAGES / pages.name)
    for journal in storage.files_in(journals):
        if not journal.name.endswith(SUFFIX):
            continue
        if storage.is_local(journal):
            Journal(storage.local_path(journal)).close()  # what a kill has left in its log goes into the file
        _link(journal, unfinished / journal.name)
        spool = journal.with_suffix(SPOOL_SUFFIX)
        if storage.is_file(spool):
            _link(spool, unfinished / spool.name)
    for entry, is_folder in storage.list_folder(journals):
        for segment in segments_in(entry) if is_folder else ():
            _link(segment, unfinished / f"{entry.name}-{segment.name}")
    storage.write_json(unfinished / WHOLE, {})
    storage.remove_folder(journals)


def _link(place: Location, target: Location) -> None:
    if storage.is_local(place) and storage.is_local(target):
        storage.local_path(target).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # a file system without links
            os.link(storage.local_path(place), storage.local_path(target))
            return
    with storage.open_for_reading(place) as source, storage.create(target) as copy:
        shutil.copyfileobj(source, copy)


def carry_over(
    urls: Iterable[str],
    journal: Journal,
    generations: Sequence[Generation],
    outputs: Sequence[Location],
    spool: PageSpool | None = None,
) -> None:
    """Bring into `journal` what earlier runs have fetched of `urls`.

    Args:
        urls: of one list.
        journal: what it has already is newer, and stays.
        generations: what was set aside, the newest first.
        outputs: documents and outcomes of the shard as it was finished last, if it was; or nothing.
        spool: takes the pages, if they are saved; what has lost its page is fetched again.
    """
    if not generations and not (outputs and storage.is_file(outputs[1])):
        return
    keys = np.sort(np.fromiter(map(key_of, urls), np.uint64))

    def bring(entries: Iterator[Entry], pages: Location) -> None:
        found = wanted(entries)
        add_all(journal, found if spool is None else spool.moved(found, pages))

    def wanted(entries: Iterator[Entry]) -> Iterator[Entry]:
        for entry in entries:
            url = entry.row["url"]
            key = np.uint64(key_of(url))
            position = int(np.searchsorted(keys, key))
            is_end = entry.row["outcome"] != PageOutcome.REDIRECT  # not just left by a task for another one
            if is_end and position < len(keys) and keys[position] == key and url not in journal:
                yield entry

    # A shard of other lists than these lies in a generation too, after the journals of its time, which are newer.
    if outputs and not (generations and _is_same(outputs[1], generations[0].folder / OUTCOMES / outputs[1].name)):
        bring(finished_rows(*outputs[:2]), pages_of(outputs[0]))
    for generation in generations:
        for source in generation.sources_with(keys):
            bring(generation.entries(source), generation.pages(source))


def add_all(journal: Journal, entries: Iterator[Entry]) -> None:
    """Add many records, some at a time, so that a kill costs only the last of them."""
    for first in entries:
        journal.add_many(itertools.chain([first], itertools.islice(entries, _TOGETHER - 1)))


def _is_same(one: Location, other: Location) -> bool:
    """Whether both hold the same bytes: one is a link to the other, or a copy where there are no links."""
    if not (storage.is_file(one) and storage.is_file(other)):
        return False
    if isinstance(one, Path) and isinstance(other, Path) and one.samefile(other):
        return True
    if storage.size(one) != storage.size(other):
        return False
    digests = []
    for place in (one, other):
        with storage.open_for_reading(place) as file:
            digests.append(hashlib.file_digest(file, "sha256").digest())  # type: ignore[arg-type]
    return digests[0] == digests[1]
