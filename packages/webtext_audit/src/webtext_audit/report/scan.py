"""One pass over the shards of a folder: what a report says of documents, of outcomes, and of duplicates.

Shards are read by all cores, each by one process, which sends back counters of bounded size. Above a number of rows
that the user chooses, rows are taken by a hash of their shard and number, so that the same report comes out again, and
all figures are scaled. Counting tokens costs most by far: it is done for a sample of some megabytes, and each domain's
tokens follow from its bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import xxhash

from webtext_audit.report import counters
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_chosen_documents, read_documents
from webtext_prep.opt_outs.decisions import SIGNAL
from webtext_prep.running.engines.local import run_tasks
from webtext_prep.running.tasks import Context, Files, Task
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import host_of

SHOWN_CHARACTERS = 600
"""The beginning of a text that is shown."""
TOKEN_DOCUMENTS = 10_000
"""Documents of which tokens are counted, about."""
NAME_CHARACTERS = 500
"""Longer names and URLs are cut off, so that counters stay as small as they should."""
MOST_BYTES = 200_000
"""A longer text has its tokens counted in so much of it."""
SHORT_TEXT = 200
"""Characters of a text that may be what little was found of a page,"""
WHOLE_PAGE = 0.9
"""and the share of a page's characters above which its menus may be among its text."""
NO_DOMAIN = "(no domain)"
_SPACE = 1 << 64
_SEED = 0x7265706F

Found = TypeVar("Found", bound=counters.Figures)


def scan(
    count: Callable[[Task, Context], Found], figures: Found, shards: Sequence[Location], what: str,
    *, total: int | None, workers: int, unit: str = "documents", share: float = 1.0, **options: Any,
) -> Found:  # fmt: skip
    """Read shards in parallel and add what each has to `figures`; shows progress.

    The order in which shards end does not matter. Raises InputError for a shard that can't be read.

    Args:
        count: a task, the figures of one shard.
        figures: of nothing.
        shards: the files.
        what: they hold.
        total: how many rows are read, if that is known.
        workers: processes.
        unit: the things counted.
        share: of the rows, that is read.
        options: of the task.
    """
    options = {"share": share, **options}
    tasks = [Task(str(number), Files(shard=shard), options=options) for number, shard in enumerate(shards)]
    found: dict[int, Found] = {}
    merged = 0
    # In their order, so that counters that were cut are the same again; and at once, to hold few of them.
    for position, of_shard in run_tasks(count, tasks, workers=workers, label=f"report: {what}", unit=unit, total=total):
        found[position] = of_shard
        while merged in found:
            figures.merge(found.pop(merged))
            merged += 1
    return figures


def _rows(task: Task, context: Context) -> Iterator[Document]:
    """The chosen rows of a shard."""
    shard, share = task.reads.shard, task.options["share"]
    if share >= 1:
        return context.counted(read_documents(shard))
    limit, name = int(share * _SPACE), shard.name.encode("utf-8", "surrogatepass")
    rows = read_chosen_documents(shard, lambda row: xxhash.xxh3_64_intdigest(b"%b/%d" % (name, row)) < limit)
    return context.counted(row for _, row in rows)


def count_documents(task: Task, context: Context) -> counters.DocumentFigures:
    """Task: what the documents of a shard are.

    Its options are `token_share`, that of the documents whose tokens are counted, and `tokenizer`:
    `PREFIX.tokenizer.json`, or empty for GPT-2's.
    """
    found = counters.DocumentFigures()
    limit = int(task.options["token_share"] * _SPACE)
    for document in _rows(task, context):
        key = sample_key(document.id)
        size = len(document.text) if document.text.isascii() else len(document.text.encode("utf-8", "replace"))
        counted = [0.0, 0.0]
        if document.text and key < limit:
            piece = document.text[:MOST_BYTES]
            # One more for the <|endoftext|> of a document that was counted whole.
            counted = [
                float(len(piece.encode("utf-8", "replace"))),
                len(_encoder(task.options["tokenizer"])(piece)) + (len(piece) == len(document.text)),
            ]
        found.documents += 1
        found.bytes += size
        found.counted = [a + b for a, b in zip(found.counted, counted, strict=True)]
        found.lengths.add(len(document.text))
        found.domains.add((document.domain or NO_DOMAIN)[:NAME_CHARACTERS], 1, size, *counted)
        language = document.metadata.get("language")
        if isinstance(language, str):
            found.languages.add(language[:NAME_CHARACTERS], 1)
        kind = document.metadata.get("kind")
        if isinstance(kind, str):
            found.kinds.add(kind[:NAME_CHARACTERS], 1, size)
            is_short, page_share = float(len(document.text) < SHORT_TEXT), document.metadata.get("text_share")
            known = [1.0, float(page_share > WHOLE_PAGE)] if isinstance(page_share, int | float) else [0.0, 0.0]
            name = ", ".join(part[:NAME_CHARACTERS] for part in (language, kind) if isinstance(part, str))
            found.odd.add(name, 1, is_short, *known)
        signal = document.metadata.get(SIGNAL)
        if isinstance(signal, str):
            found.refusals.add(signal[:NAME_CHARACTERS], 1, size, *counted)
        if found.examples.wants(key):
            found.examples.add(key, shown(document))
    return found


@functools.lru_cache(maxsize=2)
def _encoder(tokenizer: str) -> Callable[[str], Sequence[int]]:
    from indexed_tokens import Tokenizer

    return Tokenizer.from_path(tokenizer or "gpt2").encode


def count_outcomes(task: Task, context: Context) -> counters.OutcomeFigures:
    """Task: how the URLs of a shard of outcomes ended."""
    found = counters.OutcomeFigures()
    for row in _rows(task, context):
        outcome = str(row.metadata.get("outcome", ""))[:NAME_CHARACTERS]
        group = counters.group_of(outcome)
        found.outcomes.add(outcome, 1)
        host = host_of(row.url) or NO_DOMAIN
        if SIGNAL in row.metadata:
            found.refusals.add(f"{str(row.metadata[SIGNAL])[:NAME_CHARACTERS]}\t{host}", 1)
        found.hosts.add(host, 1, *(float(name == group) for name in counters.GROUPS))
        if outcome not in found.examples and len(found.examples) >= 100:
            continue
        key = sample_key(row.url)
        found.examples.setdefault(outcome, counters.Lowest(3)).add(key, row.url[:NAME_CHARACTERS])
    return found


def count_duplicates(task: Task, context: Context) -> counters.DuplicateFigures:
    """Task: what a table says that `dedup` dropped, or `dedup-passages` cut out."""
    found = counters.DuplicateFigures()
    for row in _rows(task, context):
        kept = str(row.metadata.get("duplicate_of", ""))[:NAME_CHARACTERS]
        match = str(row.metadata.get("match", ""))[:NAME_CHARACTERS]
        similarity, start = row.metadata.get("similarity", 0), row.metadata.get("duplicate_of_start")
        found.rows += 1
        if start is None:
            percent = int(100 * similarity + 1e-9) if isinstance(similarity, int | float) else 0
            found.similarities[percent] = found.similarities.get(percent, 0) + 1
        else:
            kept = f"{kept}, character {start}"
        found.groups.add(kept, 1)
        found.matches.setdefault(kept, match)
        if len(found.matches) > 2 * len(found.groups.names):
            found.forget()
        values = {"url": row.url, "duplicate_of": kept, "similarity": similarity, "match": match}
        found.examples.add(sample_key(row.url), values)
    return found


def sample_key(name: str) -> int:
    """What decides whether a row is an example, or has its tokens counted: the smallest do."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), _SEED)


def shown(document: Document) -> dict[str, Any]:
    """An example of a document, as it is kept."""
    return {
        "url": document.id[:NAME_CHARACTERS],
        "title": str(document.metadata.get("title") or "")[:NAME_CHARACTERS],
        "text": document.text[:SHOWN_CHARACTERS],
        "characters": len(document.text),
    }
