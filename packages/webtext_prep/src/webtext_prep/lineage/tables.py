"""What lies beside the shards of a step, row by row: outcomes, dropped documents, duplicates, matches.

Each reader yields nothing where a step has no such file, or is gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from webtext_prep.documents import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.lines import read_lines
from webtext_prep.documents.outcomes import OUTCOMES
from webtext_prep.documents.shards import read_documents, shards_in
from webtext_prep.documents.side_tables import DUPLICATES, FREQUENT_NGRAMS, MATCHES, SUPERSEDED
from webtext_prep.documents.stores.base import Location
from webtext_prep.lineage.steps import Step
from webtext_prep.running.stage import DROPPED

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
    return _table(step, DUPLICATES)


def superseded_of(step: Step) -> Iterator[Row]:
    """`dedup --against`: the same of old documents, with `superseded_by`. Raises InputError."""
    return _table(step, SUPERSEDED)


def matches_of(step: Step) -> Iterator[Row]:
    """`decontaminate`: what was cut out: `url`, `start`, `match`, `ngram`, `evaluation`, ... Raises InputError."""
    return _table(step, MATCHES)


def frequent_ngrams_of(step: Step) -> Iterator[Row]:
    """`decontaminate`: what was left alone: `ngram`, `count`, `evaluation`, ... Raises InputError."""
    return _table(step, FREQUENT_NGRAMS)


def _shards_below(step: Step, folder: str) -> list[Location]:
    return [] if step.place is None or step.is_tokens else shards_in(step.place / folder)


def _table(step: Step, name: str) -> Iterator[Row]:
    if step.place is not None and not step.is_tokens and storage.is_file(step.place / name):
        yield from _rows(step.place / name)


def _rows(place: Location) -> Iterator[Row]:
    return map(msgspec.json.decode, read_lines(place))
