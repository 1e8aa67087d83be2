"""All indices by which the story of a document is followed through the steps below an output.

Asking for one opens it, and builds those that are missing, of all steps at once, so that all cores have work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from webtext_audit.lookup import entries
from webtext_audit.lookup.entries import url_hash
from webtext_audit.lookup.index import Hit, Index, Wanted, open_indices
from webtext_prep import storage
from webtext_prep.documents.folders.inputs import is_url_list
from webtext_prep.documents.folders.shards import DUPLICATES, MATCHES, format_of, shards_in
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.running.run import DROPPED
from webtext_prep.running.stage import Stage
from webtext_prep.storage.stores.base import Location

LISTED, URLS, OUTCOME, LOST, WON, CUT, GONE, ORDER, PASSAGES = (
    "listed", "urls", "outcomes", "duplicates", "representatives", "matches", "dropped", "order", "passages",
)  # fmt: skip
MOST_DUMP_BYTES = 256 << 20
"""Dumps of submissions are read for an index if they are not larger together: some minutes of one core."""


class Catalogue:
    """The indices of some steps.

    Args:
        steps: those behind an output, and itself.
        known: stages by name.
        workers: processes that build what is missing.
    """

    def __init__(self, steps: Sequence[Step], known: Mapping[str, type[Stage]], workers: int) -> None:
        self._known, self._workers = known, workers
        self._open: dict[tuple[str, str], Index] = {}
        wanted = [one for step in steps if step.state is not None for one in self._by_url(step)]
        self._add(wanted, "why: index of URLs")

    def _add(self, wanted: Sequence[Wanted], label: str) -> None:
        for one, index in zip(wanted, open_indices(wanted, workers=self._workers, label=label), strict=True):
            self._open[one.step.name, one.kind] = index

    def _by_url(self, step: Step) -> list[Wanted]:
        place = step.place
        assert isinstance(place, Path)
        found: list[Wanted] = []

        def add(kind: str, files: Sequence[Location], call: Any = entries.urls, rows: int = 0, **options: Any) -> None:
            if files:
                found.append(Wanted(step, kind, tuple(files), call, options, rows))

        if step.stage == "urls":
            add(LISTED, [] if is_too_large(step) else _dumps(step), entries.submitted)
        else:
            lists = tuple(file for file in step.files if self._is_list(step, file) and storage.is_file(file))
            add(LISTED, lists, entries.listed)
        if step.stage == "tokenize":
            inputs = _order(step, self._known)
            found += [inputs] if inputs is not None else []
        if not step.is_tokens:
            add(URLS, step.shards(), rows=sum((step.record.get("shards") or {}).values()))
            add(OUTCOME, shards_in(place / OUTCOMES))
            add(GONE, shards_in(place / DROPPED))
            tables = {name: [place / name] if (place / name).is_file() else [] for name in (DUPLICATES, MATCHES)}
            add(LOST, tables[DUPLICATES])
            add(WON, tables[DUPLICATES], key="duplicate_of")
            add(CUT, tables[MATCHES])
        return found

    def _is_list(self, step: Step, file: Location) -> bool:
        """Whether the URLs of an input file can be listed: a URL list, or somebody else's shards of documents."""
        stage = self._known.get(step.stage)
        reads_urls = stage is not None and stage.unit == "URLs" and is_url_list(file)
        return reads_urls or format_of(file.name) is not None

    def find(self, step: Step, kind: str, url: str) -> list[Hit]:
        """The rows of a URL in one of a step's tables; none if there is no such table."""
        index = self._open.get((step.name, kind))
        return index.find(url_hash(url)) if index is not None else []

    def count(self, step: Step, kind: str, url: str) -> int:
        """How many there are."""
        index = self._open.get((step.name, kind))
        return index.count(url_hash(url)) if index is not None else 0

    def has(self, step: Step, kind: str) -> bool:
        """Whether a step has that table."""
        return (step.name, kind) in self._open

    def rank(self, step: Step, key: int, file: Location, row: int) -> int | None:
        """The number of a document in the token files of a step, by the key of its shuffle and its place."""
        index = self._open.get((step.name, ORDER))
        if index is None or file not in index.files:
            return None
        return index.rank(key, Hit(index.files.index(file), file, row))

    def place(self, step: Step, file: Location, row: int) -> int | None:
        """The same for token files in the order of the input, where hashes are the rows themselves."""
        index = self._open.get((step.name, ORDER))
        if index is None or file not in index.files:
            return None
        number = index.files.index(file)
        begin = index.ends[number - 1] if number else 0
        return begin + int(index.keys[begin : index.ends[number]].searchsorted(row))

    def passages(self, step: Step) -> Index | None:
        """The fingerprints of a step's texts, built now if need be; None where there are no shards of documents."""
        if step.state is None or not step.shards() or self._is_urls(step):
            return None
        if not self.has(step, PASSAGES):
            rows = sum(step.record["shards"].values())
            wanted = Wanted(step, PASSAGES, tuple(step.shards()), entries.passages, {}, rows)
            self._add([wanted], "why: index of passages")
        return self._open[step.name, PASSAGES]

    def _is_urls(self, step: Step) -> bool:
        """Whether its shards hold URLs without texts."""
        return step.stage in ("urls", "blacklist")


def is_too_large(step: Step) -> bool:
    """Whether a step read dumps of submissions that are too large to be searched."""
    return step.stage == "urls" and sum(storage.sizes(_dumps(step))) > MOST_DUMP_BYTES


def _dumps(step: Step) -> list[Location]:
    return [file for file in step.files if storage.is_file(file)]


def _order(step: Step, known: Mapping[str, type[Stage]]) -> Wanted | None:
    """The index of where documents come in the token files of `tokenize`; None where its input is gone."""
    try:
        files = step.input_files()
    except InputError:
        return None
    options = {name: step.record["settings"][name] for name in ("shuffle", "seed")}
    return Wanted(step, ORDER, tuple(files), entries.order, options, step.record["in"])
