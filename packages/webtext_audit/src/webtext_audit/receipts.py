"""What stages wrote when they dropped a document, or cut something out of one, read in one place.

A receipt is a row of JSON lines: the `Document.id`, the `reason`, and the values that decided. They lie in `dropped/`
beside the shards, for token files in one file beside these; the outcomes of a download say the same of URLs, and of
what was cut out of documents there is a table. `urls` keeps totals alone, as it drops nearly all.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from command_kit import Progress
from webtext_prep import storage
from webtext_prep.documents.document import Document, piece_in
from webtext_prep.documents.folders.shards import DROPPED, MATCHES, REPEATS, format_of, read_documents, shards_in
from webtext_prep.documents.folders.stage_record import RECEIPTS_SUFFIX, Step
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import url_key


def receipts_in(step: Step) -> list[Location]:
    """The files with a receipt for each document that a step dropped; none where it is gone."""
    if step.place is None:
        return []
    if step.is_tokens:
        beside = step.place.with_name(f"{step.place.name}{RECEIPTS_SUFFIX}")
        return [beside] if storage.is_file(beside) else []
    return shards_in(step.place / DROPPED)


def outcomes_in(step: Step) -> list[Location]:
    """The files with a row for each URL, or page, of a download or an extraction."""
    return [] if step.place is None or step.is_tokens else shards_in(step.place / OUTCOMES)


def cuts_in(step: Step) -> list[Location]:
    """The tables of what a step cut out of documents."""
    if step.place is None or step.is_tokens:
        return []
    return [table for name in (MATCHES, REPEATS) if storage.is_file(table := step.place / name)]


def drops_of(step: Step) -> Iterator[Document]:
    """A receipt for each document that a step dropped, with its `reason`. Raises InputError for a damaged file."""
    yield from itertools.chain.from_iterable(map(read_documents, receipts_in(step)))
    for row in itertools.chain.from_iterable(map(read_documents, outcomes_in(step))):
        if row.metadata["outcome"] in step.record["dropped"]:
            yield Document(row.url, metadata={"reason": row.metadata["outcome"], **row.metadata})


def sample_dropped(step: Step, reason: str, count: int) -> list[Document]:
    """The receipts of the first `count` documents that a step dropped for a reason, with their texts where its input
    has them.

    Raises InputError for a reason that the step did not have, or of which it kept only the number.
    """
    reasons = {name: dropped for name, dropped in step.record["dropped"].items() if dropped}
    if reason not in reasons:
        told = ", ".join(f"{name} {dropped:,}" for name, dropped in reasons.items()) or "nothing was dropped"
        raise InputError(f"{step.name} dropped nothing as {reason!r}: choose among its reasons ({told}).")
    found = (receipt for receipt in drops_of(step) if receipt.metadata["reason"] == reason)
    receipts = list(itertools.islice(found, min(count, reasons[reason])))
    if len(receipts) < min(count, reasons[reason]):
        if step.stage == "urls" or reason.startswith("not_"):
            raise InputError(
                f"{step.name} has counted what it dropped as {reason!r}, and keeps nothing else of it: it can't be "
                "shown."
            )
        raise InputError(
            f"{step.name} dropped {reasons[reason]:,} as {reason!r}, and receipts of them are missing: run `webtext "
            f"{step.stage}` again with --restart."
        )
    return with_texts(step, receipts)


def with_texts(step: Step, receipts: Sequence[Document], most: int | None = None) -> list[Document]:
    """Receipts with the texts and metadata of their documents, as far as the input of the step is there.

    Args:
        step: whose receipts they are.
        receipts: some of them.
        most: documents of each input file that are looked at; None for all.
    """
    found, places = list(receipts), dict[str, list[int | None]]()
    for at, receipt in enumerate(receipts):
        # Of the copies of a page the first was kept, and the others have their receipts in this order.
        is_copy = "kept_row" in receipt.metadata
        places.setdefault(_page_of(receipt.url) if is_copy else receipt.url, [None] if is_copy else []).append(at)
    with contextlib.suppress(InputError), Progress("looking for texts", "documents", step.record["in"]) as progress:
        for file in filter(_holds_documents, step.input_files()):
            for document in progress.counted(itertools.islice(read_documents(file), most)):
                waiting = places.get(document.id) or places.get(_page_of(document.id))
                if waiting and (document.text.strip() or waiting[0] is not None):
                    if (number := waiting.pop(0)) is not None:
                        metadata = {**document.metadata, **receipts[number].metadata}
                        found[number] = Document(document.url, document.text, metadata)
                    if not any(places.values()):
                        return found
    return found


def _page_of(identity: str) -> str:
    """What the copies of a page, or of a piece of it, have in common."""
    return url_key(identity) + (f"#{piece}" if (piece := piece_in(identity)) else "")


def _holds_documents(file: Location) -> bool:
    return format_of(file.name) is not None and storage.is_file(file)
