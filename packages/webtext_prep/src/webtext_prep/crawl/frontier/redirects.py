"""What tasks hand on to each other where several fetch at once: visits that came to another task's host.

    round 0   a task for each list: its own hosts; what leads to others is left in a file for each list
    round 1   a task for each part of all sites: goes on with what leads there; again, some is left
    ...
    last      one task for all hosts: what is left when it is little, or when no visit can lead on any further
    then      each list is written, with what has become of its visits elsewhere

A round begins when the one before it is over, so that a host is asked by one task at any time. Two kinds of files lie
between rounds, split as `documents/partitions.py` says: `.left`, visits by the part of the sites that they lead to,
with one bucket more for those that only the task for all hosts can go on with; and `.found`, records by their list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from webtext_prep.crawl.frontier.fetch_loop import Fetching, Visiting, is_left, visit_of
from webtext_prep.crawl.http.fetcher import host_name
from webtext_prep.crawl.state.database import Entry
from webtext_prep.crawl.state.databases import Work, opened
from webtext_prep.crawl.state.page_cache import KEY, PageReader
from webtext_prep.documents.document import decode_document
from webtext_prep.documents.folders.partitions import PartitionWriter, read_partitions, write_partitions
from webtext_prep.running.tasks import Context, Task
from webtext_prep.storage.stores.base import Location
from webtext_prep.urls.hosts import Hosts, site_of
from webtext_prep.urls.urls import bucket_of

_decode_found = msgspec.json.Decoder(tuple[dict[str, Any], msgspec.Raw, bytes | None]).decode


@dataclass
class _Left:
    """Writes visits that were left, and counts them."""

    writer: PartitionWriter
    parts: int
    count: int = 0
    all: int = 0

    def add(self, row: dict[str, Any], number: int) -> None:
        part = self.parts if row["all"] else bucket_of(site_of(host_name(row["next"])), self.parts)
        self.writer.add(part, msgspec.json.encode({**row, "list": number}))
        self.count += 1
        self.all += row["all"]

    def result(self) -> dict[str, Any]:
        return {"left": self.count, "all": self.all}


def write_left(file: Location, work: Work, number: int, parts: int) -> dict[str, Any]:
    """Write the visits that the task of list `number` has left. Returns how many, and how many need all hosts."""
    with write_partitions(file, parts + 1) as writer:
        left = _Left(writer, parts)
        for row in filter(is_left, work.journal.rows()):
            left.add(row, number)
    return left.result()


def follow(task: Task, context: Context, fetching: Fetching, *, save_pages: bool) -> dict[str, Any]:
    """Task of a round: go on with the visits of one part of all sites, or of all hosts.

    Its options: `parts` that sites are divided into, its `part` (None for all hosts), how many `lists` there are, and
    how many of its inputs, the first ones, are from the round before. Outputs: records, and what was left once more.
    """
    parts, part = task.options["parts"], task.options["part"]
    hosts = None if part is None else Hosts(part, parts, by_site=True)
    with opened(task.name, context, save_pages=save_pages) as work:
        visiting = Visiting(work, fetching, context.report, hosts)
        visiting.fetch(map(visit_of, _rows(task)), context.local or context.scratch)
        found_file, left_file = task.outputs
        with (
            write_partitions(found_file, task.options["lists"]) as found,
            write_partitions(left_file, parts + 1) as left_writer,
        ):
            left = _Left(left_writer, parts)
            for row in _rows(task):
                known = work.journal.outcome(row["url"])
                if known is not None and is_left(known.row):
                    left.add(known.row, row["list"])
                else:
                    found.add(row["list"], _found(work, row["url"]))
    return left.result()


def _rows(task: Task) -> Iterator[dict[str, Any]]:
    parts, part, latest = task.options["parts"], task.options["part"], task.options["latest"]
    if part is not None:
        yield from _decoded(task.inputs[:latest], part)
        return
    for bucket in range(parts):
        yield from _decoded(task.inputs[:latest], bucket)
    yield from _decoded(task.inputs, parts)


def _decoded(files: Iterable[Location], bucket: int) -> Iterator[dict[str, Any]]:
    for lines in read_partitions(tuple(files), bucket):
        yield from map(msgspec.json.decode, lines.splitlines())


def _found(work: Work, url: str) -> bytes:
    line = work.journal.line(url)
    assert line is not None
    row, document = line
    page = None
    if work.spool is not None and KEY in row:
        with PageReader(work.spool.path) as pages:
            page = pages.read(row)
    return msgspec.json.encode((row, msgspec.Raw(document or b"null"), page))


def found_in(files: Iterable[Location], number: int, retry_pass: int) -> Iterator[Entry]:
    """What has become of the visits of list `number`."""
    for lines in read_partitions(tuple(files), number):
        for line in lines.splitlines():
            row, document, page = _decode_found(line)
            text = None if bytes(document) == b"null" else decode_document(bytes(document))
            yield Entry(row, text, retry_pass, record=page)
