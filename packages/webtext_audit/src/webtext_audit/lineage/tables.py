"""What lies beside the shards of a step, row by row: outcomes, dropped documents, duplicates.

Each reader yields nothing where a step has no such file, or is gone.

From the record of a step back to its stage with its settings, as it was run.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from command_kit import CommandError
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
    """The stage with the settings of a step; those that its output does not depend on have their defaults.

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
    if others := processes.changed(step.record.get("libraries", {}), processes.versions_of(stage.libraries_used())):
        raise InputError(f"{step.name} was made with {others}: install that version, or make it again.")
    return stage
