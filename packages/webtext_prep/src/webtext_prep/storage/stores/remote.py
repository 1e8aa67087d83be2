"""Files at URLs of any file system of fsspec's: `sftp://`, `hdfs://`, `https://`, `memory://` and the like.

A new file is put under a temporary name and then moved to its place, since some of them show half a file. Requests are
not made again here, but their tasks are.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from command_kit.atomic import LEFTOVER_SUFFIX
from webtext_prep.storage.locations import Location, Url
from webtext_prep.storage.requests import Value, ask
from webtext_prep.storage.stores.base import DraftStore, Note

READ_AHEAD_BYTES = 8 << 20
_VERSION_KEYS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
"""What tells versions of a file apart, best first: digests of the content stay when it is written again."""


class RemoteStore(DraftStore):
    """Every file system that fsspec supports."""

    def check(self, url: Url) -> None:
        """See `Store`."""
        import fsspec

        fsspec.get_filesystem_class(url.protocol)

    def open(self, location: Location) -> BinaryIO:
        """See `Store`."""
        options = {"block_size": READ_AHEAD_BYTES, "cache_type": "readahead"}
        return _ask(location, lambda fs, path: cast(BinaryIO, fs.open(path, "rb", **options)))

    def put(self, file: Path, location: Location) -> None:
        """See `DraftStore`."""
        draft = location.with_name(f".{location.name}.{uuid.uuid4().hex}{LEFTOVER_SUFFIX}")
        _ask(location.parent, lambda fs, path: fs.makedirs(path, exist_ok=True))
        try:
            _ask(draft, lambda fs, path: fs.put_file(str(file), path))
            _ask(location, lambda fs, path: fs.mv(_at(draft)[1], path))
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(draft)
            raise

    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and the entity tag or modification time, whichever the file system has."""
        found = _info(location)
        return [location.name, int(found["size"]), _version(found)]

    def is_file(self, location: Location) -> bool:
        """See `Store`."""
        return _ask(location, lambda fs, path: bool(fs.isfile(path)))

    def is_folder(self, location: Location) -> bool:
        """See `Store`."""
        return _ask(location, lambda fs, path: bool(fs.isdir(path)))

    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """See `Store`."""
        try:
            found = _ask(folder, lambda fs, path: cast(list[dict[str, Any]], fs.ls(path, detail=True)))
        except FileNotFoundError:
            return []
        entries = {entry["name"].rstrip("/").rsplit("/", 1)[-1]: entry["type"] == "directory" for entry in found}
        # A prefix may be listed as an entry of itself.
        return [(folder / name, entries[name]) for name in sorted(entries) if name and name != folder.name]

    def remove(self, location: Location) -> None:
        """See `Store`."""
        with contextlib.suppress(FileNotFoundError):
            _ask(location, lambda fs, path: fs.rm_file(path))

    def read_note(self, location: Location) -> Note:
        """See `Store`. Its age is by the clock of this machine."""
        found = _info(location)
        data = _ask(location, lambda fs, path: cast(bytes, fs.cat_file(path)))
        written = next((found[key] for key in _VERSION_KEYS[2:] if found.get(key)), time.time())
        seconds = written.timestamp() if isinstance(written, datetime.datetime) else float(written)
        return Note(data, _version(found), max(0.0, time.time() - seconds))

    def write_note(self, location: Location, data: bytes, version: str = "") -> None:
        """See `Store`. Between the look at the place and the writing another writer may come."""
        there = self.stamp(location)[2] if self.is_file(location) else ""
        if there != version:
            raise FileExistsError(errno.EEXIST, "another version is there", str(location))
        _ask(location.parent, lambda fs, path: fs.makedirs(path, exist_ok=True))
        _ask(location, lambda fs, path: fs.pipe_file(path, data))


def _at(location: Location) -> tuple[Any, str]:
    """The file system of a URL, and its name there."""
    import fsspec.core

    fs, path = fsspec.core.url_to_fs(str(location))
    return fs, path


def _ask(location: Location, call: Callable[[Any, str], Value]) -> Value:
    """What `call(file system, path)` returns, of files as they are now. Raises OSError."""

    def work() -> Value:
        fs, path = _at(location)
        fs.invalidate_cache()
        return call(fs, path)

    return ask(cast(Url, location), work)


def _info(location: Location) -> dict[str, Any]:
    return _ask(location, lambda fs, path: dict(fs.info(path)))


def _version(found: dict[str, Any]) -> str:
    return str(next((found[key] for key in _VERSION_KEYS if found.get(key) is not None), None))
