"""Local files, mounted file systems included.

What a stage writes is left alone where the same bytes are there already: it keeps its time of change, by which the
stages after know that they have nothing to do. Files are compared only where their sizes are equal.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import shutil
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

from command_kit import atomic_file
from command_kit.atomic import make_folder, remove_file, remove_leftovers, same_bytes, sync_folder
from webtext_prep.storage.locations import Location
from webtext_prep.storage.stores.base import Store

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
"""Where Linux says what `boot_id` gives."""


@functools.lru_cache(maxsize=1)
def boot_id() -> str:
    """What changes each time this machine starts: Linux and macOS say it.

    Elsewhere it is new in each process, so that no later process counts on files that were never flushed to the disk.
    """
    with contextlib.suppress(OSError):
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=10)
        if found := asked.stdout.strip():
            return found
    return secrets.token_hex(16)


class LocalStore(Store):
    """Plain files: written under a temporary name, flushed, and renamed."""

    protocols: ClassVar[tuple[str, ...]] = ("file", "local")

    def open(self, location: Location) -> BinaryIO:
        """See `Store`."""
        return _path(location).open("rb")

    def create(self, location: Location, *, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        """See `Store`."""
        return atomic_file(_path(location), durable=durable, keep_same=durable)

    def publish(self, file: Path, location: Location) -> None:
        """See `Store`. From another file system it is copied, as the state of an output may lie on one."""
        target = _path(location)
        make_folder(target.parent)
        try:
            if same_bytes(file, target):
                file.unlink()
            else:
                file.replace(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with file.open("rb") as source, atomic_file(target) as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            file.unlink()
        sync_folder(target.parent)

    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and modification time in nanoseconds."""
        status = _path(location).stat()
        return [location.name, status.st_size, status.st_mtime_ns]

    def is_file(self, location: Location) -> bool:
        """See `Store`."""
        return _path(location).is_file()

    def is_folder(self, location: Location) -> bool:
        """See `Store`."""
        return _path(location).is_dir()

    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """See `Store`."""
        # os.scandir knows most kinds without asking for each: a folder may hold a million files.
        try:
            with os.scandir(_path(folder)) as entries:
                kinds = {
                    entry.name: Path(entry).is_dir() if entry.is_symlink() else entry.is_dir() for entry in entries
                }
        except FileNotFoundError:
            return []
        return [(folder / name, kinds[name]) for name in sorted(kinds)]

    def remove(self, location: Location) -> None:
        """See `Store`."""
        remove_file(_path(location))

    def remove_folder(self, folder: Location) -> None:
        """See `Store`."""
        shutil.rmtree(_path(folder), ignore_errors=True)

    def remove_leftovers(self, folder: Location) -> None:
        """See `Store`."""
        if _path(folder).is_dir():
            remove_leftovers(_path(folder))


def _path(location: Location) -> Path:
    return cast(Path, location)
