"""What a download has fetched, on disk the moment it is finished: one SQLite file for each output.

A row is a URL's outcome and, if it has them, its document and the page itself, found by a digest of the URL: lists may
grow, shrink or change their order, and nothing is kept in memory. The file stays when the output is finished, so that
no page is fetched twice; what the lists name no more is removed from it. Records are added in transactions of a
write-ahead log: a `kill -9` loses nothing that was added, a power cut at most the last seconds. A transaction costs
some 0.1 ms, a record in it 0.01 ms, but for now and then a wait for the disk: an event loop adds through
`DatabaseWriter`. Reads don't wait for it.

Rows carry checksums that are verified when a crawl opens the file: a damaged row costs itself alone. A file that is no
such database, or whose structure is damaged, is set aside under another name, never removed; the sound rows that can
still be found in it are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import xxhash
import zstandard

from command_kit.atomic import make_folder
from webtext_prep.crawl.archives.warc_writing import response_record
from webtext_prep.crawl.http.client import Reply
from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.formats.compression import ZstdError, decompress_zstd
from webtext_prep.errors import WebtextError

NAME = "crawl.sqlite"
SCHEMA = 2
"""Raised when what a database holds changes; one of another schema is set aside."""
_APPLICATION = 0x77746A31  # "wtj1": tells our files from other programs'
_COMPANIONS = ("", "-wal", "-shm")
_GAP = 10_000
"""Rows in a row that may be unreadable before the rest of a damaged file is given up."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
_OTHER_SCHEMA = "is a database of another version"
_CREATE = (
    "CREATE TABLE pages (number INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB UNIQUE, pass INTEGER, row BLOB, "
    "checksum BLOB, document BLOB, page BLOB)",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT)",
)
_HOSTS = "CREATE TABLE IF NOT EXISTS hosts (digest BLOB PRIMARY KEY, rules BLOB) WITHOUT ROWID"
"""What origins say, for a day; without it a database is whole, as files of earlier versions are."""
_ADD_HOST = "INSERT OR REPLACE INTO hosts VALUES (?, ?)"
_ADD = "INSERT OR REPLACE INTO pages (digest, pass, row, checksum, document, page) VALUES (?, ?, ?, ?, ?, ?)"
SECONDS = 0.25
"""The longest that a finished record waits before it is written, if the disk keeps up."""
BATCH = 256
"""Records in a transaction, about: then its fixed cost is a hundredth of the rest."""
WAITING_TEXT = 16 << 20
"""Characters of text (and bytes of pages to save) that may wait to be written; whoever adds beyond that waits too."""


def url_digest(url: str) -> bytes:
    """16 bytes by which a URL is found."""
    return xxhash.xxh3_128_digest(url.encode("utf-8", "surrogatepass"))


def _checksum(digest: bytes, row: bytes, document: bytes | None, page: bytes | None) -> bytes:
    checksum = xxhash.xxh3_64(digest)
    for part in (row, document or b""):
        checksum.update(len(part).to_bytes(8, "little"))
        checksum.update(part)
    checksum.update(page or b"")
    return checksum.digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One URL's record.

    Attributes:
        row: its outcome, with `url`.
        document: its document, if the outcome is `ok`.
        retry_pass: the pass over the lists in which it was fetched, 1 for the first.
        answer: the page itself, if it is to be saved, as a WARC record.
    """

    row: dict[str, Any]
    document: Document | None = None
    retry_pass: int = 0
    answer: Reply | None = None


@dataclass
class Facts:
    """What a finished run leaves for the next.

    Attributes:
        passes: how many passes over the lists have been finished.
        retryable: how many retryable URLs were tried in how many passes.
    """

    passes: int = 0
    retryable: dict[str, int] = field(default_factory=dict)

    def retryable_below(self, passes: int) -> int:
        """The number of retryable URLs that have been tried in fewer passes."""
        return sum(count for tried, count in self.retryable.items() if int(tried) < passes)


class CrawlDatabase:
    """The records of one output. Use as a context manager; a later record of a URL replaces the earlier one.

    Additions may come from another thread than readings, one at a time.

    Args:
        path: the file; it is made if need be.
        is_checked: verify all records, and set aside or remove what is damaged.

    Attributes:
        notes: a sentence for each thing that was found wrong with the file.
    """

    def __init__(self, path: Path, *, is_checked: bool = True) -> None:
        self.path, self.notes = path, list[str]()
        make_folder(path.parent)
        self._compress = zstandard.ZstdCompressor(level=1).compress
        reason = _why_not_ours(path)
        aside = None if reason is None else self._set_aside(reason)
        self._open()
        if aside is None and is_checked:
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

    def __enter__(self) -> CrawlDatabase:
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

    def add_many(self, entries: Iterable[Entry], rules: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Add records, and what origins say, in one transaction: all of them, or none if this is interrupted.

        Once this returns, they are found again though this process be killed. Raises WebtextError if they can't be
        written (a full disk).
        """

        def values() -> Iterator[tuple[bytes, int, bytes, bytes, bytes | None, bytes | None]]:
            for entry in entries:
                digest, row = url_digest(entry.row["url"]), msgspec.json.encode(entry.row)
                document = None if entry.document is None else self._compress(encode_document(entry.document))
                page = None
                if entry.answer is not None:
                    page = response_record(entry.answer, entry.row["url"], entry.row["fetched_at"])
                yield digest, entry.retry_pass, row, _checksum(digest, row, document, page), document, page

        said = [(url_digest(origin), self._compress(text)) for origin, text in rules.items()]
        self._transact((_ADD, values()), (_ADD_HOST, said))

    def rules_of(self, origin: str) -> bytes | None:
        """What `add_many` was given of an origin, or None."""
        found = self._reader.execute("SELECT rules FROM hosts WHERE digest = ?", (url_digest(origin),)).fetchone()
        try:
            return None if found is None else decompress_zstd(found[0])
        except (ZstdError, TypeError):  # damaged
            return None

    def remove_others(self, urls: UrlSet) -> int:
        """Remove the records of all URLs that are not in a set, leaving no trace of them; how many they were.

        All in the set are there.
        """
        if len(self) == len(urls):
            return 0
        found = (digest for (digest,) in self._reader.execute("SELECT digest FROM pages"))
        others = [(digest,) for digest in found if not urls.holds(digest)]
        if others:
            self._writer.execute("PRAGMA secure_delete = ON")
            # Whoever takes a page down leaves no trace of its host either; the others are asked again.
            self._transact(("DELETE FROM pages WHERE digest = ?", others), ("DELETE FROM hosts", [()]))
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return len(others)

    def _transact(self, *statements: tuple[str, Iterable[tuple[Any, ...]]]) -> None:
        try:
            # Commits at the end of the block, or rolls back what an exception has left half done.
            with self._writer:
                self._writer.execute("BEGIN")
                for statement, values in statements:
                    self._writer.executemany(statement, values)
        except sqlite3.OperationalError as error:
            raise _unusable(self.path, error) from error

    def outcome(self, url: str) -> Entry | None:
        """The record of `url` without its document, which is not even read; None if there is none."""
        found = self._reader.execute("SELECT pass, row FROM pages WHERE digest = ?", (url_digest(url),)).fetchone()
        return None if found is None else Entry(msgspec.json.decode(found[1]), None, found[0])

    def lines(self, url: str) -> tuple[dict[str, Any], bytes | None, bytes | None] | None:
        """The row of `url`, its document as `encode_document` wrote it, and its page; None if there is no record.

        A damaged record counts as none.
        """
        digest = url_digest(url)
        query = "SELECT row, checksum, document, page FROM pages WHERE digest = ?"
        found = self._reader.execute(query, (digest,)).fetchone()
        if found is None or not _is_sound(digest, *found):
            return None
        row, _, document, page = found
        return msgspec.json.decode(row), None if document is None else decompress_zstd(document), page

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of all records, in the order in which they were added."""
        for (row,) in self._reader.execute("SELECT row FROM pages ORDER BY number"):
            yield msgspec.json.decode(row)

    @property
    def newest(self) -> int:
        """The number of the record that was added last, also if it is gone; 0 if there was none."""
        found = self._reader.execute("SELECT seq FROM sqlite_sequence WHERE name = 'pages'").fetchone()
        return int(found[0]) if found is not None else 0

    @property
    def facts(self) -> Facts:
        """What the last run has left."""
        found = dict(self._reader.execute("SELECT name, value FROM facts"))
        try:
            known = {entry.name for entry in dataclasses.fields(Facts)}
            return Facts(**{name: msgspec.json.decode(found[name]) for name in known & found.keys()})
        except (msgspec.DecodeError, TypeError):  # damaged
            return Facts()

    @facts.setter
    def facts(self, facts: Facts) -> None:
        values = [(name, msgspec.json.encode(value).decode()) for name, value in dataclasses.asdict(facts).items()]
        self._transact(("INSERT OR REPLACE INTO facts VALUES (?, ?)", values))

    # The file

    def _open(self) -> None:
        try:
            self._writer = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute("PRAGMA synchronous = NORMAL")
            if self._writer.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in ("BEGIN", *_CREATE, f"PRAGMA application_id = {_APPLICATION}"):
                    self._writer.execute(statement)
                self._writer.execute(f"PRAGMA user_version = {SCHEMA}")
                self._writer.execute("COMMIT")
            self._writer.execute(_HOSTS)
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
        rows = self._reader.execute("SELECT number, digest, row, checksum, document, page FROM pages")
        damaged = [number for number, *columns in rows if not _is_sound(*columns)]
        for number in damaged:
            self._writer.execute("DELETE FROM pages WHERE number = ?", (number,))
        if damaged:
            self.notes.append(f"{self.path.name}: {len(damaged):,} damaged records are fetched again.")

    def _salvage(self, damaged: Path) -> None:
        """Copy what can be read of a damaged database, row by row."""
        connection = sqlite3.connect(f"{damaged.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        saved, number, misses = 0, 1, 0
        try:
            while misses < _GAP:
                try:
                    found = connection.execute(
                        "SELECT digest, pass, row, checksum, document, page FROM pages WHERE number = ?", (number,)
                    ).fetchone()
                except sqlite3.DatabaseError:
                    found = None
                number += 1
                if found is None or not _is_sound(found[0], *found[2:]):
                    misses += 1
                    continue
                misses = 0
                saved += 1
                self._writer.execute(_ADD, found)
        finally:
            connection.close()
        if saved:
            self.notes.append(f"{damaged.name}: {saved:,} sound records were found in it, and are used.")


def _says_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether an error is about what the file holds; a full disk or a lock says nothing of that."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _DAMAGE


def _unusable(path: Path, error: sqlite3.Error) -> WebtextError:
    if getattr(error, "sqlite_errorname", "").startswith("SQLITE_IOERR_SHM"):
        return WebtextError(
            f"can't use {path} ({error}): its file system lets no file be shared in memory, as some mounts over a "
            "network or by FUSE do: give an --output on another one, and copy it when it is done."
        )
    return WebtextError(f"can't use {path} ({error}): free some space, or check its folder, and run the command again.")


def _why_not_ours(path: Path) -> str | None:
    """What is wrong with a file that is not a database of this schema, or None where it is one, or none yet."""
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
        return f"is not a database, or is damaged ({error})"
    if application == _APPLICATION:
        return None if schema == SCHEMA else _OTHER_SCHEMA
    # A kill may have come before the first transaction.
    return None if not (application or schema or tables) else "is not a database of downloads"


def _is_sound(digest: Any, row: Any, checksum: Any, document: Any, page: Any) -> bool:
    """Whether the columns of a record are what was written; any of them may be of any type in a damaged file."""
    if not (isinstance(digest, bytes) and isinstance(row, bytes)):
        return False
    if not (isinstance(document, bytes | None) and isinstance(page, bytes | None)):
        return False
    return bool(_checksum(digest, row, document, page) == checksum)


def facts_in(path: Path) -> Facts:
    """What the last run has left in the database of an output, which need not be there."""
    with contextlib.suppress(sqlite3.DatabaseError):
        if path.is_file():
            with CrawlDatabase(path, is_checked=False) as database:
                return database.facts
    return Facts()


class UrlSet:
    """A set of URLs that goes to disk when it grows: a list may hold millions. Use as a context manager.

    Several threads may use it, one after the other.
    """

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
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

    def holds(self, digest: bytes) -> bool:
        """Whether the URL with a `url_digest` is in it."""
        return self._connection.execute("SELECT 1 FROM urls WHERE digest = ?", (digest,)).fetchone() is not None

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM urls").fetchone()[0])


class DatabaseWriter:
    """Adds to a database from an event loop: in a thread, many records in a transaction. Use with `async with`.

    A transaction for each page cost more than fetching it. Records are written when `BATCH` of them have come together,
    or when the first of them has waited `SECONDS`: that much is what a `kill -9` loses. An interruption or an error
    loses nothing, since the end of the block writes the rest.

    Args:
        database: only this writes to it meanwhile.
        written: called after each transaction with the number of records that it added.
    """

    def __init__(self, database: CrawlDatabase, written: Callable[[int], None]) -> None:
        self._database, self._written = database, written
        self._waiting: list[Entry] = []
        self._rules: dict[str, bytes] = {}
        self._rules_on_their_way: dict[str, bytes] = {}
        self._characters = 0
        self._is_full = asyncio.Event()  # there is a batch, or no more will come
        self._has_room = asyncio.Event()
        self._is_closing = False
        self._thread = ThreadPoolExecutor(1, "database")

    async def __aenter__(self) -> DatabaseWriter:
        self._task = asyncio.create_task(self._write_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._is_full.set()
        try:
            await self._task
        finally:
            self._thread.shutdown()  # a transaction that runs is finished first
            if self._waiting or self._rules:  # the task was cancelled
                self._database.add_many(*self._take())

    async def add(self, entry: Entry) -> None:
        """Have a record written. Raises what writing an earlier one raised (WebtextError where the disk is full)."""
        if self._task.done():
            await self._task
        self._waiting.append(entry)
        self._characters += len(entry.document.text) if entry.document is not None else 0
        self._characters += len(entry.answer.body) if entry.answer is not None else 0
        if len(self._waiting) >= BATCH or self._characters > WAITING_TEXT:
            self._is_full.set()
        if self._characters > WAITING_TEXT:
            self._has_room.clear()
            await self._has_room.wait()

    def load_rules(self, origin: str) -> bytes | None:
        """What an origin says, if it is known; see `Robots`."""
        waiting = self._rules.get(origin) or self._rules_on_their_way.get(origin)
        return waiting or self._database.rules_of(origin)

    def store_rules(self, origin: str, rules: bytes) -> None:
        """Have what an origin says written with the next records."""
        self._rules[origin] = rules

    async def _write_all(self) -> None:
        """Write what waits, when there is a batch of it or some time has passed, until nothing more comes."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting or self._rules or not self._is_closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS):
                        await self._is_full.wait()
                self._is_full.clear()
                batch, rules = self._take()
                if batch or rules:
                    await loop.run_in_executor(self._thread, self._database.add_many, batch, rules)
                    self._written(len(batch))
        finally:
            self._has_room.set()

    def _take(self) -> tuple[list[Entry], dict[str, bytes]]:
        taken = self._waiting, self._rules
        self._rules_on_their_way = self._rules
        self._waiting, self._rules, self._characters = [], {}, 0
        self._has_room.set()
        return taken
