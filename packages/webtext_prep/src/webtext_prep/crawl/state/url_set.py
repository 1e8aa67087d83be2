"""Which URLs of a list have been met: a set that goes to disk when it grows."""

from __future__ import annotations

import sqlite3
from types import TracebackType

from webtext_prep.crawl.state.database import url_digest


class UrlSet:
    """A set of URLs that goes to disk when it grows: a list may hold millions. Use as a context manager."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)
        self._connection.execute("CREATE TABLE urls (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        self._connection.execute("BEGIN")

    def __enter__(self) -> UrlSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def add(self, url: str) -> bool:
        """Add a URL; True if it was not there before."""
        found = self._connection.execute("INSERT OR IGNORE INTO urls VALUES (?)", (url_digest(url),))
        return found.rowcount == 1
