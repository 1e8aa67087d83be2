"""Samples of what a step dropped for a reason, also where `--keep-dropped` was not given: its input is read again.

What the stages wrote beside their shards is used first; else the stage, with the settings of its record, is asked again
about one document after another until there are enough. A rare reason may take as long as the stage did.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from command_kit import Progress
from webtext_audit.lineage.tables import dropped_of, duplicates_of, has_dropped, outcomes_of, stage_of
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.errors import InputError
from webtext_prep.running.stage import Stage

REPORT_EVERY = 64
_T = TypeVar("_T")


def sample_dropped(step: Step, reason: str, count: int, known: Mapping[str, type[Stage]]) -> list[Document]:
    """The first `count` documents, in the order of the input, that a step dropped for a reason.

    Each has `reason` in its metadata, and where the stage tells them the values that decided.

    Raises InputError for a reason that the step did not have, an input that is gone, and a stage that decides about
    several documents together and leaves no table of them.
    """
    reasons = {name: dropped for name, dropped in step.record["dropped"].items() if dropped}
    if reason not in reasons:
        told = ", ".join(f"{name} {dropped:,}" for name, dropped in reasons.items()) or "nothing was dropped"
        raise InputError(f"{step.name} dropped nothing as {reason!r}: choose among its reasons ({told}).")
    wanted = min(count, reasons[reason])
    return list(itertools.islice(_found(step, reason, known), wanted))


def _found(step: Step, reason: str, known: Mapping[str, type[Stage]]) -> Iterator[Document]:
    outcomes = (row for row in outcomes_of(step) if row.get("outcome") == reason)
    first = next(outcomes, None)
    if first is not None:
        rows = itertools.chain([first], outcomes)
        return (_with({k: v for k, v in row.items() if k != "url"}, Document(row["url"]), reason) for row in rows)
    if has_dropped(step):
        return (document for document in dropped_of(step) if document.metadata.get("reason") == reason)
    if step.stage == "dedup":
        return _duplicates(step)
    return _judged(step, reason, stage_of(step, known))


def _judged(step: Step, reason: str, stage: Stage) -> Iterator[Document]:
    """What the stage says again of each document of its input."""
    if not stage.is_judged_again(reason):
        found = f"{step.name} did not keep what it dropped as {reason}, and other documents decided that"
        if stage.output_is_tokenizer or stage.output_is_prefix:
            raise InputError(f"{found}: it can't be shown.")
        raise InputError(f"{found}: run the same command again with --keep-dropped.")
    for document in _with_progress(step, stage.judged_again(step.input_files())):
        if document is not None and document.metadata["reason"] == reason:
            yield _with(stage.explain(document), document, reason)


def _duplicates(step: Step) -> Iterator[Document]:
    """The documents of the table of duplicates, in its order, which is that of the input."""
    rows = duplicates_of(step)
    row = next(rows, None)
    for document in _with_progress(step, itertools.chain.from_iterable(map(read_documents, step.input_files()))):
        if row is None:
            return
        if row["url"] in (document.id, document.url):  # tables of earlier versions have the URL
            yield _with({name: value for name, value in row.items() if name != "url"}, document, "duplicate")
            row = next(rows, None)


def _with_progress(step: Step, documents: Iterable[_T]) -> Iterator[_T]:
    with Progress(f"inspect: {step.stage} again", "documents", step.record["in"]) as progress:
        for count, document in enumerate(documents, 1):
            yield document
            if count % REPORT_EVERY == 0:
                progress.update(count, "")


def _with(values: Mapping[str, object], document: Document, reason: str) -> Document:
    return Document(document.url, document.text, {**document.metadata, "reason": reason, **values})
