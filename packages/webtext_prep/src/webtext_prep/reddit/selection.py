"""Which submissions count: the rules that look at one submission alone, and how people name subreddits and times.

From the rows of a dump to the buckets of a partition file: the submissions dropped at once, and the page of every
other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from webtext_prep.documents.folders.partitions import PartitionWriter
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError
from webtext_prep.reddit.pages import encode_link, link_of, page_key
from webtext_prep.reddit.rows import Submission, read_rows, url_of
from webtext_prep.running.tasks import Problems, Tally
from webtext_prep.storage.locations import Location

_PREFIX = re.compile(r"^/?r/", re.IGNORECASE)
_FIRST = {len("2015"): "-01-01", len("2015-01"): "-01"}
"""What makes a day of a year or a month: its first."""


@dataclass(frozen=True)
class Rules:
    """What a submission must be to count.

    Attributes:
        min_score: its score at least, or None for any.
        over_18: whether it may be marked as for adults.
        removed: whether it may have been removed or deleted, as far as its row says so.
        only: its subreddit is one of these, in lower case; empty for any.
        never: its subreddit is none of these.
        after: seconds since 1970 from which on it was submitted, or None.
        before: seconds since 1970 before which it was submitted, or None.
    """

    min_score: int | None = 3
    over_18: bool = False
    removed: bool = True
    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    after: int | None = None
    before: int | None = None

    def reason(self, row: Submission) -> str | None:
        """The reason to drop a submission, or None."""
        if row.is_self:
            return "self_post"
        if row.over_18 and not self.over_18:
            return "over_18"
        if row.promoted:
            return "advertisement"
        if row.removed_by_category is not None and not self.removed:
            return "removed"
        if (self.only or self.never) and not self._takes(row.subreddit.lower()):
            return "other_subreddit"
        if (self.after is not None or self.before is not None) and not self._is_in_time(row.created):
            return "other_time"
        if not row.url.strip():
            return "no_url"
        return "low_score" if self.min_score is not None and row.score < self.min_score else None

    def _takes(self, subreddit: str) -> bool:
        return (not self.only or subreddit in self.only) and subreddit not in self.never

    def _is_in_time(self, created: int) -> bool:
        return (self.after is None or created >= self.after) and (self.before is None or created < self.before)


def is_list_of_names(name: str) -> bool:
    """Whether a value of `--subreddits` is the path of a list of them."""
    return name.endswith(".txt")


def subreddit_names(given: Iterable[str]) -> frozenset[str]:
    """Names of subreddits in lower case, from names (`news`, `r/news`) and paths of lists of them, one on a line.

    Raises InputError for a list that can't be read, or holds no name.
    """
    found: set[str] = set()
    for entry in given:
        lines = [entry]
        if is_list_of_names(entry):
            lines = [line.decode("utf-8", "replace") for line in read_lines(Path(entry))]
        names = {
            _PREFIX.sub("", name).rstrip("/").lower() for line in lines if (name := line.strip()) and name[0] != "#"
        }
        if not names:
            raise InputError(
                f"no subreddit in {entry or 'an empty name'}: give names, or a .txt file with one on a line."
            )
        found |= names
    return frozenset(found)


def time_of(text: str, flag: str) -> int | None:
    """Seconds since 1970 of a date or time in UTC: `2015`, `2015-01`, `2015-01-31`, `2015-01-31T12:00`; None for "".

    Raises InputError naming `flag` for anything else.
    """
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text + _FIRST.get(len(text), ""))
    except ValueError:
        raise InputError(
            f"{flag} {text} is not a date: give one such as 2015-01-31, 2015-01 or 2015, or 2015-01-31T12:00 (UTC)."
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())


class Splitter:
    """Splits the rows of one dump, block after block.

    Args:
        rules: which submissions count.
        buckets: among how many the pages are split.
        dump: the file, as messages name it.
        state: what `state` gave when the blocks before were done; None at the beginning.
    """

    def __init__(self, rules: Rules, buckets: int, dump: Location, *, state: dict[str, Any] | None = None) -> None:
        self._rules, self._buckets, self._dump = rules, buckets, dump
        state = state or {"line": 0, "tally": Tally().as_dict(), "unreadable": {}}
        self._line: int = state["line"]
        self.tally = Tally.from_dict(state["tally"])
        self.problems = Problems({reason: tuple(found) for reason, found in state["unreadable"].items()})

    def state(self) -> dict[str, Any]:
        """JSON-like values from which to go on, and the result in the end: `tally` and `unreadable`."""
        return {"line": self._line, "tally": self.tally.as_dict(), "unreadable": self.problems.found}

    def split(self, block: bytes, writer: PartitionWriter) -> None:
        """Add the rows of a block, whole lines, to the buckets."""
        judge, add, buckets, kept = self._rules.reason, writer.add, self._buckets, 0
        rows = read_rows(block)
        for line, row in enumerate(rows, self._line + 1):
            if isinstance(row, Submission):
                reason = judge(row)
                if reason is None:
                    url = url_of(row)
                    key = xxhash.xxh3_128_hexdigest(page_key(url).encode("utf-8", "surrogatepass"))
                    add(int(key[:8], 16) % buckets, encode_link(link_of(row, url, key)))
                    kept += 1
                    continue
            elif row is not None:
                reason = "unreadable"
                self.problems.add(row.reason, str(row), [f"{self._dump}, line {line:,}"])
            else:
                continue
            self.tally.dropped[reason] += 1
        self._line += len(rows)
        self.tally.kept += kept
        self.tally.read = self.tally.kept + self.tally.dropped.total()
