"""What a stage says afterwards of a document of its input: why it was dropped, without `--keep-dropped`."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.storage.locations import Location


@dataclass(frozen=True)
class Verdict:
    """The answer of a stage about one document of its input when it is asked again.

    Attributes:
        dropped: the document as `--keep-dropped` would write it; None if it is kept, or if other documents decide.
        values: the measures by which the stage decides, and their limits, for people to read.
    """

    dropped: Document | None = None
    values: dict[str, Any] = field(default_factory=dict)


class Replays(abc.ABC):
    """A stage that can be asked again. One that is not this decides about several documents together, or drops none."""

    @abc.abstractmethod
    def judge_again(self, document: Document, *, with_values: bool = False) -> Verdict:
        """The decision about one document; values that take time to find only where they are asked for."""

    def judged_again(self, files: Sequence[Location], most: int | None = None) -> Iterator[Document | None]:
        """Each document of the input as it would be dropped, in order; repeated ones, too.

        Args:
            files: the input.
            most: documents of each file that are looked at.
        """
        for file in files:
            yield from (self.judge_again(found).dropped for found in itertools.islice(read_documents(file), most))

    def is_judged_again(self, reason: str) -> bool:
        """Whether `judged_again` finds all that is dropped for that reason."""
        return True


@runtime_checkable
class Recalls(Protocol):
    """A stage whose verdicts need what a run of it has found out about all documents together."""

    def with_facts(self, facts: dict[str, Any]) -> Self:
        """The same stage, which knows the facts of its record."""
        ...
