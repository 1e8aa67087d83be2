"""From the rows of a dump to the buckets of a partition file: what is dropped at once, and the page of every other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xxhash

from command_kit import hide_credentials
from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.folders.partitions import PartitionWriter
from webtext_prep.documents.records.base import Unreadable
from webtext_prep.reddit.page_keys import page_key
from webtext_prep.reddit.pages import document_of, encode_link, link_of, page_of
from webtext_prep.reddit.rows import Submission, link_or_own_url, read_rows, url_of
from webtext_prep.reddit.selection import Rules
from webtext_prep.running.tasks import Problems, Tally, with_reason
from webtext_prep.storage.stores.base import Location


class Splitter:
    """Splits the rows of one dump, block after block.

    Args:
        rules: which submissions count.
        buckets: among how many the pages are split. With `keep_dropped` there is one more, for what is dropped.
        dump: the file, as messages name it.
        keep_dropped: whether what is dropped is wanted.
        state: what `state` gave when the blocks before were done; None at the beginning.
    """

    def __init__(
        self, rules: Rules, buckets: int, dump: Location, *, keep_dropped: bool, state: dict[str, Any] | None = None
    ) -> None:
        self._rules, self._buckets, self._dump, self._keep_dropped = rules, buckets, dump, keep_dropped
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
                else:
                    self._drop(row, reason, writer)
            elif row is not None:
                self._refuse(row, line, writer)
        self._line += len(rows)
        self.tally.kept += kept
        self.tally.read = self.tally.kept + self.tally.dropped.total()

    def judged(self, block: bytes) -> Iterator[Document | None]:
        """For each row of a block what is dropped at once, as it would be kept, or None; adds nothing anywhere."""
        rows = read_rows(block)
        for line, row in enumerate(rows, self._line + 1):
            if isinstance(row, Submission):
                reason = self._rules.reason(row)
                yield None if reason is None else _dropped(row, reason)
            else:
                yield None if row is None else self._refused(row, line)
        self._line += len(rows)

    def _drop(self, row: Submission, reason: str, writer: PartitionWriter) -> None:
        self.tally.dropped[reason] += 1
        if self._keep_dropped:
            self._keep(_dropped(row, reason), writer)

    def _refuse(self, error: Unreadable, line: int, writer: PartitionWriter) -> None:
        self.tally.dropped["unreadable"] += 1
        self.problems.add(error.reason, str(error), [f"{self._dump}, line {line:,}"])
        if self._keep_dropped:
            self._keep(self._refused(error, line), writer)

    def _refused(self, error: Unreadable, line: int) -> Document:
        document = Document(f"file:{self._dump.name}:{line}")
        return with_reason(document, "unreadable", problem=hide_credentials(str(error)))

    def _keep(self, document: Document, writer: PartitionWriter) -> None:
        writer.add(self._buckets, encode_document(document))


def _dropped(row: Submission, reason: str) -> Document:
    """A submission that does not count, under the page that it links to, or under its own if there is none."""
    link = link_of(row, link_or_own_url(row))
    return with_reason(document_of(page_of(link, [link])), reason)
