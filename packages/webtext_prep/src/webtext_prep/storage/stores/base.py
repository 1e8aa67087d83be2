"""The interface of a storage system: opening files, creating them atomically, listing and removing them.

Stages, formats and the job know only this interface; nothing else opens or writes a shard.
"""

from __future__ import annotations

import abc
import importlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from webtext_prep.storage.locations import Location, Url


@dataclass(frozen=True)
class Note:
    """A small file as it was found, for what several writers agree on.

    Attributes:
        data: its bytes.
        version: changes with it, for `Store.write_note`.
        age: seconds since it was written, by the clock of the storage where that tells the time.
    """

    data: bytes
    version: str
    age: float


class Store(abc.ABC):
    """One kind of storage. All methods raise OSError (FileNotFoundError, PermissionError, ...) as `open` does.

    A request that fails is never taken for an answer: a file is not there only where the storage says so.
    """

    protocols: ClassVar[tuple[str, ...]] = ()
    """URL schemes that it serves, such as `s3`. A store that names none serves all schemes that no other one names."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import: processes of an engine may be forked with them."""
    is_read_only: ClassVar[bool] = False
    """Whether files can only be read there; such a store has none of the methods for writing."""

    def check(self, url: Url) -> None:
        """Raise ImportError or ValueError where a URL can't be served here: a package for it is missing."""
        for name in self.preload:
            importlib.import_module(name)

    @abc.abstractmethod
    def open(self, location: Location) -> BinaryIO:
        """Open a file for reading bytes."""

    @abc.abstractmethod
    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and version (a modification time or an entity tag): changes when the file does."""

    @abc.abstractmethod
    def is_file(self, location: Location) -> bool:
        """Whether there is a file of that name."""

    @abc.abstractmethod
    def is_folder(self, location: Location) -> bool:
        """Whether there is a folder of that name; where folders are only prefixes, whether anything lies below it."""

    @abc.abstractmethod
    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """The entries of a folder by name, each with whether it is a folder; none if there is no such folder."""

    # Writing

    def create(self, location: Location, *, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        """Open a file for writing bytes: it appears complete when the block ends well, and not at all when it raises.

        `durable` asks that it survives a power cut, which costs milliseconds per file. Missing folders are made.
        """
        raise NotImplementedError

    def publish(self, file: Path, location: Location) -> None:
        """Move a finished local file to its final place, where it appears complete."""
        raise NotImplementedError

    def remove(self, location: Location) -> None:
        """Remove a file, if it is there."""
        raise NotImplementedError

    def remove_folder(self, folder: Location) -> None:
        """Remove a folder and all that lies below it, if it is there."""
        for entry, is_folder in self.list_folder(folder):
            if is_folder:
                self.remove_folder(entry)
            else:
                self.remove(entry)

    def remove_leftovers(self, folder: Location) -> None:
        """Remove temporary files that killed writers left in `folder`."""
        raise NotImplementedError

    def read_note(self, location: Location) -> Note:
        """A small file with its version and age."""
        raise NotImplementedError

    def write_note(self, location: Location, data: bytes, version: str = "") -> None:
        """Write a small file on a condition. Raises FileExistsError if that does not hold.

        The condition is that the file has this version, or, without one, that it is not there yet. A storage that
        can't decide between writers does what it can: two of them at the same moment may both succeed. An answer that
        was lost may have FileExistsError raised, though this writer has written it.
        """
        raise NotImplementedError
