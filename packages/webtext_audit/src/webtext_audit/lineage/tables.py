"""What lies next to the shards of a step, row by row: outcomes, dropped documents, duplicates.

Each reader yields nothing where a step has no such file, or is gone.

What a step dropped for a reason is also found where `--keep-dropped` was not given: what the stages wrote next to their
shards is used first; else the stage, with the settings of its record, is asked again about one document after another
until there are enough. A rare reason may take as long as the stage did.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from command_kit import CommandError, Progress
from command_kit.settings import make_settings
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import DUPLICATES, read_documents, shards_in
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.running import processes
from webtext_prep.running.run import DROPPED
from webtext_prep.running.stage import Stage
from webtext_prep.storage.stores.base import Location

Row = dict[str, Any]


def outcomes_of(step: Step) -> Iterator[Row]:
    """`download`: a row for each URL, in the order of the lists. Raises InputError for a damaged file."""
    return itertools.chain.from_iterable(map(_rows, _shards_below(step, OUTCOMES)))


def dropped_of(step: Step) -> Iterator[Document]:
    """With `--keep-dropped`: the dropped documents, with `reason` in their metadata. Raises InputError."""
    return itertools.chain.from_iterable(map(read_documents, _shards_below(step, DROPPED)))


def has_dropped(step: Step) -> bool:
    """Whether its dropped documents were written."""
    return bool(_shards_below(step, DROPPED))


def duplicates_of(step: Step) -> Iterator[Row]:
    """`dedup`: `url`, `duplicate_of`, `similarity`, `domain`, `duplicate_of_domain`, `match`. Raises InputError."""
    if step.place is not None and not step.is_tokens and storage.is_file(step.place / DUPLICATES):
        yield from _rows(step.place / DUPLICATES)


def _shards_below(step: Step, folder: str) -> list[Location]:
    return [] if step.place is None or step.is_tokens else shards_in(step.place / folder)


def _rows(place: Location) -> Iterator[Row]:
    return map(msgspec.json.decode, read_lines(place))


def stage_of(step: Step, known: Mapping[str, type[Stage]]) -> Stage:
    """The stage with the settings of a step; settings that don't affect the output have their defaults.

    Raises InputError where it can no longer be made: an unknown stage, another version of it, a file of rules that is
    gone or that has changed since, another version of a library.
    """
    found = known.get(step.stage)
    if found is None:
        raise InputError(f"{step.name} was made by `webtext {step.stage}`, which is not installed here.")
    if step.record.get("version", 1) != found.version:
        raise InputError(
            f"{step.name} was made by version {step.record.get('version', 1)} of `webtext {step.stage}`, and here is "
            f"version {found.version}: make it again."
        )
    names = {entry.name for entry in dataclasses.fields(found)}
    settings = {name: value for name, value in step.record["settings"].items() if name in names}
    try:
        stage = make_settings(found, settings, f"the record of {step.name}")
        identity = stage.identity()
    except (CommandError, OSError) as error:
        raise InputError(f"`webtext {step.stage}` can't judge as it did for {step.name}: {error}") from error
    changed = [name for name, value in identity.items() if step.record["settings"].get(name) != value]
    if changed:
        raise InputError(f"{step.name} was made with another {', '.join(changed)} than what is here now.")
    if others := processes.changed(step.record.get("libraries", {}), processes.versions_of(stage.libraries)):
        raise InputError(f"{step.name} was made with {others}: install that version, or make it again.")
    return stage.recalling(step.record.get("facts", {}))


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
        if stage.makes in ("tokens", "tokenizer", "filter"):
            raise InputError(f"{found}: it can't be shown.")
        raise InputError(f"{found}: run the same command again with --keep-dropped.")
    for document in _with_progress(step, stage.judged_again(step.input_files())):
        if document is not None and document.metadata["reason"] == reason:
            yield _with(stage.judge_again(document, with_values=True).values, document, reason)


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
        yield from progress.counted(documents)


def _with(values: Mapping[str, object], document: Document, reason: str) -> Document:
    return Document(document.url, document.text, {**document.metadata, "reason": reason, **values})
