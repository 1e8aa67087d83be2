"""The interface of a storage system: opening files, creating them atomically, listing and removing them.

A location is a `pathlib.Path` for a local file, or a `UPath` (universal-pathlib), which has the same interface, for a
URL of an fsspec file system. Stages, formats and the job know only this interface; nothing else opens or writes a
shard.
"""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, TypeAlias

if TYPE_CHECKING:
    from upath import UPath

Location: TypeAlias = "Path | UPath"
"""A file or folder: a local path, or a URL of an fsspec file system."""


@dataclass(frozen=True)
class Note:
    """A small file as it was found, for what several writers agree on.

    Attributes:
        data: its bytes.
        version: changes with it, for `Store.replace`.
        age: seconds since it was written, by the clock of the storage where that tells the time.
    """

    data: bytes
    version: str
    age: float


class Store(abc.ABC):
    """One kind of storage. All methods raise OSError (FileNotFoundError, PermissionError, ...) as `open` does."""

    protocols: ClassVar[tuple[str, ...]] = ()
    """URL schemes that it serves, such as `s3`. A store that names none serves those that no other one names."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import: processes of an engine may be forked with them."""

    @abc.abstractmethod
    def open(self, location: Location) -> BinaryIO:
        """Open a file for reading bytes."""

    @abc.abstractmethod
    def create(self, location: Location, *, durable: bool = True) -> AbstractContextManager[BinaryIO]:
        """Open a file for writing bytes: it appears complete when the block ends well, and not at all when it raises.

        `durable` asks that it survives a power cut, which costs milliseconds per file. Missing folders are made.
        """

    @abc.abstractmethod
    def publish(self, file: Path, location: Location) -> None:
        """Move a finished local file to its final place, where it appears complete."""

    @abc.abstractmethod
    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and version (a modification time or an entity tag): changes when the file does."""

    @abc.abstractmethod
    def size(self, location: Location) -> int:
        """Bytes of a file."""

    @abc.abstractmethod
    def is_file(self, location: Location) -> bool:
        """Whether there is a file of that name."""

    @abc.abstractmethod
    def is_folder(self, location: Location) -> bool:
        """Whether there is a folder of that name; where folders are only prefixes, whether anything lies below it."""

    @abc.abstractmethod
    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """The entries of a folder by name, each with whether it is a folder; none if there is no such folder."""

    @abc.abstractmethod
    def remove(self, location: Location) -> None:
        """Remove a file, if it is there."""

    def remove_folder(self, folder: Location) -> None:
        """Remove a folder and all that lies below it, if it is there."""
        for entry, is_folder in self.list_folder(folder):
            if is_folder:
                self.remove_folder(entry)
            else:
                self.remove(entry)

    @abc.abstractmethod
    def remove_leftovers(self, folder: Location) -> None:
        """Remove temporary files that killed writers left in `folder`."""

    def read_note(self, location: Location) -> Note:
        """A small file with its version and age."""
        raise NotImplementedError

    def create_note(self, location: Location, data: bytes) -> None:
        """Write a small file that is not there yet. Raises FileExistsError if it is: of several writers one succeeds.

        A storage that can't decide that does what it can: two writers at the same moment may both succeed.
        """
        raise NotImplementedError

    def replace_note(self, location: Location, data: bytes, version: str) -> str:
        """Replace a small file, and return its new version. Raises FileExistsError if it has another version than
        `version`, and where it is gone.
        """
        raise NotImplementedError
