"""Reading files at URLs of any file system of fsspec's: `https://`, `sftp://`, `hdfs://`, `memory://` and the like.

fsspec answers `isfile` and `isdir` with no when a request fails. So these ask `info`, which raises, and an error 503
that some file systems hide behind a FileNotFoundError is found in its cause (`storage/requests.py`).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar, cast

from command_kit import hide_credentials
from webtext_prep.errors import StorageError
from webtext_prep.storage.locations import Location, Url
from webtext_prep.storage.requests import Value, ask, explained
from webtext_prep.storage.stores.base import Store

READ_AHEAD_BYTES = 8 << 20
_VERSION_KEYS = (
    "ETag",
    "etag",
    "blob_id",
    "mtime",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "updated",
    "created",
)
"""What tells versions of a file apart, best first: digests of the content stay when it is written again."""


class ReadOnlyStore(Store):
    """Every file system that fsspec supports."""

    is_read_only: ClassVar[bool] = True

    def check(self, url: Url) -> None:
        """See `Store`."""
        import fsspec

        fsspec.get_filesystem_class(url.protocol)

    def open(self, location: Location) -> BinaryIO:
        """See `Store`."""
        options = {"block_size": READ_AHEAD_BYTES, "cache_type": "readahead"}
        return cast(
            BinaryIO, io.BufferedReader(_File(location, _ask(location, lambda fs, path: fs.open(path, **options))))
        )

    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and the entity tag or modification time, whichever the file system has."""
        found = _info(location)
        if found["size"] is None:
            raise StorageError(
                f"{hide_credentials(str(location))} does not say its size: copy it to this machine first."
            )
        version = next((found[key] for key in _VERSION_KEYS if found.get(key) is not None), None)
        return [location.name, int(found["size"]), str(version)]

    def is_file(self, location: Location) -> bool:
        """See `Store`."""
        with contextlib.suppress(FileNotFoundError):
            return bool(_info(location)["type"] == "file")
        return False

    def is_folder(self, location: Location) -> bool:
        """See `Store`. On the web, a page with links to what lies below it."""
        with contextlib.suppress(FileNotFoundError):
            found = _info(location)
            return found["type"] == "directory" or (
                found.get("mimetype") == "text/html" and bool(self.list_folder(location))
            )
        return False

    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """See `Store`."""
        try:
            found = _ask(folder, lambda fs, path: cast(list[dict[str, Any]], fs.ls(path, detail=True)))
        except FileNotFoundError:
            return []
        entries = {entry["name"].rstrip("/").rsplit("/", 1)[-1]: entry["type"] == "directory" for entry in found}
        # A prefix may be listed as an entry of itself.
        return [(folder / name, entries[name]) for name in sorted(entries) if name and name != folder.name]


class _File(io.RawIOBase):
    """An open file, whose errors are those of other requests; a server that sends no parts of files is named."""

    def __init__(self, location: Location, file: Any) -> None:
        self._location, self._file = location, file

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.RawIOBase`."""
        return self._asked(lambda: int(self._file.seek(offset, whence)))

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        data = self._asked(lambda: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def _asked(self, call: Callable[[], Value]) -> Value:
        try:
            return call()
        except ValueError as error:
            raise StorageError(
                f"{hide_credentials(str(self._location))} can only be read from its beginning, since its server sends "
                "no parts of it: copy it to this machine first."
            ) from error
        except Exception as error:
            raise explained(error, cast(Url, self._location)) from error


def _ask(location: Location, call: Callable[[Any, str], Value]) -> Value:
    """What `call(file system, path)` returns, of files as they are now. Raises OSError."""
    import fsspec.core

    def work() -> Value:
        fs, path = fsspec.core.url_to_fs(str(location))
        fs.invalidate_cache()
        return call(fs, path)

    return ask(cast(Url, location), work)


def _info(location: Location) -> dict[str, Any]:
    return _ask(location, lambda fs, path: dict(fs.info(path)))
