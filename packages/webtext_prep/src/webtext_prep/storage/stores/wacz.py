"""Files inside WACZ files (https://specs.webrecorder.net/wacz/1.1.1/), read where these lie, without unpacking to disk.

    wacz::s3://bucket/crawl.wacz!/archive/data.warc.gz

A WACZ file is a zip file; `!` ends its name. One of several crawls holds further ones, not compressed, and the URL of a
file in these has two such parts. Of a zip file the list of its members is held, of at most 4 MiB, and what is read of a
member. What is unfit to be read (encrypted, outside of the package, far larger than what it was packed from) is not
there, and `Package.refused` says why.
"""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, ClassVar, cast

from command_kit import hide_credentials
from webtext_prep import storage
from webtext_prep.errors import DamagedFileError
from webtext_prep.storage.locations import Location, Url
from webtext_prep.storage.stores.base import Store

SCHEME = "wacz"
SUFFIX = f".{SCHEME}"
MAX_DIRECTORY = 4 << 20
"""Bytes of a zip file's list of members: some 40,000 names."""
BUFFER_BYTES = 1 << 16
MAX_GROWTH = 200
"""Times the packed bytes of a member that it may have unpacked: pages reach 20, zeros 1,032."""
_ENCRYPTED = 1
_LOCAL_HEADER = struct.Struct("<26xHH")
_DAMAGES = (zipfile.BadZipFile, struct.error, NotImplementedError, OverflowError, UnicodeError, ValueError)


@dataclass(frozen=True)
class Package:
    """What a WACZ file holds.

    Attributes:
        members: the files in it that can be read, by name.
        refused: the names of the others, by the reason.
    """

    members: dict[str, zipfile.ZipInfo]
    refused: dict[str, list[str]]


def is_wacz(place: Location) -> bool:
    """Whether the name is that of a WACZ file."""
    return place.suffix.lower() == SUFFIX


def inside(package: Location, name: str) -> Url:
    """The location of a file in a WACZ file."""
    outer = package if isinstance(package, Url) else Url("file", PurePosixPath(package.absolute()))
    scheme = outer.scheme if outer.protocol == SCHEME else f"{SCHEME}::{outer.scheme}"
    return Url(scheme, outer.path.with_name(f"{outer.name}!") / name)


def split(place: Url) -> tuple[Location, str]:
    """The WACZ file in which a location lies, and its name in there. Raises FileNotFoundError if it lies in none."""
    ends = [at for at, part in enumerate(place.parts) if part.lower().endswith(f"{SUFFIX}!")]
    if not ends:
        raise FileNotFoundError(f"{place} names no file in a WACZ file")
    path = PurePosixPath(*place.parts[: ends[-1]], place.parts[ends[-1]][:-1])
    scheme = place.scheme if len(ends) > 1 else place.scheme.partition("::")[2]
    return storage.location(str(Url(scheme, path))), "/".join(place.parts[ends[-1] + 1 :])


def read_package(package: Location) -> Package:
    """What a WACZ file holds. Raises DamagedFileError where that can't be told, and OSError as `storage` does."""
    try:
        return _read_package(package, str(storage.stamp(package)))
    except _DAMAGES as error:
        raise DamagedFileError(
            f"{hide_credentials(str(package))} can't be read as a zip file ({error}): fetch it again."
        ) from error


@functools.lru_cache(maxsize=64)
def _read_package(package: Location, version: str) -> Package:
    with storage.open_for_reading(package) as file:
        size = file.seek(0, io.SEEK_END)
        with zipfile.ZipFile(cast(BinaryIO, _SmallReads(file))) as opened:
            entries = opened.infolist()
    if sum(entry.compress_size for entry in entries) > size:
        raise zipfile.BadZipFile("its members lie over each other")
    found = Package({}, {})
    for entry in entries:
        if entry.is_dir():
            continue
        reason = _reason_against(entry, found)
        if reason:
            found.refused.setdefault(reason, []).append(entry.filename)
        else:
            found.members[entry.filename] = entry
    return found


def _reason_against(entry: zipfile.ZipInfo, found: Package) -> str:
    """Why a member is not read, as the end of a sentence; empty for one that is."""
    path = PurePosixPath(entry.filename)
    if (
        str(path) != entry.filename
        or path.is_absolute()
        or ".." in path.parts
        or f"{SUFFIX}!" in entry.filename.lower()
    ):
        return "names a place outside of it"
    if entry.filename in found.members:
        return "is there twice, and the first one was read"
    if entry.flag_bits & _ENCRYPTED:
        return "is encrypted: decrypt it first"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {entry.compress_type}: only deflate is read"
    if entry.compress_type == zipfile.ZIP_DEFLATED and entry.file_size > MAX_GROWTH * entry.compress_size:
        return f"unpacks to over {MAX_GROWTH} times its size, as no archive does"
    return ""


class _SmallReads:
    """A file of which `zipfile` reads no longer list of members than `MAX_DIRECTORY`."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int = -1) -> bytes:
        """See `BinaryIO.read`."""
        if size > MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"its list of members has {size:,} bytes, more than any package")
        return self._read(size)


class WaczStore(Store):
    """The files in WACZ files, wherever these lie. Folders are none."""

    protocols: ClassVar[tuple[str, ...]] = (SCHEME,)
    is_read_only: ClassVar[bool] = True

    def open(self, location: Location) -> BinaryIO:
        """See `Store`."""
        package, entry = _find(location)
        file = storage.open_for_reading(package)
        try:
            begin = _begin_of(file, entry)
            if entry.compress_type == zipfile.ZIP_DEFLATED:
                file, begin = cast(BinaryIO, zipfile.ZipFile(file).open(entry)), 0  # noqa: SIM115 - `_Part` closes it
        except _DAMAGES:
            file.close()
            return io.BytesIO()  # as a file of which nothing is left
        return io.BufferedReader(_Part(file, begin, entry.file_size), BUFFER_BYTES)

    def stamp(self, location: Location) -> list[Any]:
        """Name, size in bytes, and the size and version of the WACZ file."""
        package, entry = _find(location)
        return [location.name, entry.file_size, str(storage.stamp(package)[1:])]

    def is_file(self, location: Location) -> bool:
        """See `Store`."""
        with contextlib.suppress(FileNotFoundError):
            return bool(_find(location))
        return False

    def is_folder(self, location: Location) -> bool:
        """See `Store`."""
        return False

    def list_folder(self, folder: Location) -> list[tuple[Location, bool]]:
        """See `Store`."""
        return []


def _find(place: Location) -> tuple[Location, zipfile.ZipInfo]:
    package, name = split(cast(Url, place))
    entry = read_package(package).members.get(name)
    if entry is None:
        raise FileNotFoundError(f"no file {place}")
    return package, entry


def _begin_of(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin, behind its header. Raises an error of `_DAMAGES`."""
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    return entry.header_offset + len(header) + sum(_LOCAL_HEADER.unpack(header))


class _Part(io.RawIOBase):
    """A part of a file, as a file that ends where it is damaged. A place in it is gone to when something is read."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.RawIOBase`."""
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        most = min(len(buffer), max(0, self._size - self._at))
        try:
            self._file.seek(self._begin + self._at)
            data = self._file.read(most)
        except (*_DAMAGES, EOFError, zlib.error):
            return 0
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        """See `io.RawIOBase`."""
        if not self.closed:
            self._file.close()
        super().close()
