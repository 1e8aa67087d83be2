"""The rounds of a download whose tasks run at once: which visits are made in which.

The lists that a pass works on are noted when its first round begins: a run that resumes it has the same rounds, and
finds its tasks' markers and journals, also when some of the lists are finished.

What tasks hand on to each other are visits that came to another task's host.

    round 0   a task for each list: its own hosts; what leads to others is left in a file for each list
    round 1   a task for each part of all sites: goes on with what leads there; again, some is left
    ...
    last      one task for all hosts: the rest when it is little, or when no visit can lead on any further
    then      each list is written, with what has become of its visits elsewhere

A round begins when the one before it is over, so that a host is asked by one task at any time. Two kinds of files lie
between rounds, split as `documents/folders/partitions.py` says: `.left`, visits by the part of the sites that they lead
to, with one bucket more for visits that only the task for all hosts can go on with; and `.found`, records by their
list.

Archives are no list's hosts: what they are asked for is left by the first round, and one task of each later round asks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from webtext_prep import storage
from webtext_prep.crawl.frontier.fetch_loop import Visiting, is_left, visit_of
from webtext_prep.crawl.frontier.politeness import MAX_REDIRECTS
from webtext_prep.crawl.http.client import host_name
from webtext_prep.crawl.settings import ArchiveSettings, Fetching
from webtext_prep.crawl.state import ROUNDS
from webtext_prep.crawl.state.database import Entry
from webtext_prep.crawl.state.database_writer import Work, opened
from webtext_prep.documents.document import decode_document
from webtext_prep.documents.folders.partitions import read_partitions, write_partitions
from webtext_prep.running.stage import Run
from webtext_prep.running.tasks import Context, Task
from webtext_prep.storage.stores.base import Location
from webtext_prep.urls.urls import Hosts

_decode_found = msgspec.json.Decoder(tuple[dict[str, Any], msgspec.Raw, bytes | None]).decode


def write_left(
    file: Location, rows: Iterable[tuple[dict[str, Any], int]], parts: int, archives: frozenset[str]
) -> dict[str, Any]:
    """Write visits that were left, each with the number of its list; `archives` are the hosts of archives.

    Returns how many, how many need all hosts, and how many are to be looked for in archives.
    """
    count = needing_all = gone = 0
    hosts = Hosts(0, parts, by_site=True, archives=archives)
    with write_partitions(file, parts + 1) as writer:
        for row, number in rows:
            part = parts if row["all"] else hosts.part_of(host_name(row["next"]))
            writer.add(part, msgspec.json.encode({**row, "list": number}))
            count += 1
            needing_all += row["all"]
            gone += "archive" in row
    return {"left": count, "all": needing_all, "gone": gone}


def follow(task: Task, context: Context, fetching: Fetching, *, save_pages: bool) -> dict[str, Any]:
    """Task of a round: go on with the visits of one part of all sites, or of all hosts.

    Its options: `parts` that sites are divided into, its `part` (None for all hosts), how many `lists` there are, and
    how many of its inputs, the first ones, are from the round before. Outputs: records, and what was left once more.
    """
    parts, part = task.options["parts"], task.options["part"]
    archives = fetching.settings.archive_hosts
    hosts = None if part is None else Hosts(part, parts, by_site=True, archives=archives)
    with opened(task.name, context, save_pages=save_pages) as work:
        visiting = Visiting(work, fetching, context.report, hosts)
        visiting.fetch(map(visit_of, _rows(task)), context.local or context.scratch)
        found_file, left_file = task.outputs
        with write_partitions(found_file, task.options["lists"]) as found:

            def left() -> Iterator[tuple[dict[str, Any], int]]:
                for row in _rows(task):
                    known = work.journal.outcome(row["url"])
                    if known is not None and is_left(known.row):
                        yield known.row, row["list"]
                    else:
                        found.add(row["list"], _found(work, row["url"]))

            return write_left(left_file, left(), parts, archives)


def _rows(task: Task) -> Iterator[dict[str, Any]]:
    parts, part, latest = task.options["parts"], task.options["part"], task.options["latest"]
    for bucket in range(parts) if part is None else [part]:
        yield from _decoded(task.inputs[:latest], bucket)
    if part is None:
        yield from _decoded(task.inputs, parts)


def _decoded(files: Iterable[Location], bucket: int) -> Iterator[dict[str, Any]]:
    for lines in read_partitions(tuple(files), bucket):
        yield from map(msgspec.json.decode, lines.splitlines())


def _found(work: Work, url: str) -> bytes:
    line = work.journal.line(url)
    assert line is not None
    row, document = line
    page = None if work.spool is None else work.spool.read(row)
    return msgspec.json.encode((row, msgspec.Raw(document or b"null"), page))


def found_in(files: Iterable[Location], number: int, retry_pass: int) -> Iterator[Entry]:
    """What has become of the visits of list `number`."""
    for lines in read_partitions(tuple(files), number):
        for line in lines.splitlines():
            row, document, page = _decode_found(line)
            text = None if bytes(document) == b"null" else decode_document(bytes(document))
            yield Entry(row, text, retry_pass, record=page)


LISTS = "lists.json"
"""In the folder of rounds: the lists of this pass, and its number."""
FOUND_SUFFIX, LEFT_SUFFIX = ".found", ".left"
PARTS = 64
"""Parts of all sites, each with a task of its own, in the rounds after that of the lists, at most."""
FEW = 10_000
"""So few visits are left to one task for all hosts."""

Call = Callable[[Task, Context], Any]


def lists_due(job: Run, tasks: Sequence[Task], is_due: Callable[[Any], bool], archives: ArchiveSettings) -> list[int]:
    """The numbers of the lists that are fetched in rounds; none where one task at a time may ask all hosts.

    Archives are asked in later rounds only: so live pages come first, and no list waits for another's.
    """
    place, this_pass = job.scratch / ROUNDS / LISTS, tasks[0].hints["retry_pass"] if tasks else 0
    with contextlib.suppress(OSError, ValueError):
        begun = json.loads(storage.read_bytes(place))
        if begun["pass"] == this_pass:
            return list(begun["lists"])
    known = job.known("shards", tasks)
    due = [number for number, result in enumerate(known) if result is None or is_due(result)]
    if not archives.archive and (len(due) < 2 or (job.is_here and job.workers == 1)):
        return []
    storage.write_json(place, {"pass": this_pass, "lists": due})
    return due


def fetch_in_rounds(
    job: Run, tasks: Sequence[Task], due: Sequence[int], fetch: Call, follow: Call, archives: ArchiveSettings
) -> list[Location]:
    """Have all visits of the lists `due` made; returns the files with what was found by tasks other than a list's own.

    Args:
        job: the job.
        tasks: of all lists, by number; they write the shards after this.
        due: numbers of lists.
        fetch: the task of a list, which leaves what leads to the hosts of others.
        follow: the task of a later round.
        archives: which archives are asked for pages that are gone.
    """
    folder, parts, unit = job.scratch / ROUNDS, min(PARTS, len(job.inputs)), job.stage.unit
    this_pass = tasks[0].hints["retry_pass"]
    own = [_of_list(job, tasks[number], number, folder, parts) for number in due]
    results = job.map("pages", fetch, own, unit=unit, again=lambda result: result["retry_pass"] < this_pass)
    latest, before, found = [task.outputs[0] for task in own], list[Location](), list[Location]()
    left, stuck = _sum(results, "left"), _sum(results, "all")
    for sentence in archives.expected(gone) if (gone := _sum(results, "gone")) else ():
        print(f"{job.stage.name}: {sentence}", file=sys.stderr)
    phase = "archives" if archives.archive else "redirects"
    for number in itertools.count(1):
        if not left:
            break
        is_last = left <= FEW or left == stuck or number > MAX_REDIRECTS
        options = {"parts": parts, "lists": len(job.inputs), "latest": len(latest)}
        name = f"{phase}-{this_pass}-{number}"
        round_of = []
        for part in [None] if is_last else range(parts):
            own_name = f"{name}-{'all' if part is None else f'{part:05}'}"
            outputs = (folder / f"{own_name}{FOUND_SUFFIX}", folder / f"{own_name}{LEFT_SUFFIX}")
            inputs = (*latest, *(before if is_last else ()))
            round_of.append(Task(own_name, inputs, outputs, {**options, "part": part}, {"retry_pass": this_pass}))
        results = job.map(phase, follow, round_of, unit=unit, total=left if is_last else left - stuck)
        found += [task.outputs[0] for task in round_of]
        before, latest = [*before, *latest], [task.outputs[1] for task in round_of]
        left, stuck = (0 if is_last else stuck) + _sum(results, "left"), stuck + _sum(results, "all")
    return found


def _of_list(job: Run, task: Task, number: int, folder: Location, parts: int) -> Task:
    """The task of the first round for the list of a shard's task; it reads the shard, if there is one from earlier."""
    finished = task.outputs[:2] if all(map(storage.is_file, task.outputs[:2])) else ()
    return Task(
        task.name,
        task.inputs,
        (folder / f"{task.name}{LEFT_SUFFIX}",),
        {**task.options, "list": number, "lists": len(job.inputs), "parts": parts},
        {**task.hints, "finished": len(finished)},
        reads=(*finished, *task.reads),
    )


def _sum(results: Sequence[dict[str, Any]], key: str) -> int:
    return sum(result[key] for result in results)
