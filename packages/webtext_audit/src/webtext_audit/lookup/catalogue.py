"""All indices by which the story of a document is followed through the steps below an output.

Asking for one opens it, and builds all missing ones, of all steps at once, so that all cores have work.

Finding the documents that hold a passage: by fingerprints, or where it is too short for them by reading all.

The output that was asked for is searched first, then, where nothing is found, the steps before it, nearest first: a
passage of a document that a filter has dropped is found in what the filter read.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexed_tokens import IndexedTokens, IndexedTokensError, Tokenizer, corpus_tokenizer
from webtext_audit.lookup import index as entries
from webtext_audit.lookup.index import (
    CERTAIN_WORDS,
    RUN,
    SMALL_BYTES,
    Hit,
    Index,
    Wanted,
    kept_index,
    of_passage,
    open_indices,
    url_hash,
)
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import is_url_list
from webtext_prep.documents.folders.shards import (
    DROPPED,
    DUPLICATES,
    MATCHES,
    REPEATS,
    format_of,
    read_chosen_documents,
    read_documents,
    shards_in,
)
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.running.engines.local import run_tasks
from webtext_prep.running.stage import Stage
from webtext_prep.running.tasks import Context, Files, Task
from webtext_prep.storage.locations import Location
from webtext_prep.text.words import characters
from webtext_prep.tokens.runs import encoding_refused, held_out_settings, shuffle_key

LISTED, URLS, OUTCOME, LOST, WON, CUT, GONE, ORDER, PASSAGES = (
    "listed", "urls", "outcomes", "duplicates", "representatives", "matches", "dropped", "order", "passages",
)  # fmt: skip
MOST_DUMP_BYTES = 256 << 20
"""Dumps of submissions are read for an index if they are not larger together: some minutes of one core."""


class Catalogue:
    """The indices of some steps.

    Args:
        steps: the ones that led to an output, and its own.
        known: stages by name.
        workers: processes that build missing indices.
    """

    def __init__(self, steps: Sequence[Step], known: Mapping[str, type[Stage]], workers: int) -> None:
        self._known, self._workers = known, workers
        self._open: dict[tuple[str, str], Index] = {}
        self._changes = {step.name: step.changes() for step in steps}
        self._tokens: dict[str, _TokenFiles | None] = {}
        self._as_read: dict[str, dict[str, Index]] = {}
        wanted = [one for step in steps if step.state is not None for one in self._by_url(step)]
        self._add(wanted, "why: index of URLs")
        for one in wanted:
            if one.as_read is not None and (index := kept_index(one)) is not None:
                self._as_read.setdefault(one.step.name, {})[one.kind] = index

    @property
    def changes(self) -> list[str]:
        """What is no longer as the steps read or wrote it, in sentences."""
        return [sentence for found in self._changes.values() for sentence in found]

    def has_other_input(self, step: Step) -> bool:
        """Whether what a step read has changed since, so that a document that is there now may never have come."""
        return any(self._changes.get(one.name) for one in (step, *step.inputs))

    def _add(self, wanted: Sequence[Wanted], label: str) -> None:
        for one, index in zip(wanted, open_indices(wanted, workers=self._workers, label=label), strict=True):
            self._open[one.step.name, one.kind] = index

    def _by_url(self, step: Step) -> list[Wanted]:
        place = step.place
        assert isinstance(place, Path)
        found: list[Wanted] = []

        def add(kind: str, files: Sequence[Location], call: Any = entries.urls, rows: int = 0, **options: Any) -> None:
            if files:
                as_read = _stamps_as_read(step) if kind == LISTED and step.stage == "tokenize" else None
                found.append(Wanted(step, kind, tuple(files), call, options, rows, as_read))

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
            duplicates, *cut = (
                [place / name] if (place / name).is_file() else [] for name in (DUPLICATES, MATCHES, REPEATS)
            )
            add(LOST, duplicates)
            add(WON, duplicates or cut[-1], key="duplicate_of")
            add(CUT, [*itertools.chain(*cut)])
        return found

    def _is_list(self, step: Step, file: Location) -> bool:
        """Whether the URLs of an input file can be listed: a URL list, or somebody else's shards of documents."""
        return (step.stage in ("blacklist", "download") and is_url_list(file)) or format_of(file.name) is not None

    def find(self, step: Step, kind: str, url: str) -> list[Hit]:
        """The rows of a URL in one of a step's tables; none if there is no such table."""
        index = self._open.get((step.name, kind))
        return index.find(url_hash(url)) if index is not None else []

    def count(self, step: Step, kind: str, url: str) -> int:
        """The number of rows of a URL in one of a step's tables."""
        index = self._open.get((step.name, kind))
        return index.count(url_hash(url)) if index is not None else 0

    def has(self, step: Step, kind: str) -> bool:
        """Whether a step has that table."""
        return (step.name, kind) in self._open

    def number(self, step: Step, document: Document, file: Location, row: int) -> int | None:
        """The number of a document of a shard in the token files of a step; None if it has none.

        It follows from the order of all documents that were read. As these may have changed since, the tokens there are
        compared with the document's own, and where they are others it is looked for among all.
        """
        if encoding_refused(document, **held_out_settings(step.record["settings"])):
            return None
        if step.name not in self._tokens:
            self._tokens[step.name] = _TokenFiles.of(step)
        place, files = self._in_order(step, document, file, row), self._tokens[step.name]
        return place if files is None else files.find(document.text, place)

    def numbers_as_read(self, step: Step, url: str) -> list[int]:
        """The numbers, in the token files of a step, of documents of a URL that have been taken out of its input since.

        They are known if the input was indexed before that; none if not.
        """
        kept = self._as_read.get(step.name, {})
        if {LISTED, ORDER} - kept.keys() or self.find(step, LISTED, url):
            return []
        order, numbers = kept[ORDER], []
        for hit in kept[LISTED].find(url_hash(url)):
            begin = order.ends[hit.number - 1] if hit.number else 0
            for at in np.flatnonzero(order.rows[begin : order.ends[hit.number]] == hit.row).tolist():
                is_shuffled = step.record["settings"]["shuffle"]
                numbers.append(order.rank(int(order.keys[begin + at]), hit) if is_shuffled else begin + at)
        return numbers

    def _in_order(self, step: Step, document: Document, file: Location, row: int) -> int | None:
        """The number of encoded documents before one."""
        index, settings = self._open.get((step.name, ORDER)), step.record["settings"]
        if index is None or file not in index.files:
            return None
        number = index.files.index(file)
        if settings["shuffle"]:
            return index.rank(shuffle_key(document, settings["seed"]), Hit(number, file, row))
        begin = index.ends[number - 1] if number else 0  # without a shuffle hashes are the rows themselves
        return begin + int(index.keys[begin : index.ends[number]].searchsorted(row))

    def passages(self, step: Step) -> Index | None:
        """The fingerprints of a step's texts, built now if need be; None where there are no shards of documents."""
        if (
            step.state is None or not step.shards() or step.stage in ("urls", "blacklist")
        ):  # whose shards hold URLs alone
            return None
        if not self.has(step, PASSAGES):
            rows = sum(step.record["shards"].values())
            options = {"words": RUN, "unicode": characters().unicode}
            wanted = Wanted(step, PASSAGES, tuple(step.shards()), entries.passages, options, rows)
            self._add([wanted], "why: index of passages")
        return self._open[step.name, PASSAGES]


@dataclass(frozen=True)
class _TokenFiles:
    """The token files of `tokenize`, in which documents are recognised by their tokens."""

    tokens: IndexedTokens
    tokenizer: Tokenizer
    end: list[int]

    @classmethod
    def of(cls, step: Step) -> _TokenFiles | None:
        """Those of a step; None where they, or their tokenizer, can't be read."""
        with contextlib.suppress(IndexedTokensError):
            tokens, tokenizer = IndexedTokens(step.name), corpus_tokenizer(step.name)
            if tokenizer is not None:
                return cls(tokens, tokenizer, [tokenizer.end_of_text] if step.record["settings"]["append_eod"] else [])
        return None

    def find(self, text: str, place: int | None) -> int | None:
        """The number of the document with that text that is nearest to where it is expected; None if there is none."""
        wanted = np.array([*self.tokenizer.encode(text), *self.end], self.tokens.dtype)
        if place is not None and place < len(self.tokens) and np.array_equal(self.tokens[place], wanted):
            return place
        same = [
            number
            for number in np.flatnonzero(self.tokens.lengths == len(wanted)).tolist()
            if np.array_equal(self.tokens[number], wanted)
        ]
        return min(same, key=lambda number: abs(number - (place or 0)), default=None)


def joined(step: Step, tokens: Mapping[str, Sequence[int]]) -> list[int] | None:
    """The numbers of documents in token files that `merge-tokens` joined from others; None if that can't be known.

    `tokens` are their numbers in the token files that were joined, by prefix.
    """
    if step.plain_files or any(source.place is None for source in step.inputs):
        return None
    before, numbers = 0, []
    for source in step.inputs:
        numbers += [before + number for number in tokens.get(source.name, [])]
        before += IndexedTokens(source.name).documents
    return numbers


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
    if not all(map(storage.is_file, files)):
        return None
    settings = step.record["settings"]
    options = {name: settings[name] for name in ("shuffle", "seed")} | held_out_settings(settings)
    return Wanted(step, ORDER, tuple(files), entries.order, options, step.record["in"], _stamps_as_read(step))


def _stamps_as_read(step: Step) -> list[Any] | None:
    """The stamps of all files that a step read; None where others than a user's own are among them."""
    stamps = step.run.get("stamps", [])
    if step.inputs or len(stamps) != step.plain_files or len(step.files) != step.plain_files:
        return None
    return [[file.name, *stamp] for file, stamp in zip(step.files, stamps, strict=True)]


def normalised(text: str) -> str:
    """A text with single spaces for all its white space."""
    return " ".join(text.split())


def find_passage(
    passage: str, steps: Sequence[Step], catalogue: Catalogue, most: int, workers: int
) -> tuple[list[str], list[str]]:
    """The identities of up to `most` documents that hold a passage, white space aside, and sentences about the search.

    Raises InputError if there are none.
    """
    wanted = normalised(passage)
    keys, is_certain = of_passage(wanted)
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
        Task(f"part-{number:05}", Files(shard=shard), hints={"wanted": wanted, "most": most})
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
    """Task: the identities of documents of a shard, up to a number, that hold a passage."""
    documents = context.counted(read_documents(task.reads.shard))
    holding = (document.id for document in documents if task.hints["wanted"] in normalised(document.text))
    return list(itertools.islice(holding, task.hints["most"]))
