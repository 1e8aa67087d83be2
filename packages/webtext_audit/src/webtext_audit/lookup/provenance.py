"""The story of one document through the steps that made an output: where it was, what was decided, and by what.

Where a document was is known from the indices. Why it was dropped is read from what the stages wrote next to their
shards (outcomes, duplicates, matches, dropped documents), and else asked again: the stage, with the settings of its
record, judges the document as it came in.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from indexed_tokens import IndexedTokens, IndexedTokensError, corpus_tokenizer
from webtext_audit.lineage import stage_of
from webtext_audit.lookup.catalogue import CUT, GONE, LISTED, LOST, ORDER, OUTCOME, URLS, WON, Catalogue, joined
from webtext_audit.lookup.index import Hit, row_of
from webtext_prep import storage
from webtext_prep.documents.document import Document, piece_in
from webtext_prep.documents.folders.shards import format_of, read_chosen_documents
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError
from webtext_prep.running.replays import Replays
from webtext_prep.running.stage import Stage
from webtext_prep.stages.filter import SCORE
from webtext_prep.storage.locations import Location

MOST_PLACES = 5
"""Places of one URL that are shown of each step, at most."""
EXCERPT = 300
"""Characters of a text."""
KEPT, DROPPED, ABSENT, UNKNOWN = "kept", "dropped", "absent", "unknown"
NEVER_CAME = "it is in the input as it is now, which has changed since: whether it was there then is not known"
TAKEN_OUT = "its input has changed since: a page that was taken out of there can't be found in it"
Event = dict[str, Any]


class Story:
    """Tells the story of one URL, or of one piece of its page.

    Args:
        url: as documents have it; or the `Document.id` of a piece, whose story begins with that of its page.
        steps: the steps that led to an output and itself, each after the steps that it was made from.
        catalogue: their indices.
        known: stages by name.

    Attributes:
        events: what was found of each step: `stage`, `place`, `verdict` (kept, dropped, absent: it never came here, or
            unknown), and what there is to say.
        tokens: the numbers of its documents in token files, by their prefix.
        text: the beginning of its text where it was last.
    """

    def __init__(self, url: str, steps: list[Step], catalogue: Catalogue, known: Mapping[str, type[Stage]]) -> None:
        self.url, self.text = url, ""
        self._piece = piece_in(url)
        self._met: dict[str, None] = {}
        self.tokens: dict[str, list[int]] = {}
        self._catalogue, self._known = catalogue, known
        self._came: dict[int, list[Hit]] = {}
        self._unknown: set[int] = set()
        self.events = list(map(self._event, steps))

    @property
    def is_found(self) -> bool:
        """Whether any step knows the URL, and the piece."""
        is_met = any(event["verdict"] in (KEPT, DROPPED) for event in self.events)
        return is_met and (not self._piece or bool(self.pieces))

    @property
    def pieces(self) -> list[str]:
        """The identities of what it was cut into, if that is several documents; of what was cut again the last ones."""
        found = [one for one in self._met if piece_in(one) and _is_of(piece_in(one), self._piece)]
        return [one for one in found if not any(other.startswith(f"{one}-") for other in found)]

    def as_dict(self) -> dict[str, Any]:
        """The values that `--json` prints."""
        return {"url": self.url, "events": self.events, "text": self.text}

    def _event(self, step: Step) -> Event:
        event: Event = {"stage": step.stage, "place": step.name, "verdict": UNKNOWN}
        if "finished_at" in step.run:
            event["finished_at"] = step.run["finished_at"]
        if step.state is None:
            self._unknown.add(id(step))
            where = "gone, or was made again since" if step.place is None else "not on this machine"
            return {**event, "note": f"its output is {where}"}
        if step.is_tokens:
            return {**event, **self._in_tokens(step)}
        return {**event, **self._in_shards(step)}

    def _find(self, step: Step, kind: str) -> list[Hit]:
        """Its rows in one of a step's tables: of a piece also the rows of the page, or piece, that it was cut from."""
        hits = self._catalogue.find(step, kind, self.url)
        if not self._piece and (kind != URLS or len(hits) < 2):
            return hits
        found = []
        for hit, identity in _identities(hits, kind):
            if kind in (URLS, GONE):
                self._met[identity] = None
            piece = piece_in(identity)
            if not self._piece or _is_of(self._piece, piece):
                found.append(hit)
        return found

    def _count(self, step: Step, kind: str) -> int:
        return len(self._find(step, kind)) if self._piece else self._catalogue.count(step, kind, self.url)

    # Shards

    def _in_shards(self, step: Step) -> Event:
        found, lists = self._find(step, URLS), self._find(step, LISTED)
        self._came[id(step)] = found
        sources = [hit for before in step.inputs for hit in self._came.get(id(before), [])] + lists
        event: Event = {}
        if lists:
            event["listed"] = [_place(hit, "line") for hit in lists[:MOST_PLACES]]
        if self._only_learns(step):
            return {**event, **self._in_learning(step, sources)}
        event |= self._outcome(step)
        if len(sources) > 1:
            event["copies_in"] = len(sources)
        if found:
            event |= {"verdict": KEPT, "at": [_place(hit, "row") for hit in found[:MOST_PLACES]]}
            event |= self._of_kept(step, found)
        elif sources or "outcome" in event or (self._catalogue.has(step, GONE) and self._dropped(step)):
            event |= self._of_dropped(step, sources)
            if "reason" not in event and self._catalogue.has_other_input(step):
                event |= {"verdict": UNKNOWN, "note": NEVER_CAME}
            else:
                event["verdict"] = DROPPED
        elif any(id(before) in self._unknown for before in step.inputs) or (step.plain_files and not lists):
            # Its input is not known, so that a page that is not here may have come.
            self._unknown.add(id(step))
            event |= {"verdict": UNKNOWN, "note": "it is not in the output; the input can't be searched"}
        else:
            event["verdict"] = ABSENT
        return event

    def _only_learns(self, step: Step) -> bool:
        """Whether it makes no documents, but a tokenizer or a classifier of them."""
        stage = self._known.get(step.stage)
        return stage is not None and stage.writes.made in ("tokenizer", "filter")

    def _in_learning(self, step: Step, sources: list[Hit]) -> Event:
        """Whether a tokenizer, or a classifier, was learned from the document."""
        document = _source(sources[0]) if sources else None
        if document is None:
            return {"verdict": ABSENT}
        judged = self._judged(step, document)
        if judged.get("reason") in step.record["dropped"]:
            return {"verdict": DROPPED, **judged}
        if step.record["dropped"].get("not_sampled") or "note" in judged:
            return {"note": "not known whether it is in the sample that was learned from", **judged}
        return {"verdict": KEPT}

    def _outcome(self, step: Step) -> Event:
        for hit in self._find(step, OUTCOME)[:1]:
            row = _row(hit)
            return {name: value for name, value in row.items() if name not in ("url", "text")}
        return {}

    def _of_kept(self, step: Step, found: list[Hit]) -> Event:
        event: Event = {}
        represents = self._count(step, WON)
        if represents:
            event["kept_instead_of"] = represents
        matches = self._find(step, CUT)
        if matches:
            event["cut_out"] = [_row(hit) for hit in matches[:MOST_PLACES]]
        if "scores" in step.record.get("facts", {}) and (document := _source(found[0])) is not None:
            event["values"] = {name: document.metadata[name] for name in (SCORE,) if name in document.metadata}
        return event

    def _dropped(self, step: Step) -> Document | None:
        """The document among the dropped ones that the step has kept on disk."""
        hit = next(iter(self._find(step, GONE)), None)
        return None if hit is None else _document(hit.file, hit.row)

    def _of_dropped(self, step: Step, sources: list[Hit]) -> Event:
        """Why a step has dropped the document."""
        gone, document = self._dropped(step), None
        if step.stage == "urls":
            gone = gone or self._submission(step, sources)
        elif sources:
            document = _source(sources[0])
        if document is not None and document.text:
            self.text = document.text[:EXCERPT]
        duplicate = next(iter(self._find(step, LOST)), None)
        if duplicate is not None:
            return {"reason": "duplicate", **{k: v for k, v in _row(duplicate).items() if k != "url"}}
        event: Event = {}
        if gone is not None:
            event["reason"] = gone.metadata.get("reason")
        outcome = self._outcome(step).get("outcome")
        if outcome:
            return {"reason": outcome}
        if (shown := document or gone) is not None:
            event = {**self._judged(step, shown), **event}
        matches = self._find(step, CUT)
        if matches:
            event["cut_out"] = [_row(hit) for hit in matches[:MOST_PLACES]]
        reasons = [] if self._catalogue.has_other_input(step) else self._possible_reasons(step)
        if "reason" not in event and reasons:
            # With a single reason it is that one.
            event["reason" if len(reasons) == 1 else "reasons_of_this_step"] = (
                reasons[0] if len(reasons) == 1 else reasons
            )
        return event

    def _judged(self, step: Step, document: Document) -> Event:
        """What the stage says of a document when it is asked again, and the values by which it decides."""
        try:
            stage = stage_of(step, self._known)
        except InputError as error:
            return {"note": str(error)}
        if not isinstance(stage, Replays):
            return {}
        verdict = stage.judge_again(document, with_values=True)
        found: Event = {"reason": verdict.dropped.metadata["reason"]} if verdict.dropped is not None else {}
        return {**found, "values": verdict.values} if verdict.values else found

    def _possible_reasons(self, step: Step) -> list[str]:
        """For a document that no reason of its own explains: the reasons that depend on other documents."""
        reasons = [reason for reason, count in step.record["dropped"].items() if count]
        with contextlib.suppress(InputError):
            stage = stage_of(step, self._known)
            if isinstance(stage, Replays):
                return [reason for reason in reasons if not stage.is_judged_again(reason)] or reasons
        return reasons

    def _submission(self, step: Step, sources: list[Hit]) -> Document | None:
        """The submission of a page that was dropped, from its dump, with its reason; None if others decided that."""
        try:
            stage = stage_of(step, self._known)
        except InputError:
            return None
        assert isinstance(stage, Replays)
        found = (
            next(itertools.islice(stage.judged_again([hit.file]), hit.row, None), None) for hit in sources[:MOST_PLACES]
        )
        return next(filter(None, found), None)

    # Token files

    def _in_tokens(self, step: Step) -> Event:
        numbers = joined(step, self.tokens) if step.stage == "merge-tokens" else self._encoded(step)
        if numbers is None:
            self._unknown.add(id(step))
            return {"note": "its input is gone, so that documents can't be found in it"}
        if not numbers:
            hits = self._hits_before(step)
            document = _source(hits[0]) if hits else None
            if document is None:
                return {"note": TAKEN_OUT} if self._catalogue.has_other_input(step) else {"verdict": ABSENT}
            judged = self._judged(step, document)
            if "reason" not in judged and self._catalogue.has_other_input(step):
                return {**judged, "note": NEVER_CAME}
            return {"verdict": DROPPED, **judged}
        try:
            tokens = IndexedTokens(step.name)
        except IndexedTokensError as error:
            return {"note": str(error)}
        self.tokens[step.name] = numbers
        return {"verdict": KEPT, "at": [_token_place(tokens, number) for number in numbers[:MOST_PLACES]]}

    def _encoded(self, step: Step) -> list[int] | None:
        """The numbers of the document in the token files of `tokenize`; None if that can't be known."""
        hits = self._hits_before(step)
        if not hits and not self._catalogue.has(step, ORDER):
            return None
        numbers = self._catalogue.numbers_as_read(step, self.url)
        for hit in hits:
            document = _document(hit.file, hit.row)
            self.text = document.text[:EXCERPT] or self.text
            number = self._catalogue.number(step, document, hit.file, hit.row)
            numbers += [] if number is None else [number]
        return numbers

    def _hits_before(self, step: Step) -> list[Hit]:
        """Its rows in what a step read: in the outputs of steps before it, or in files of the user's own."""
        came = [hit for before in step.inputs for hit in self._came.get(id(before), [])]
        return came or self._find(step, LISTED)


def _is_of(piece: str, other: str) -> bool:
    """Whether a piece of a page is another one, or was cut from it; all are of the whole page, which has no number."""
    return not other or f"{piece}-".startswith(f"{other}-")


def _place(hit: Hit, what: str) -> dict[str, Any]:
    return {"file": str(hit.file), what: hit.row + 1}


def _token_place(tokens: IndexedTokens, document: int) -> dict[str, Any]:
    begin, end = (int(tokens.document_index[at]) for at in (document, document + 1))
    count = int(tokens.lengths[begin:end].sum())
    at = int(tokens.offsets[begin]) // tokens.dtype.itemsize if end > begin else 0
    place: dict[str, Any] = {"document": document, "first_token": at, "tokens": count}
    tokenizer = corpus_tokenizer(tokens.prefix)
    if tokenizer is not None and end > begin:
        place["begins"] = tokenizer.decode(tokens.slice(begin, 0, min(16, int(tokens.lengths[begin]))))
    return place


def _document(shard: Location, row: int) -> Document:
    """One document of a shard. Raises InputError if it is not there."""
    for _, document in read_chosen_documents(shard, lambda number: number == row):
        return document
    raise InputError(
        f"{shard} has no document {row + 1:,}: it has changed since it was indexed; run the same command again."
    )


def _source(hit: Hit) -> Document | None:
    """What a step read: a document of a shard, or the row of a list."""
    return _document(hit.file, hit.row) if format_of(hit.file.name) is not None else row_of(hit.file, hit.row)


def _row(hit: Hit) -> dict[str, Any]:
    """One row of a table of JSON lines."""
    return next((row for _, row in _rows(hit.file, {hit.row})), {})


def _rows(table: Location, chosen: Collection[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Some rows of a table of JSON lines, with their numbers."""
    if storage.is_file(table):
        for number, line in enumerate(read_lines(table)):
            if number in chosen:
                yield number, msgspec.json.decode(line)
                if number == max(chosen):
                    return


def _identities(hits: Iterable[Hit], kind: str) -> Iterator[tuple[Hit, str]]:
    """The rows that were found in the tables of one kind, each with the `Document.id` that stands there."""
    by_file: dict[Location, dict[int, Hit]] = {}
    for hit in hits:
        by_file.setdefault(hit.file, {})[hit.row] = hit
    for file, chosen in by_file.items():
        named: Iterable[tuple[int, str]] = ((row, "") for row in chosen)  # of a list: whole pages
        if kind in (LOST, WON, CUT):
            key = "duplicate_of" if kind == WON else "url"
            named = ((number, row.get(key, "")) for number, row in _rows(file, chosen))
        elif kind != OUTCOME and format_of(file.name) is not None:
            named = ((number, found.id) for number, found in read_chosen_documents(file, chosen.__contains__))
        yield from ((chosen[row], identity) for row, identity in named)
