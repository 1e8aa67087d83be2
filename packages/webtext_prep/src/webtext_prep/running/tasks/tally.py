"""Counting what happens to documents: in + added = out + the sum of the reasons, always."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from command_kit import hide_credentials
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.base import DocumentWriter

MAX_PROBLEMS = 10
"""How many problems with their places are shown at the end of a stage; all of them are counted."""


def with_reason(document: Document, reason: str, **details: Any) -> Document:
    """A dropped document as it is written with `--keep-dropped`."""
    ours = {"reason": reason, **details}
    # Once more at the end: a document that was dropped before brings the reason of that time with it.
    return Document(document.url, document.text, {**ours, **document.metadata, **ours})


@dataclass
class Tally:
    """What became of the documents of one task, or of all of them.

    Attributes:
        read: documents in.
        kept: documents out.
        added: documents out that were not in: where one was cut into pieces, those after the first.
        dropped: reason to number of documents dropped for it.
        notes: other things worth counting ("repaired"), which add up to nothing.
        problems: the first few sentences about input that could not be used, with file and line.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    dropped_writer: DocumentWriter | None = field(default=None, repr=False)
    added: int = 0

    def drop(self, document: Document, reason: str, **details: Any) -> None:
        """Count `document` as dropped for `reason`; with `--keep-dropped` it is written with reason and details."""
        self.dropped[reason] += 1
        if self.dropped_writer is not None:
            self.dropped_writer.write(with_reason(document, reason, **details))

    def problem(self, sentence: str) -> None:
        """Remember a sentence about input that could not be used, unless there are enough already."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(hide_credentials(sentence))

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Pass `documents` on, counting them as read."""
        for document in documents:
            self.read += 1
            yield document

    def add(self, other: Tally) -> None:
        """Add another task's counts."""
        self.read += other.read
        self.kept += other.kept
        self.added += other.added
        self.dropped.update(other.dropped)
        self.notes.update(other.notes)
        for sentence in other.problems:
            self.problem(sentence)

    @property
    def is_balanced(self) -> bool:
        """Whether every document in is accounted for."""
        return self.read + self.added == self.kept + self.dropped.total()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; reasons and notes in the order of their names. `added` is left out where it is 0."""
        return {
            "in": self.read,
            **({"added": self.added} if self.added else {}),
            "out": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "notes": dict(sorted(self.notes.items())),
            "problems": self.problems,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        """The inverse of `as_dict`."""
        return cls(
            values["in"],
            values["out"],
            Counter(values["dropped"]),
            Counter(values["notes"]),
            list(values["problems"]),
            added=values.get("added", 0),
        )


@dataclass
class CollectingTally(Tally):
    """A tally that also holds the dropped documents, with their reasons, as `--keep-dropped` would write them."""

    documents: list[Document] = field(default_factory=list)

    def drop(self, document: Document, reason: str, **details: Any) -> None:
        """Count `document` as dropped, and hold it."""
        super().drop(document, reason, **details)
        self.documents.append(with_reason(document, reason, **details))

    def taken(self) -> list[Document]:
        """The documents that it holds, which it holds no longer."""
        found, self.documents = self.documents, []
        return found
