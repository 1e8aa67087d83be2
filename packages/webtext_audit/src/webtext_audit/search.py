"""Finding documents in the outputs of stages by a scan on all cores, a file a task: by their URLs, or by a passage.

Nothing is kept for the next question. A URL is looked for in everything that knows it: the lists and dumps that users
gave, shards, receipts, outcomes, and the tables of what was cut out. Lines that can't be the wanted ones are not
decoded.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from webtext_audit.receipts import cuts_in, outcomes_in, receipts_in
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders import inputs, shards, stage_record, url_lists
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError
from webtext_prep.reddit.rows import Submission, link_or_own_url, read_blocks, read_rows
from webtext_prep.running.engines.local import run_tasks
from webtext_prep.running.tasks import Context, Files, Task
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import url_key, without_any_credentials

LISTED, SUBMITTED, SHARDS, OUTCOME, DROPS, CUTS = "listed", "submitted", "shards", "outcomes", "drops", "cuts"
"""What a file of a step holds: URLs or documents of a user's own, submissions, documents, outcomes, receipts, cuts."""
INSTEAD = "instead"
"""The rows of receipts and cuts in which a document is the one that stayed."""
MOST_DUMP_BYTES = 256 << 20
"""Dumps of submissions are searched if they are not larger together: some minutes of one core."""
SMALL_BYTES = 8 << 20
"""Bytes of files up to which they are read in this process: starting others would take longer."""
MOST_NEEDLES = 16
"""Texts that are looked for in each line before it is decoded."""


@dataclass(frozen=True)
class Hit:
    """A row that was found: row `row`, from 0 on, of `file`; `found` is what it says, but for the text."""

    file: Location
    row: int
    found: Document


class Search:
    """Where some URLs are in everything that some steps read and wrote.

    Args:
        steps: the ones that led to an output, and its own.
        urls: as documents have them, or `Document.id` of pieces.
        workers: processes.

    Raises InputError for a file that can't be read.
    """

    def __init__(self, steps: Sequence[stage_record.Step], urls: Iterable[str], workers: int) -> None:
        self._changes = {step.name: step.changes() for step in steps}
        self._hits: dict[tuple[str, str, str], list[Hit]] = defaultdict(list)
        keys = sorted(set(map(url_key, urls)))
        tables = [(step, kind, file) for step in steps if step.state is not None for kind, file in _tables(step)]
        tasks = [
            Task(f"{number:05}", Files(file=file), hints={"kind": kind, "keys": keys})
            for number, (_, kind, file) in enumerate(tables)
        ]
        found = _on_all_cores(find_rows, tasks, workers, "looking for URLs")
        for (step, kind, file), rows in zip(tables, map(dict(found).get, range(len(tables))), strict=True):
            for its_kind, key, row, document in rows or ():
                self._hits[step.name, its_kind or kind, key].append(Hit(file, row, document))

    @property
    def changes(self) -> list[str]:
        """What is no longer as the steps read or wrote it, in sentences."""
        return [sentence for found in self._changes.values() for sentence in found]

    def has_other_input(self, step: stage_record.Step) -> bool:
        """Whether what a step read has changed since, so that a document that is there now may never have come."""
        return any(self._changes.get(one.name) for one in (step, *step.inputs))

    def find(self, step: stage_record.Step, kind: str, url: str) -> list[Hit]:
        """The rows of a URL in the files of one kind of a step, in their order."""
        return self._hits.get((step.name, kind, url_key(url)), [])


def _tables(step: stage_record.Step) -> Iterator[tuple[str, Location]]:
    """The files in which URLs of a step are, each with what it holds."""
    kinds = ((DROPS, receipts_in(step)), (OUTCOME, outcomes_in(step)), (CUTS, cuts_in(step)), (SHARDS, step.shards()))
    yield from ((kind, file) for kind, files in kinds for file in files)
    for file in () if is_too_large(step) else dumps_of(step):
        if step.stage == "urls":
            yield SUBMITTED, file
        elif (step.stage in ("blacklist", "download") and inputs.is_url_list(file)) or shards.format_of(
            file.name
        ) is not None:
            yield LISTED, file


def dumps_of(step: stage_record.Step) -> list[Location]:
    """The files of a user's own that a step read, as far as they are there."""
    return [file for file in step.files if storage.is_file(file)]


def is_too_large(step: stage_record.Step) -> bool:
    """Whether a step read dumps of submissions that are too large to be searched."""
    return step.stage == "urls" and sum(storage.sizes(dumps_of(step))) > MOST_DUMP_BYTES


def _on_all_cores(call: Any, tasks: Sequence[Task], workers: int, label: str) -> Generator[tuple[int, Any]]:
    """The results of tasks, each with its number, as they come."""
    files = [file for task in tasks for file in task.reads.all()]
    workers = 1 if sum(storage.sizes(files)) <= SMALL_BYTES else workers
    yield from run_tasks(call, tasks, workers=workers, label=label, unit="files", total=len(tasks))


Row = tuple[str, str, int, Document]
"""The kind if it is another than the file's, the key of a URL that is looked for, the number, and what it says."""


def find_rows(task: Task, context: Context) -> list[Row]:
    """Task: the rows of one file that name one of some URLs."""
    kind, keys, found = task.hints["kind"], frozenset(task.hints["keys"]), list[Row]()
    for row, document in _rows_of(task.reads.file, kind, keys):
        shown = Document(document.url, metadata=document.metadata)
        if (key := url_key(document.url)) in keys:
            found.append(("", key, row, shown))
        other = document.metadata.get("duplicate_of") if kind in (DROPS, CUTS) else None
        if isinstance(other, str) and (key := url_key(other)) in keys:
            found.append((INSTEAD, key, row, shown))
    context.report(1)
    return found


def _rows_of(file: Location, kind: str, keys: Iterable[str]) -> Iterator[tuple[int, Document]]:
    """The numbered rows of a file that may name one of the URLs with these keys."""
    if kind == LISTED:
        return listed_rows(file)
    if kind == SUBMITTED:
        return _submissions(file)
    # What follows the host stands in a URL as it does in its key.
    return shards.read_documents_with(file, _shortest(key.partition("://")[2].partition("/")[2] for key in keys))


def _shortest(texts: Iterable[str]) -> list[str]:
    """Texts of which every one of some holds one; none where they are too many, or one of them is empty."""
    found: list[str] = []
    for text in sorted({text.rstrip("/") for text in texts}, key=len):
        if not any(other in text for other in found):
            found.append(text)
    return found if len(found) <= MOST_NEEDLES and all(found) else []


def listed_rows(place: Location) -> Iterator[tuple[int, Document]]:
    """The rows of a URL list with the numbers of their lines, or of a table's or Parquet file's rows, from 0 on."""
    if url_lists.is_list_of_lines(place):
        for line, content in enumerate(read_lines(place)):
            row = url_lists.read_url(content)
            if row is not None:
                yield line, row
    else:
        yield from enumerate(url_lists.read_urls(place))


def _submissions(dump: Location) -> Iterator[tuple[int, Document]]:
    """The pages that the submissions of a dump link to, with the numbers of their lines."""
    rows = itertools.chain.from_iterable(read_rows(block) for block, _ in read_blocks(dump, None, 0))
    return ((line, Document(link_or_own_url(row))) for line, row in enumerate(rows) if isinstance(row, Submission))


def same_page(url: str) -> list[str]:
    """A URL as documents have it, and others under which its page may be known: the other scheme, `www.`, a slash."""
    bare, hash_sign, fragment = without_any_credentials(url.strip()).partition("#")
    scheme, separator, rest = bare.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        return [bare + hash_sign + fragment]
    host, slash, path = rest.partition("/")
    hosts = [host, host[4:] if host.startswith("www.") else f"www.{host}"]
    ends = [slash + path, path and slash + (path[:-1] if path.endswith("/") else f"{path}/")]
    schemes = (scheme, "https" if scheme.lower() == "http" else "http")
    return list(
        dict.fromkeys(f"{s}://{h}{e}{hash_sign}{fragment}" for s, h, e in itertools.product(schemes, hosts, ends))
    )


# By a passage


def normalised(text: str) -> str:
    """A text with single spaces for all its white space."""
    return " ".join(text.split())


def find_passage(
    passage: str, steps: Sequence[stage_record.Step], most: int, workers: int
) -> tuple[list[str], list[str]]:
    """The identities of up to `most` documents that hold a passage, white space aside, and sentences about the search.

    The last step is searched first. Raises InputError if there are none.
    """
    searched = []
    for step in reversed(steps):
        # The shards of these hold URLs alone.
        if step.state is None or not step.shards() or step.stage in ("urls", "blacklist"):
            continue
        searched.append(step.name)
        found = _holding(step, normalised(passage), most + 1, workers)
        if found:
            more = [f"More documents of {step.name} hold that passage: --most tells of more."] * (len(found) > most)
            return found[:most], more
    raise InputError(
        f"no document holds that passage (searched: {', '.join(searched) or 'no shards of documents are there'}): "
        "copy it from the text, capitals and punctuation included."
    )


def _holding(step: stage_record.Step, wanted: str, most: int, workers: int) -> list[str]:
    """The identities of the first documents of a step that hold a passage."""
    hints = {"wanted": wanted, "most": most}
    tasks = [Task(f"{number:05}", Files(shard=shard), hints=hints) for number, shard in enumerate(step.shards())]
    found, in_order = dict[int, list[str]](), list[str]()
    with contextlib.closing(_on_all_cores(find_texts, tasks, workers, "looking for the passage")) as done:
        for position, identities in done:
            found[position] = identities
            in_order = []
            for number in itertools.takewhile(found.__contains__, itertools.count()):
                in_order += found[number]
            if len(in_order) >= most:
                break
    return list(dict.fromkeys(in_order))[:most]


def find_texts(task: Task, context: Context) -> list[str]:
    """Task: the identities of the first documents of a shard that hold a passage."""
    wanted = task.hints["wanted"]
    rows = shards.read_documents_with(task.reads.shard, [max(wanted.split(), key=len)])
    holding = (document.id for _, document in rows if wanted in normalised(document.text))
    found = list(itertools.islice(holding, task.hints["most"]))
    context.report(1)
    return found
