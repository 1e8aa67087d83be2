"""Files behind a URL of any fsspec file system: object stores, `memory://`, `sftp://` and the like.

A new file is first written to this machine's temporary folder (TMPDIR) and then put in its place in one go: nothing
is visible before it is whole, whatever the file system makes of a writer that dies, and a failed transfer can be tried
again. Object stores show an object only when all of it is there; elsewhere it is put under a temporary name and moved.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from command_kit.atomic import LEFTOVER_SUFFIX, UnfinishedFile, remove_leftovers_of
from webtext_prep.documents.stores.base import Location, Store

if TYPE_CHECKING:
    from upath import UPath

PUT_IS_ATOMIC = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "memory"})
"""Protocols under which an object that is being put is not visible before all of it is there."""
READ_AHEAD_BYTES = 8 << 20
_VERSION_KEYS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")


class RemoteStore(Store):
    """Every file system that fsspec supports."""

    def open(self, location: Location) -> BinaryIO:
        """See `Store`. Reads ahead, so that a stream does not wait for each piece."""
        url = _url(location)
        return cast(BinaryIO, url.fs.open(url.path, "rb", block_size=READ_AHEAD_BYTES, cache_type="readahead"))

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

    @staticmethod
    def _put(file: Path, url: UPath) -> None:
        if url.protocol in PUT_IS_ATOMIC:
            url.fs.put_file(str(file), url.path)
        else:
            unfinished = url.with_name(f".{url.name}.{uuid.uuid4().hex}{LEFTOVER_SUFFIX}")
            url.fs.makedirs(url.parent.path, exist_ok=True)
            try:
                url.fs.put_file(str(file), unfinished.path)
                url.fs.mv(unfinished.path, url.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    url.fs.rm_file(unfinished.path)
                raise
        url.fs.invalidate_cache(url.parent.path)

    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and the entity tag or modification time, whichever the file system has."""
        found = self._info(location)
        version = next((found[key] for key in _VERSION_KEYS if found.get(key) is not None), None)
        return [location.name, found["size"], str(version)]

    def size(self, location: Location) -> int:
        """See `Store`."""
        return int(self._info(location)["size"])

    def is_file(self, location: Location) -> bool:
        """See `Store`."""
        url = _url(location)
        url.fs.invalidate_cache(url.parent.path)
        return bool(url.fs.isfile(url.path))

    def is_folder(self, location: Location) -> bool:
        """See `Store`."""
        url = _url(location)
        url.fs.invalidate_cache(url.path)
        return bool(url.fs.isdir(url.path))

    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """See `Store`."""
        url = _url(folder)
        url.fs.invalidate_cache(url.path)
        try:
            found = url.fs.ls(url.path, detail=True)
        except FileNotFoundError:
            return []
        entries = {entry["name"].rstrip("/").rsplit("/", 1)[-1]: entry["type"] == "directory" for entry in found}
        # A prefix may be listed as an entry of itself.
        return [(url / name, is_folder) for name, is_folder in sorted(entries.items()) if name and name != url.name]

    def remove(self, location: Location) -> None:
        """See `Store`."""
        url = _url(location)
        with contextlib.suppress(FileNotFoundError):
            url.fs.rm_file(url.path)
        url.fs.invalidate_cache(url.parent.path)

    def remove_leftovers(self, folder: Location) -> None:
        """See `Store`."""
        for entry, is_folder in self.list_folder(folder):
            if not is_folder and entry.name.startswith(".") and entry.name.endswith(LEFTOVER_SUFFIX):
                self.remove(entry)
        with contextlib.suppress(PermissionError):  # another user's
            remove_leftovers_of(_drafts())

    @staticmethod
    def _info(location: Location) -> dict[str, Any]:
        url = _url(location)
        url.fs.invalidate_cache(url.parent.path)
        return dict(url.fs.info(url.path))


def _drafts() -> Path:
    """What the drafts of files to be put elsewhere are named after, in this machine's temporary folder."""
    return Path(tempfile.gettempdir()) / "webtext-upload"


def _url(location: Location) -> UPath:
    return cast("UPath", location)
