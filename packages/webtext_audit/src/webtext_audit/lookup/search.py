"""Finding the documents that hold a passage: by fingerprints, or where it is too short for those by reading all.

The output that was asked for is searched first, then, where nothing is found, the steps before it, nearest first: a
passage of a document that a filter has dropped is found in what the filter read.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from webtext_audit.lookup.catalogue import Catalogue
from webtext_audit.lookup.index import SMALL_BYTES, Index
from webtext_audit.lookup.passages import CERTAIN_WORDS, Fingerprints, normalised
from webtext_prep import storage
from webtext_prep.documents.folders.shards import read_chosen_documents, read_documents
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.errors import InputError
from webtext_prep.running.engines.local import run_tasks
from webtext_prep.running.tasks import Context, Task

REPORT_EVERY = 256


def find_passage(
    passage: str, steps: Sequence[Step], catalogue: Catalogue, most: int, workers: int
) -> tuple[list[str], list[str]]:
    """The identities of up to `most` documents that hold a passage, white space aside, and sentences about the search.

    Raises InputError if there are none.
    """
    wanted = normalised(passage)
    fingerprints = Fingerprints()
    keys, is_certain = fingerprints.of_passage(wanted)
    searched = []
    for step in reversed(steps):
        index = catalogue.passages(step)
        if index is None:
            continue
        searched.append(step.name)
        urls, total = _by_index(wanted, index, keys, is_certain, most)
        if not urls and not is_certain:
            urls, total = _by_reading(wanted, step, most, workers), 0
        if urls:
            notes = []
            if not is_certain:
                notes = [f"Passages of fewer than {CERTAIN_WORDS} words may stand in other documents, too."]
            elif total > len(urls):
                notes = [f"Up to {total:,} documents of {step.name} hold that passage: --most tells of more."]
            return urls, notes
    raise InputError(
        f"no document holds that passage (searched: {', '.join(searched) or 'no shards of documents are there'}): "
        "copy it from the text, capitals and punctuation included."
    )


def _by_index(wanted: str, index: Index, keys: Any, is_certain: bool, most: int) -> tuple[list[str], int]:
    """Documents that share a fingerprint with the passage and hold it, and how many share the rarest one."""
    counted = sorted((index.count(key), key) for key in keys.tolist())
    if is_certain:
        # All of them are in each document: the rarest one leaves the fewest to read.
        counted = counted[:1]
    found: list[str] = []
    for _, key in counted:
        rows: dict[int, list[int]] = {}
        for hit in index.find(key):
            rows.setdefault(hit.number, []).append(hit.row)
        for number, chosen in rows.items():
            for url in _holding(wanted, index.files[number], chosen):
                if url not in found:
                    found.append(url)
                if len(found) == most:
                    return found, counted[0][0]
        if found:
            break
    return found, counted[0][0] if counted and is_certain else 0


def _holding(wanted: str, shard: Any, rows: list[int]) -> Iterator[str]:
    last, chosen = max(rows), set(rows)
    for number, document in read_chosen_documents(shard, chosen.__contains__):
        if wanted in normalised(document.text):
            yield document.id
        if number == last:
            return


def _by_reading(wanted: str, step: Step, most: int, workers: int) -> list[str]:
    """The same by reading all documents of a step, on all cores."""
    tasks = [
        Task(f"part-{number:05}", (shard,), (), {}, {"wanted": wanted, "most": most})
        for number, shard in enumerate(step.shards())
    ]
    workers = 1 if sum(storage.sizes(step.shards())) <= SMALL_BYTES else workers
    total = sum(step.record["shards"].values())
    results = run_tasks(_read_shard, tasks, workers=workers, label="why: reading all", unit="documents", total=total)
    found: dict[int, list[str]] = {}
    with contextlib.closing(results):
        for position, urls in results:
            found[position] = urls
            if len(set(itertools.chain(*found.values()))) >= most:
                break
    return list(dict.fromkeys(url for position in sorted(found) for url in found[position]))[:most]


def _read_shard(task: Task, context: Context) -> list[str]:
    """Task: the identities of up to so many documents of a shard that hold a passage."""
    found: list[str] = []
    for count, document in enumerate(read_documents(task.inputs[0]), 1):
        if task.hints["wanted"] in normalised(document.text):
            found.append(document.id)
            if len(found) == task.hints["most"]:
                break
        if count % REPORT_EVERY == 0:
            context.report(count)
    return found
