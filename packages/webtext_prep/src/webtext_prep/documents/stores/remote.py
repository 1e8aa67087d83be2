"""Files behind a URL of any fsspec file system: object stores, `memory://`, `sftp://` and the like.

A new file is first written to this machine's temporary folder (TMPDIR) and then put in its place in one go: nothing
is visible before it is whole, whatever the file system makes of a writer that dies, and a failed transfer can be tried
again. Object stores show an object only when all of it is there; elsewhere it is put under a temporary name and moved.

Requests that fail by what may pass are made again (`failures`), and objects are read ahead (`read_ahead`), range by
range, each of which is compared with the version that was opened.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import io
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from command_kit import hide_credentials
from command_kit.atomic import LEFTOVER_SUFFIX, UnfinishedFile, remove_leftovers_of
from webtext_prep.documents.stores.base import Location, Note, Store
from webtext_prep.documents.stores.failures import EXTRAS, attempt
from webtext_prep.documents.stores.read_ahead import BUFFER_BYTES, ReadAhead
from webtext_prep.errors import StorageBusyError, StorageError

if TYPE_CHECKING:
    from upath import UPath

Value = TypeVar("Value")

OBJECT_STORES = frozenset({*EXTRAS, "adl", "memory"})
"""Protocols under which a file that is being put is not visible before all of it is there, and ranges can be read."""
READ_AHEAD_BYTES = 8 << 20
_VERSION_KEYS = (
    "ETag",
    "md5Hash",
    "generation",
    "etag",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)
"""What tells versions of a file apart, best first: digests of the content stay when it is written again."""
_TIME_KEYS = ("LastModified", "last_modified", "updated", "mtime", "created")


class RemoteStore(Store):
    """Every file system that fsspec supports."""

    def open(self, location: Location) -> BinaryIO:
        """See `Store`. Reads ahead, so that a stream does not wait for each piece."""
        url = _url(location)
        if url.protocol not in OBJECT_STORES:
            opened = self._try(
                url, lambda: url.fs.open(url.path, "rb", block_size=READ_AHEAD_BYTES, cache_type="readahead")
            )
            return cast(BinaryIO, opened)
        name, size, version = self.stamp(location)

        def fetch(begin: int, end: int) -> bytes:
            data = self._try(url, lambda: _of_length(url.fs.cat_file(url.path, start=begin, end=end), end - begin))
            if self.stamp(location) != [name, size, version]:
                raise changed(url)
            return data

        return cast(BinaryIO, io.BufferedReader(ReadAhead(fetch, size), BUFFER_BYTES))

    @contextlib.contextmanager
    def create(self, location: Location, *, durable: bool = True) -> Iterator[BinaryIO]:
        """See `Store`."""
        draft = UnfinishedFile(_drafts())
        try:
            yield draft.file
            draft.file.flush()
            self._put(draft.name, _url(location))
        finally:
            draft.discard()

    def publish(self, file: Path, location: Location) -> None:
        """See `Store`."""
        self._put(file, _url(location))
        file.unlink(missing_ok=True)

    def _put(self, file: Path, url: UPath) -> None:
        if url.protocol in OBJECT_STORES:
            self._try(url, lambda: url.fs.put_file(str(file), url.path))
        else:
            unfinished = url.with_name(f".{url.name}.{uuid.uuid4().hex}{LEFTOVER_SUFFIX}")
            self._try(url, lambda: url.fs.makedirs(url.parent.path, exist_ok=True))
            try:
                self._try(url, lambda: url.fs.put_file(str(file), unfinished.path))
                self._try(url, lambda: url.fs.mv(unfinished.path, url.path))
            except BaseException:
                with contextlib.suppress(OSError):
                    url.fs.rm_file(unfinished.path)
                raise
        url.fs.invalidate_cache(url.parent.path)

    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and the entity tag or modification time, whichever the file system has."""
        found = self._info(location)
        return [location.name, found["size"], _version(found)]

    def size(self, location: Location) -> int:
        """See `Store`."""
        return int(self._info(location)["size"])

    def is_file(self, location: Location) -> bool:
        """See `Store`."""
        url = _url(location)
        url.fs.invalidate_cache(url.parent.path)
        return self._try(url, lambda: bool(url.fs.isfile(url.path)))

    def is_folder(self, location: Location) -> bool:
        """See `Store`."""
        url = _url(location)
        url.fs.invalidate_cache(url.path)
        return self._try(url, lambda: bool(url.fs.isdir(url.path)))

    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """See `Store`."""
        url = _url(folder)
        url.fs.invalidate_cache(url.path)
        try:
            found = self._try(url, lambda: url.fs.ls(url.path, detail=True))
        except FileNotFoundError:
            return []
        entries = {entry["name"].rstrip("/").rsplit("/", 1)[-1]: entry["type"] == "directory" for entry in found}
        # A prefix may be listed as an entry of itself.
        return [(url / name, is_folder) for name, is_folder in sorted(entries.items()) if name and name != url.name]

    def remove(self, location: Location) -> None:
        """See `Store`."""
        url = _url(location)
        with contextlib.suppress(FileNotFoundError):
            self._try(url, lambda: url.fs.rm_file(url.path))
        url.fs.invalidate_cache(url.parent.path)

    def remove_leftovers(self, folder: Location) -> None:
        """See `Store`."""
        for entry, is_folder in self.list_folder(folder):
            if not is_folder and entry.name.startswith(".") and entry.name.endswith(LEFTOVER_SUFFIX):
                self.remove(entry)
        with contextlib.suppress(PermissionError):  # another user's
            remove_leftovers_of(_drafts())

    def read_note(self, location: Location) -> Note:
        """See `Store`. Its age is by the clock of this machine."""
        url, found = _url(location), self._info(location)
        data = self._try(url, lambda: cast(bytes, url.fs.cat_file(url.path)))
        written = next((found[key] for key in _TIME_KEYS if found.get(key)), None)
        return Note(data, _version(found), max(0.0, time.time() - _seconds(written)))

    def create_note(self, location: Location, data: bytes) -> None:
        """See `Store`. Google's and Azure's stores decide between writers; of others it depends on the file system."""
        url = _url(location)
        if self.is_file(location):
            raise FileExistsError(errno.EEXIST, "it is there already", str(url))
        if url.protocol not in OBJECT_STORES:
            self._try(url, lambda: url.fs.makedirs(url.parent.path, exist_ok=True))
        self._try(url, lambda: url.fs.pipe_file(url.path, data, mode="create"))
        if self.read_note(location).data != data:
            raise FileExistsError(errno.EEXIST, "another writer was faster", str(url))

    def replace_note(self, location: Location, data: bytes, version: str) -> str:
        """See `Store`. Between the look at the version and the writing another writer may come."""
        url = _url(location)
        try:
            is_same = self.read_note(location).version == version
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise FileExistsError(errno.EEXIST, "another version is there", str(url))
        self._try(url, lambda: url.fs.pipe_file(url.path, data))
        found = self.read_note(location)
        if found.data != data:
            raise FileExistsError(errno.EEXIST, "another writer was faster", str(url))
        return found.version

    @staticmethod
    def _try(url: UPath, call: Callable[[], Value]) -> Value:
        return attempt(call, url=str(url), protocol=url.protocol)

    def _info(self, location: Location) -> dict[str, Any]:
        url = _url(location)
        url.fs.invalidate_cache(url.parent.path)
        return self._try(url, lambda: dict(url.fs.info(url.path)))


def changed(url: UPath) -> StorageError:
    """The error of a file that is not the one that was opened."""
    place = hide_credentials(str(url))
    return StorageError(f"{place} was changed while it was read: wait until it is finished, then run this again.")


def ended(url: UPath) -> StorageBusyError:
    """The error of an upload that is not there any more: its task is to be tried again."""
    place = hide_credentials(str(url))
    return StorageBusyError(
        f"the upload of {place} was ended as one of a killed command: run the same command again, it resumes."
    )


def _of_length(data: bytes, expected: int) -> bytes:
    if len(data) != expected:
        raise ConnectionError(f"{len(data)} bytes came of {expected}")
    return data


def _version(found: dict[str, Any]) -> str:
    return str(next((found[key] for key in _VERSION_KEYS if found.get(key) is not None), None))


def _seconds(written: Any) -> float:
    """A time of a file as seconds since 1970; now, where the file system does not say it."""
    if isinstance(written, str):
        with contextlib.suppress(ValueError):
            written = datetime.datetime.fromisoformat(written)
    if isinstance(written, datetime.datetime):
        return written.timestamp()
    return float(written) if isinstance(written, int | float) else time.time()


def _drafts() -> Path:
    """What the drafts of files to be put elsewhere are named after, in this machine's temporary folder."""
    return Path(tempfile.gettempdir()) / "webtext-upload"


def _url(location: Location) -> UPath:
    return cast("UPath", location)
