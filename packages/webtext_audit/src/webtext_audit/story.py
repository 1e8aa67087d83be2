"""The story of one document through the steps that made an output: where it was, what was decided, and by what.

It is told from what the stages wrote: shards, and next to them receipts, outcomes, and tables of what was cut out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from indexed_tokens import IndexedTokens, IndexedTokensError, corpus_tokenizer
from webtext_audit.search import CUTS, DROPS, INSTEAD, LISTED, OUTCOME, SHARDS, SUBMITTED, Hit, Search
from webtext_audit.token_places import TokenPlaces, has_input, joined
from webtext_prep.documents.document import Document, piece_in
from webtext_prep.documents.folders.shards import format_of, read_chosen_documents
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.errors import InputError
from webtext_prep.running.stage import Stage
from webtext_prep.stages.filter import SCORE
from webtext_prep.urls.urls import HELD_OUT

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
        search: where the URL is in them.
        known: stages by name.

    Attributes:
        events: what was found of each step: `stage`, `place`, `verdict` (kept, dropped, absent: it never came here, or
            unknown), and what there is to say.
        tokens: the numbers of its documents in token files, by their prefix.
        text: the beginning of its text where it was last.
    """

    def __init__(self, url: str, steps: list[Step], search: Search, known: Mapping[str, type[Stage]]) -> None:
        self.url, self.text = url, ""
        self._piece = piece_in(url)
        self._met: dict[str, None] = {}
        self.tokens: dict[str, list[int]] = {}
        self._search, self._known = search, known
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
        """Its rows of one kind: of a piece also the rows of the page, or piece, that it was cut from."""
        found, hits = [], self._search.find(step, kind, self.url)
        if not self._piece and (kind != SHARDS or len(hits) < 2):
            return hits
        for hit in hits:
            identity = hit.found.metadata["duplicate_of"] if kind == INSTEAD else hit.found.id
            if kind in (SHARDS, DROPS):
                self._met[identity] = None
            if not self._piece or _is_of(self._piece, piece_in(identity)):
                found.append(hit)
        return found

    # Shards

    def _in_shards(self, step: Step) -> Event:
        found, listed = self._find(step, SHARDS), self._find(step, LISTED) + self._find(step, SUBMITTED)
        self._came[id(step)] = found
        sources = self._sources(step) + listed
        event: Event = {}
        if listed:
            event["listed"] = [_place(hit, "line") for hit in listed[:MOST_PLACES]]
        if self._only_learns(step):
            return {**event, **self._in_learning(step, sources)}
        outcomes = self._find(step, OUTCOME)
        event |= outcomes[0].found.metadata if outcomes else {}
        if len(sources) > 1:
            event["copies_in"] = len(sources)
        if found:
            return {**event, "verdict": KEPT, **self._of_kept(step, found)}
        drops = self._find(step, DROPS)
        if sources or outcomes or drops:
            return {**event, **self._of_dropped(step, sources, drops, outcomes)}
        if any(id(before) in self._unknown for before in step.inputs) or step.plain_files:
            # Its input is not known, so that a page that is not here may have come.
            self._unknown.add(id(step))
            return {**event, "verdict": UNKNOWN, "note": "it is not in the output; the input can't be searched"}
        return {**event, "verdict": ABSENT}

    def _sources(self, step: Step) -> list[Hit]:
        """Its rows in the outputs of the steps before."""
        return [hit for before in step.inputs for hit in self._came.get(id(before), [])]

    def _only_learns(self, step: Step) -> bool:
        """Whether it makes no documents, but a tokenizer or a classifier of them."""
        stage = self._known.get(step.stage)
        return stage is not None and stage.writes.made in ("tokenizer", "filter")

    def _in_learning(self, step: Step, sources: list[Hit]) -> Event:
        """Whether a tokenizer, or a classifier, was learned from the document."""
        if drops := self._find(step, DROPS):
            return {"verdict": DROPPED, **_decided(drops[0])}
        if not sources:
            return {"verdict": ABSENT}
        if step.record["dropped"].keys() & {"not_sampled", "not_good"}:
            return {"note": "not known whether it is in the sample that was learned from"}
        return {"verdict": KEPT}

    def _of_kept(self, step: Step, found: list[Hit]) -> Event:
        event: Event = {"at": [_place(hit, "row") for hit in found[:MOST_PLACES]]}
        if represents := self._find(step, INSTEAD):
            event["kept_instead_of"] = len(represents)
        if "scores" in step.record.get("facts", {}):
            metadata = found[0].found.metadata
            event["values"] = {name: metadata[name] for name in (SCORE,) if name in metadata}
        return {**event, **self._cut_out(step)}

    def _cut_out(self, step: Step) -> Event:
        rows = [{"url": hit.found.url, **hit.found.metadata} for hit in self._find(step, CUTS)[:MOST_PLACES]]
        return {"cut_out": rows} if rows else {}

    def _of_dropped(self, step: Step, sources: list[Hit], drops: list[Hit], outcomes: list[Hit]) -> Event:
        """Why a step has dropped the document."""
        if sources and step.stage != "urls":
            text = _document(sources[0]).text if format_of(sources[0].file.name) is not None else ""
            self.text = text[:EXCERPT] or self.text
        if drops:
            return {"verdict": DROPPED, **_decided(drops[0]), **self._cut_out(step)}
        if outcomes:
            return {"verdict": DROPPED, "reason": outcomes[0].found.metadata["outcome"]}
        if self._search.has_other_input(step):
            return {"verdict": UNKNOWN, "note": NEVER_CAME}
        # A stage that keeps totals alone. With a single reason it is that one.
        reasons = [reason for reason, count in step.record["dropped"].items() if count]
        if step.record["settings"].get("only_held_out"):
            reasons = [f"not_{HELD_OUT}"]
        return {
            "verdict": DROPPED,
            **({"reason": reasons[0]} if len(reasons) == 1 else {"reasons_of_this_step": reasons}),
        }

    # Token files

    def _in_tokens(self, step: Step) -> Event:
        try:
            numbers = joined(step, self.tokens) if step.stage == "merge-tokens" else self._encoded(step)
            if numbers is None:
                self._unknown.add(id(step))
                return {"note": "its input is gone, so that documents can't be found in it"}
            if not numbers:
                return self._not_in_tokens(step)
            tokens = IndexedTokens(step.name)
        except (InputError, IndexedTokensError) as error:
            return {"note": str(error)}
        self.tokens[step.name] = numbers
        return {"verdict": KEPT, "at": [_token_place(tokens, number) for number in numbers[:MOST_PLACES]]}

    def _not_in_tokens(self, step: Step) -> Event:
        if drops := self._find(step, DROPS):
            return {"verdict": DROPPED, **_decided(drops[0])}
        is_changed, came = self._search.has_other_input(step), self._hits_before(step)
        if is_changed:
            return {"note": NEVER_CAME if came else TAKEN_OUT}
        return self._of_dropped(step, [], [], []) if came else {"verdict": ABSENT}

    def _encoded(self, step: Step) -> list[int] | None:
        """The numbers of the document in the token files of `tokenize`; None if that can't be known."""
        hits = self._hits_before(step)
        if not hits and not has_input(step):
            return None
        places, numbers = TokenPlaces(step), set[int]()
        for hit in hits:
            document = _document(hit)
            self.text = document.text[:EXCERPT] or self.text
            numbers.update(places.find(document))
        return sorted(numbers)

    def _hits_before(self, step: Step) -> list[Hit]:
        """Its rows in what a step read: in the outputs of steps before it, or in files of the user's own."""
        return self._sources(step) or self._find(step, LISTED)


def _is_of(piece: str, other: str) -> bool:
    """Whether a piece of a page is another one, or was cut from it; all are of the whole page, which has no number."""
    return not other or f"{piece}-".startswith(f"{other}-")


def _decided(receipt: Hit) -> Event:
    """The reason, and the values that decided; those that name another document are the event's own."""
    values = dict(receipt.found.metadata)
    reason = values.pop("reason")
    if "duplicate_of" in values:
        return {"reason": reason, **values}
    return {"reason": reason, "values": values} if values else {"reason": reason}


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


def _document(hit: Hit) -> Document:
    """The document of a row of a shard, with its text. Raises InputError if it is not there."""
    for _, document in read_chosen_documents(hit.file, lambda number: number == hit.row):
        return document
    raise InputError(f"{hit.file} has no document {hit.row + 1:,}: it has changed meanwhile; run the command again.")
