"""What a download has finished, on disk the moment it is finished: one SQLite file for each shard of URLs.

A row is a URL's outcome and, if it has one, its document, found by a digest of the URL: the list may grow, shrink or
change its order, and nothing is kept in memory. Records are added in transactions of a write-ahead log: a `kill -9`
loses nothing that was added, a power cut at most the last seconds. A transaction costs some 0.1 ms, a record in it 0.01
ms, but for now and then a wait for the disk: an event loop adds through `JournalWriter`. Reads don't wait for it.

Rows carry checksums that are verified when a journal is opened again: a damaged row costs itself alone. A file that
is not a journal, or whose structure is damaged, is set aside under another name, never removed; the sound rows that can
still be found in it are used.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash
import zstandard

from webtext_prep.crawl.http.client import Reply
from webtext_prep.crawl.state import SUFFIX
from webtext_prep.documents.document import Document, decode_document, encode_document
from webtext_prep.errors import WebtextError

SCHEMA = 1
"""Raised when what a journal holds changes; a journal of another schema is set aside."""
_APPLICATION = 0x77746A31  # "wtj1": tells our files from other programs'
_COMPANIONS = ("", "-wal", "-shm")
_GAP = 10_000
"""Rows in a row that may be unreadable before the rest of a damaged file is given up."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
_OTHER_SCHEMA = "is a journal of another version"
_CREATE = "CREATE TABLE pages (digest BLOB PRIMARY KEY, pass INTEGER, row BLOB, document BLOB, checksum BLOB)"


def url_digest(url: str) -> bytes:
    """16 bytes by which a URL is found."""
    return xxhash.xxh3_128_digest(url.encode("utf-8", "surrogatepass"))


def journal_path(folder: Path, task: str) -> Path:
    """Where the journal of a task lies, in the folder of all journals."""
    return folder / f"{task}{SUFFIX}"


def unpacked(document: bytes) -> bytes:
    """A document as a journal holds it, decompressed."""
    return zstandard.ZstdDecompressor().decompress(document)


def _checksum(digest: bytes, row: bytes, document: bytes | None) -> bytes:
    checksum = xxhash.xxh3_64(digest)
    checksum.update(len(row).to_bytes(8, "little"))
    checksum.update(row)
    checksum.update(document or b"")
    return checksum.digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One URL's record.

    Attributes:
        row: its outcome, with `url`.
        document: its document, if the outcome is `ok`.
        retry_pass: the pass over the list in which it was fetched; 0 for what was carried over from finished shards.
        answer: the page itself, if it is to be saved (elsewhere: the row then says where).
        record: the page as it was saved elsewhere, to be saved here.
    """

    row: dict[str, Any]
    document: Document | None = None
    retry_pass: int = 0
    answer: Reply | None = None
    record: bytes | None = None


class Journal:
    """The records of one shard. Use as a context manager; a later record of a URL replaces the earlier one.

    Additions may come from another thread than readings, one at a time.

    Attributes:
        notes: a sentence for each thing that was found wrong with the file.
        added_bytes: of documents that were added since it was opened, compressed.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.notes = path, list[str]()
        self.added_bytes = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._compress = zstandard.ZstdCompressor(level=1).compress
        self._decompress = zstandard.ZstdDecompressor().decompress
        reason = _why_not_ours(path)
        aside = None if reason is None else self._set_aside(reason)
        self._open()
        if aside is None:
            try:
                self._remove_damaged_rows()
            except sqlite3.DatabaseError as error:
                if not _says_damage(error):
                    raise _unusable(path, error) from error
                self.close()
                aside = self._set_aside(f"is damaged ({error})")
                self._open()
        if aside is not None and reason != _OTHER_SCHEMA:
            self._salvage(aside)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, url: str) -> bool:
        found = self._reader.execute("SELECT 1 FROM pages WHERE digest = ?", (url_digest(url),))
        return found.fetchone() is not None

    def __len__(self) -> int:
        return int(self._reader.execute("SELECT count(*) FROM pages").fetchone()[0])

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record."""
        return not self._reader.execute("SELECT EXISTS (SELECT 1 FROM pages)").fetchone()[0]

    # Adding and finding

    def add_many(self, entries: Iterable[Entry]) -> None:
        """Add records in one transaction: all of them, or none if this is interrupted.

        Once this returns, they are found again though this process be killed. Raises WebtextError if they can't be
        written (a full disk).
        """

        def values() -> Iterator[tuple[bytes, int, bytes, bytes | None, bytes]]:
            for entry in entries:
                digest, row = url_digest(entry.row["url"]), msgspec.json.encode(entry.row)
                document = None if entry.document is None else self._compress(encode_document(entry.document))
                self.added_bytes += len(document or b"")
                yield digest, entry.retry_pass, row, document, _checksum(digest, row, document)

        try:
            # Commits at the end of the block, or rolls back what an exception has left half done.
            with self._writer:
                self._writer.execute("BEGIN")
                self._writer.executemany("INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?, ?)", values())
        except sqlite3.OperationalError as error:
            raise _unusable(self.path, error) from error

    def outcome(self, url: str) -> Entry | None:
        """The record of `url` without its document, which is not even read; None if there is none."""
        found = self._reader.execute("SELECT pass, row FROM pages WHERE digest = ?", (url_digest(url),)).fetchone()
        return None if found is None else Entry(msgspec.json.decode(found[1]), None, found[0])

    def line(self, url: str) -> tuple[dict[str, Any], bytes | None] | None:
        """The row of `url`, and its document as `encode_document` wrote it; None if there is no record."""
        found = self._reader.execute("SELECT row, document FROM pages WHERE digest = ?", (url_digest(url),)).fetchone()
        if found is None:
            return None
        return msgspec.json.decode(found[0]), None if found[1] is None else self._decompress(found[1])

    def entries(self) -> Iterator[Entry]:
        """All records, in the order in which they were added."""
        for retry_pass, row, document in self._reader.execute("SELECT pass, row, document FROM pages ORDER BY rowid"):
            text = None if document is None else decode_document(self._decompress(document))
            yield Entry(msgspec.json.decode(row), text, retry_pass)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of all records, in the order in which they were added."""
        for (row,) in self._reader.execute("SELECT row FROM pages ORDER BY rowid"):
            yield msgspec.json.decode(row)

    @property
    def last(self) -> int:
        """The number of the last record, 0 if there is none. To be asked where records are added."""
        return int(self._writer.execute("SELECT coalesce(max(rowid), 0) FROM pages").fetchone()[0])

    def added_after(self, number: int) -> list[tuple[int, int, bytes, bytes | None]]:
        """What was added after record `number`: each record's own number, its pass, row and document as they lie here.

        A later record has a higher number. To be called where records are added.
        """
        query = "SELECT rowid, pass, row, document FROM pages WHERE rowid > ? ORDER BY rowid"
        return self._writer.execute(query, (number,)).fetchall()

    # The file

    def _open(self) -> None:
        try:
            self._writer = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute("PRAGMA synchronous = NORMAL")
            if self._writer.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in ("BEGIN", _CREATE, f"PRAGMA application_id = {_APPLICATION}"):
                    self._writer.execute(statement)
                self._writer.execute(f"PRAGMA user_version = {SCHEMA}")
                self._writer.execute("COMMIT")
            self._reader = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._reader.execute("PRAGMA query_only = ON")
        except sqlite3.OperationalError as error:
            raise _unusable(self.path, error) from error

    def close(self) -> None:
        """Close the file, which then holds all that was added."""
        self._reader.close()
        self._writer.close()  # the last to close folds the log into the file

    def _set_aside(self, reason: str) -> Path:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.set-aside-{number}")).exists():
            number += 1
        for suffix in reversed(_COMPANIONS):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
        self.notes.append(f"{self.path.name} {reason}: it was set aside, and its pages are fetched again.")
        return aside

    def _remove_damaged_rows(self) -> None:
        (verdict,) = self._writer.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict.replace("\n", " "))
        rows = self._reader.execute("SELECT rowid, digest, row, document, checksum FROM pages")
        damaged = [rowid for rowid, *columns in rows if not _is_sound(*columns)]
        for rowid in damaged:
            self._writer.execute("DELETE FROM pages WHERE rowid = ?", (rowid,))
        if damaged:
            self.notes.append(f"{self.path.name}: {len(damaged):,} damaged records are fetched again.")

    def _salvage(self, damaged: Path) -> None:
        """Copy what can be read of a damaged journal, row by row."""
        connection = sqlite3.connect(f"{damaged.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        saved, rowid, misses = 0, 1, 0
        try:
            while misses < _GAP:
                try:
                    found = connection.execute(
                        "SELECT digest, pass, row, document, checksum FROM pages WHERE rowid = ?", (rowid,)
                    ).fetchone()
                except sqlite3.DatabaseError:
                    found = None
                rowid += 1
                if found is None or not _is_sound(found[0], *found[2:]):
                    misses += 1
                    continue
                misses = 0
                saved += 1
                self._writer.execute("INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?, ?)", found)
        finally:
            connection.close()
        if saved:
            self.notes.append(f"{damaged.name}: {saved:,} sound records were found in it, and are used.")


def _says_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether an error is about what the file holds; a full disk or a lock says nothing of that."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE


def _unusable(path: Path, error: sqlite3.Error) -> WebtextError:
    return WebtextError(f"can't use {path} ({error}): free some space, or check its folder, and run the command again.")


def _why_not_ours(path: Path) -> str | None:
    """What is wrong with a file that is not a journal of this schema, or None where it is one, or none yet."""
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            application, schema, tables = (
                connection.execute(query).fetchone()[0]
                for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
            )
    except sqlite3.DatabaseError as error:
        if not _says_damage(error):
            raise _unusable(path, error) from error
        return f"is not a journal, or is damaged ({error})"
    if application == _APPLICATION:
        return None if schema == SCHEMA else _OTHER_SCHEMA
    # A kill may have come before the first transaction.
    return None if not (application or schema or tables) else "is not a journal"


def _is_sound(digest: Any, row: Any, document: Any, checksum: Any) -> bool:
    """Whether the columns of a record are what was written; any of them may be of any type in a damaged file."""
    if not (isinstance(digest, bytes) and isinstance(row, bytes) and isinstance(document, bytes | None)):
        return False
    return bool(_checksum(digest, row, document) == checksum)


class UrlSet:
    """A set of URLs that goes to disk when it grows: a list may hold millions. Use as a context manager."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)
        self._connection.execute("CREATE TABLE urls (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        self._connection.execute("BEGIN")

    def __enter__(self) -> UrlSet:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add(self, url: str) -> bool:
        """Add a URL; True if it was not there before."""
        found = self._connection.execute("INSERT OR IGNORE INTO urls VALUES (?)", (url_digest(url),))
        return found.rowcount == 1
