"""What a download has fetched, on disk; here what it leaves for the next run, by name: how many passes there were, what
to try again, and saved pages."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_kit import parse_json, write_json
from webtext_prep.documents.folders.stage_record import PAGES
from webtext_prep.storage.stores.base import Location

EARLIER, JOURNALS, ROUNDS = "earlier", "journals", "rounds"
"""The folders in the scratch folder with what runs over other lists have fetched, with what this one has, a journal for
each task, and with what its tasks hand on to each other."""

SUFFIX = ".sqlite"
"""Of a journal."""


@dataclass
class History:
    """What a run leaves for the next: a small file in the state folder.

    Attributes:
        version: of the stage.
        lists: stamps of the input files.
        passes: how many passes over the lists have been finished.
        retryable: how many retryable URLs were tried in how many passes.
        gone: for how many pages that are gone which archives were asked, joined by commas.
    """

    version: int = 0
    lists: list[Any] = field(default_factory=list)
    passes: int = 0
    retryable: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, state: Path) -> History:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return cls(**parse_json((state / "download.json").read_bytes()))
        return cls()

    def write(self, state: Path) -> None:
        write_json(state / "download.json", dataclasses.asdict(self))


def retryable_below(rounds: int, retryable: dict[str, int]) -> int:
    """How many retryable URLs have been tried in fewer passes than `rounds`."""
    return sum(count for tried, count in retryable.items() if int(tried) < rounds)


def unasked(archives: Iterable[str], gone: dict[str, int]) -> int:
    """How many pages are gone for which not all of these archives were asked."""
    wanted = set(archives)
    return sum(count for asked, count in gone.items() if not wanted <= set(asked.split(",")))


PAGES_SUFFIX = ".warc.gz"


def pages_of(shard: Location) -> Location:
    """Where the pages of a shard of documents belong: `pages/part-00000.warc.gz`."""
    return shard.parent / PAGES / f"{shard.name.partition('.')[0]}{PAGES_SUFFIX}"
