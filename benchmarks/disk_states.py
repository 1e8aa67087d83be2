"""What a disk may hold after a power cut: from a record of what programs did to a folder, the folder as found then.

A record is a list of changes in the order in which they took effect. What a flush (fsync) covers is on the disk; of the
rest each file system may have written some. The file systems differ in three things:

    is_ordered       names change on the disk in their order, as in a journal: ext4, XFS
    flushes_names    flushing any file also writes all changes of names before it: ext4; XFS writes those before the
                     last change of the flushed file itself
    keeps_replaced   renaming over an older file writes the data first: ext4 with auto_da_alloc, its default
    has_zeros        a file may have its length and not its data: no journal orders these

The unordered one keeps nothing but what was flushed, file by file and folder by folder: all that POSIX promises. A
network file system whose server writes names at once keeps more than that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

PAGE = 4096
"""Bytes that reach the disk together."""
PLAIN = ("nothing", "everything", "data", "zeros")
"""What is lost of what was not flushed: nothing; all; the data but no names; the data, with zeros for them."""
ROOT = 0
"""The number of the folder that was watched."""
_HEAD = struct.Struct("<6Q")


@dataclass(frozen=True)
class Names:
    """Entries of folders that change at once: by the number of the folder and the name, what is there then."""

    entries: tuple[tuple[int, str, int | None], ...]
    replaces: bool = False

    @property
    def numbers(self) -> set[int]:
        """The folders, and what is in them now."""
        return {number for folder, _, found in self.entries for number in (folder, found) if number is not None}


@dataclass(frozen=True)
class Data:
    """Bytes written to a file; `data` is None where it gets another size, which is `offset`."""

    number: int
    offset: int
    data: bytes | None
    time: int = 0


@dataclass(frozen=True)
class Flush:
    """A file or folder flushed to the disk."""

    number: int


@dataclass(frozen=True)
class Said:
    """Text that a program wrote to standard output or error."""

    text: str


Change = Names | Data | Flush | Said


@dataclass
class Record:
    """What programs did to one folder, which was empty before.

    Attributes:
        changes: in their order.
        folders: the numbers of folders; all others are of files.
    """

    changes: list[Change] = field(default_factory=list)
    folders: set[int] = field(default_factory=lambda: {ROOT})
    _live: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})

    def _place(self, path: str) -> tuple[int, str]:
        *above, name = path.strip("/").split("/")
        number = ROOT
        for part in above:
            number = self._live[number][part]
        return number, name

    def paths(self) -> dict[str, int]:
        """The paths that there are now, and the number of what is at each."""
        return dict(Disk(self._live, {}, {}, self.folders).walk())

    def _change(self, *entries: tuple[int, str, int | None], replaces: bool = False) -> None:
        for folder, name, found in entries:
            if found is None:
                self._live[folder].pop(name, None)
            else:
                self._live[folder][name] = found
        self.changes.append(Names(entries, replaces))

    def add(self, path: str, number: int, *, is_folder: bool = False) -> None:
        """Something new, or a second name of something, at a path."""
        if is_folder:
            self.folders.add(number)
            self._live[number] = {}
        self._change((*self._place(path), number))

    def rename(self, old: str, new: str) -> None:
        """A new name."""
        source, target = self._place(old), self._place(new)
        number, replaced = self._live[source[0]][source[1]], self._live[target[0]].get(target[1])
        if number != replaced:  # two names of one file: nothing happens
            self._change((*source, None), (*target, number), replaces=replaced is not None)

    def remove(self, path: str) -> None:
        """A name less."""
        self._change((*self._place(path), None))


def read_log(log: Path, below: Path) -> Record:
    """The record in a log of `recorder.c`. Raises ValueError where it holds what the recorder could not see."""
    record, numbers = Record(), {below.stat().st_ino: ROOT}
    content, at, fresh = log.read_bytes(), 0, ROOT
    while at < len(content):
        kind, inode, time, offset, one, two = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        first, second = content[at : at + one], content[at + one : at + one + two]
        at += one + two
        number = numbers.get(inode)
        path, other = (os.path.normpath(os.fsdecode(text)).removeprefix(str(below)) for text in (first, second))
        match chr(kind):
            case "c" | "m":
                fresh += 1
                numbers[inode] = fresh
                record.add(path, fresh, is_folder=chr(kind) == "m")
            case "l":
                record.add(other, numbers[inode])
            case "r":
                record.rename(path, other)
            case "u":
                record.remove(path)
            case "w" | "t" if number is not None:  # else it has no name, and never will
                record.changes.append(Data(number, offset, first if chr(kind) == "w" else None, time))
            case "s" if number is not None:
                record.changes.append(Flush(number))
            case "o":
                record.changes.append(Said(first.decode("utf-8", "replace")))
            case "?":
                raise ValueError(f"the recorder could not read what was written (record {len(record.changes)})")
    return record


@dataclass(frozen=True)
class FileSystem:
    """How a file system orders what it writes; see the top of the module."""

    name: str
    is_ordered: bool = True
    flushes_names: bool = False
    keeps_replaced: bool = False
    has_zeros: bool = False

    @property
    def losses(self) -> list[str]:
        """The plain ones that there are."""
        return [loss for loss in PLAIN if loss != "zeros" or self.has_zeros]


FILE_SYSTEMS = (
    FileSystem("ext4", flushes_names=True, keeps_replaced=True),
    FileSystem("ext4, noauto_da_alloc", flushes_names=True),
    FileSystem("XFS"),
    FileSystem("unordered", is_ordered=False, has_zeros=True),
)


@dataclass
class Disk:
    """What is on a disk: folders' entries and files' bytes by number, with the time of each file's last write."""

    entries: dict[int, dict[str, int]]
    files: dict[int, bytes]
    times: dict[int, int]
    folders: set[int]

    def walk(self, folder: int = ROOT, path: str = "") -> Iterator[tuple[str, int]]:
        """Every path below the root, folders before what is in them."""
        for name, number in sorted(self.entries.get(folder, {}).items()):
            yield f"{path}{name}", number
            if number in self.folders:
                yield from self.walk(number, f"{path}{name}/")

    @property
    def digest(self) -> str:
        """What identifies it."""
        state = hashlib.sha256()
        for path, number in self.walk():
            content = b"" if number in self.folders else self.files.get(number, b"")
            state.update(b"%d %d %s %s" % (number in self.folders, len(content), path.encode(), content))
        return state.hexdigest()

    def write(self, place: Path) -> None:
        """Make the folder `place` hold it, and nothing else."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        first: dict[int, Path] = {}
        for path, number in self.walk():
            target = place / path
            if number in self.folders:
                target.mkdir()
            elif number in first:
                target.hardlink_to(first[number])
            else:
                target.write_bytes(self.files.get(number, b""))
                if time := self.times.get(number, 0):
                    os.utime(target, ns=(time, time))
                first[number] = target


def disk_after(record: Record, cut: int, system: FileSystem, loss: str) -> Disk:
    """What a disk may hold after a cut that came behind the first `cut` changes.

    `loss` is one of `FileSystem.losses`, or any other word, which chooses by chance what of the rest is on the disk.
    """
    done, chance = record.changes[:cut], None if loss in PLAIN else Random(f"{cut} {system.name} {loss}")
    flushed = {change.number: at for at, change in enumerate(done) if isinstance(change, Flush)}
    names = list(_kept_names(done, flushed, system, loss, chance))
    last = max(names, default=-1)
    entries: dict[int, dict[str, int]] = {}
    safe = dict(flushed)
    for at in names:
        change = done[at]
        assert isinstance(change, Names)
        for folder, name, number in change.entries:
            if number is None:
                entries.setdefault(folder, {}).pop(name, None)
                continue
            entries.setdefault(folder, {})[name] = number
            if change.replaces and system.keeps_replaced:
                safe[number] = max(safe.get(number, -1), at)
    changes: dict[int, list[tuple[int, Data]]] = {}
    for at, change in enumerate(done):
        if isinstance(change, Data):
            changes.setdefault(change.number, []).append((at, change))
    disk = Disk(entries, {}, {}, record.folders)
    for number, its in changes.items():
        end = safe.get(number, -1)
        kept = [change for at, change in its if at < end]
        content = _applied(b"", kept)
        rest = [change for at, change in its if at >= end]
        if system.is_ordered:
            rest = [change for at, change in its if at >= end and (change.data is not None or at <= last)]
        disk.files[number] = _with_some(content, rest, system, loss, chance)
        disk.times[number] = (kept or [Data(number, 0, b"")])[-1].time
    return disk


def _kept_names(
    done: Sequence[Change], flushed: dict[int, int], system: FileSystem, loss: str, chance: Random | None
) -> Iterator[int]:
    """The changes of names that are on the disk."""
    found = [(at, change) for at, change in enumerate(done) if isinstance(change, Names)]
    if system.is_ordered:
        if system.flushes_names:
            least = max(flushed.values(), default=-1)
        else:
            touched = ((at, number) for at, change in found for number in change.numbers)
            least = max((at for at, number in touched if at < flushed.get(number, -1)), default=-1)
        most = {"everything": least}.get(loss, len(done))
        if chance is not None:
            most = chance.randint(least, len(done))
        yield from (at for at, _ in found if at <= most)
        return
    share = chance.choice((0.1, 0.5, 0.9)) if chance is not None else 0.0
    for at, change in found:
        is_flushed = any(flushed.get(folder, -1) > at for folder, _, _ in change.entries)
        is_lucky = chance.random() < share if chance is not None else loss != "everything"
        if is_flushed or is_lucky:
            yield at


def _applied(content: bytes, changes: Sequence[Data]) -> bytes:
    found = bytearray(content)
    for change in changes:
        if change.data is None:
            del found[change.offset :]
        found += b"\0" * (change.offset - len(found))
        if change.data is not None:
            found[change.offset : change.offset + len(change.data)] = change.data
    return bytes(found)


def _with_some(before: bytes, rest: Sequence[Data], system: FileSystem, loss: str, chance: Random | None) -> bytes:
    """A file's bytes, of whose changes since its flush some are on the disk."""
    sizes = [change for change in rest if change.data is None]
    after = _applied(before, rest)
    way = loss if chance is None else chance.choice((*PLAIN, "beginning", "pages"))
    if way == "nothing" or not rest:
        return after
    if way == "everything":
        return before
    if way == "data":
        return _applied(before, sizes)
    if way == "beginning":
        assert chance is not None
        return _applied(before, rest[: chance.randint(0, len(rest))])
    base = _applied(before, sizes).ljust(len(after), b"\0")[: len(after)]
    if way == "zeros" and system.has_zeros:
        return base
    found, is_whole = bytearray(), True
    for at in range(0, len(after), PAGE):
        is_there = chance is not None and chance.random() < 0.5
        if not is_there and at >= len(before):
            is_whole = False
        # The length grows when the data are there: behind a lost page there is nothing.
        if not is_whole and not system.has_zeros:
            break
        found += (after if is_there else base)[at : at + PAGE]
    return bytes(found)
