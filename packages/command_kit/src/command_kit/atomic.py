"""Files and folders that appear under their final name complete, or not at all.

A file is written next to its final place under a hidden temporary name, flushed to the disk, and renamed: a crash, a
full disk or `kill -9` leaves the old file or none, never half of a new one. Each attempt has a temporary name of its
own, so that two processes at work on one file never write into each other's. An attempt holds a lock (flock) on what it
writes: `remove_leftovers` removes what killed processes left behind, and leaves alone what a living one writes.

What is done here is on the disk when the call returns: a file is flushed (fsync) before it gets its name, and then the
folder with the name, as after a removal or a new folder. So a power cut finds what a kill does, also on a file system
that keeps no order of its own. Flushing costs some milliseconds a file; `durable=False` leaves it out, for
scratch files that a power cut may take.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import filecmp
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from command_kit.errors import parse_json

LEFTOVER_SUFFIX = ".unfinished"
"""The end of the temporary name of an unfinished file or folder; such a name also starts with a dot."""


ATTEMPTS = 100
"""Attempts at a new temporary name, which another process that clears leftovers may take away."""


def temporary_name(path: Path) -> Path:
    """A temporary name for `path`, in the same folder, that is always the same.

    For what several processes write together and agree on; `atomic_file` and `atomic_folder` use names of their own.
    """
    return path.with_name(f".{path.name}{LEFTOVER_SUFFIX}")


def _new_name(path: Path) -> Path:
    """A temporary name for `path` that no other attempt has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{LEFTOVER_SUFFIX}")


def _sync(path: Path) -> None:
    """Flush what a file holds, or a folder's entries. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power cut (a no-op where unsupported)."""
    with contextlib.suppress(OSError):
        _sync(folder)


def sync_file(path: Path) -> None:
    """Flush a file that is written and closed to the disk, and its name. Raises OSError."""
    _sync(path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each flushed into the one that it is in; does nothing if it is there.

    Raises OSError as `Path.mkdir` does.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def remove_file(path: Path) -> None:
    """Remove a file for good: it does not come back after a power cut, beside what was written after it.

    Does nothing where there is none. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


def _create(unfinished: Path) -> BinaryIO:
    return unfinished.open("xb")


class WriteOnly:
    """A file that has nothing but `write`, for `numpy.save`.

    To a real file numpy writes by itself, and what it raises on a full disk has no `errno`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write


class UnfinishedFile:
    """One attempt to write a file: `file` is open for writing, and becomes `path` by `commit`.

    What `atomic_file` is made of; by itself for a writer that fills several files and lets them appear together.
    Creates missing parent folders.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        make_folder(self.path.parent)
        for _ in range(ATTEMPTS):
            self.name = _new_name(self.path)
            self.file = _create(self.name)
            # Between creation and lock it looked left behind, and may have been removed.
            if _lock(self.file.fileno()) and os.fstat(self.file.fileno()).st_nlink:
                break
            self.discard()
        else:
            raise OSError(errno.EAGAIN, "another process removes what is written here", str(self.path))

    def sync(self) -> None:
        """Flush what was written to the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def commit(self, *, durable: bool = True, keep_same: bool = False) -> None:
        """Close the file and give it its final name. With `durable` it is on the disk before, and its name after.

        With `keep_same` an older file with the same bytes is left as it is, its time of change included.
        """
        self.file.flush()
        if keep_same and same_bytes(self.name, self.path):
            self.discard()
        else:
            if durable:
                self.sync()
            # Renamed before it is closed: closing gives up the lock.
            self.name.replace(self.path)
            self.file.close()
        # Also of a file that was there: who gave it that name may have been killed before this.
        if durable:
            sync_folder(self.path.parent)

    def discard(self) -> None:
        """Close and remove it; does nothing after `commit`."""
        # Closing writes what is still in the buffer, which fails once more where the disk is full.
        with contextlib.suppress(OSError):
            self.file.close()
        self.name.unlink(missing_ok=True)


def same_bytes(one: Path, other: Path) -> bool:
    """Whether both are files with the same bytes; they are read only where they are of one size."""
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


@contextlib.contextmanager
def atomic_file(path: str | Path, *, durable: bool = True, keep_same: bool = False) -> Iterator[BinaryIO]:
    """Open `path` for writing bytes; it appears when the block ends well and is untouched when the block raises.

    Creates missing parent folders. Raises OSError as writing does (a full disk, no permission).

    Args:
        path: the file.
        durable: flush it to the disk first, so that a power cut finds the old file or all of the new one.
        keep_same: leave an older file with the same bytes as it is, its time of change included.
    """
    unfinished = UnfinishedFile(path)
    try:
        yield unfinished.file
        unfinished.commit(durable=durable, keep_same=keep_same)
    finally:
        unfinished.discard()


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A fresh folder to fill; it is renamed to `path` when the block ends well, removed when the block raises.

    An older folder of that name is replaced: a crash at any moment leaves one of them whole, under this name or, for
    the moment between two renames, under none; where overlayfs refuses to rename it, it is removed in
    place. Files in it must be closed by the end of the block, and are flushed then. What killed processes left of the
    same folder is removed.
    """
    path = Path(path)
    make_folder(path.parent)
    remove_leftovers_of(path)
    unfinished, descriptor = _new_folder(path)
    aside = _new_name(path)
    try:
        yield unfinished
        for entry in (unfinished, *unfinished.rglob("*")):
            (sync_folder if entry.is_dir() else _sync)(entry)
        _replace_folder(unfinished, path, aside)
        sync_folder(path.parent)
    finally:
        os.close(descriptor)
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def _new_folder(path: Path) -> tuple[Path, int]:
    """A new folder under a temporary name for `path`, and the descriptor that holds its lock."""
    for _ in range(ATTEMPTS):
        unfinished = _new_name(path)
        unfinished.mkdir()
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(unfinished, os.O_RDONLY)
            # As with a file: it may have been removed before it was locked.
            if _lock(descriptor) and unfinished.exists():
                return unfinished, descriptor
            os.close(descriptor)
    raise OSError(errno.EAGAIN, "another process removes what is written here", str(path))


def _replace_folder(new: Path, path: Path, aside: Path) -> None:
    """Rename `new` to `path`; an old one goes to `aside` whole, since removing takes time and renaming does not."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            if not _renamed(path, aside):
                shutil.rmtree(path)
        try:
            new.replace(path)
            return
        except OSError as error:
            # Another process has put its folder there meanwhile.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(aside, ignore_errors=True)


def _renamed(folder: Path, name: Path) -> bool:
    """Whether `folder` has got the new `name`. Raises OSError.

    Overlayfs, the file system of containers, refuses it with EXDEV for a folder of a lower layer, such as an image's,
    unless it is mounted with redirect_dir (the kernel's documentation of overlayfs, "Renaming directories"); files are
    renamed everywhere.
    """
    try:
        folder.replace(name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def remove_folder(folder: Path, seal: str) -> None:
    """Remove `folder`, which counts as whole while it has the file `seal`. Raises OSError.

    It is renamed first, so that a crash in between leaves no part of it under its name; where it can't be renamed, the
    seal goes first.
    """
    doomed = _new_name(folder)
    if not _renamed(folder, doomed):
        (folder / seal).unlink(missing_ok=True)
        doomed = folder
    sync_folder(doomed if doomed == folder else folder.parent)
    shutil.rmtree(doomed, ignore_errors=True)


def write_text(path: str | Path, text: str, *, durable: bool = True) -> None:
    r"""Write `text` as UTF-8 to `path`, atomically. A byte of a file name that is not UTF-8 is written as `\udcNN`."""
    with atomic_file(path, durable=durable) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` as indented JSON with a closing newline to `path`, atomically.

    `json.loads` gives back every file name, also one that is not UTF-8.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", durable=durable)


def read_json(path: Path) -> Any:
    """The value of a JSON file of ours; None where there is none, or none that can be read."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in `folder` (not below it) under temporary names; what is being written stays."""
    _remove_abandoned(folder, ".")


def remove_leftovers_of(path: Path) -> None:
    """Remove what killed writers of the file or folder `path` left next to it; what is being written stays."""
    _remove_abandoned(path.parent, f".{path.name}.")


def _remove_abandoned(folder: Path, prefix: str) -> None:
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in entries:
        if not (path.name.startswith(prefix) and path.name.endswith(LEFTOVER_SUFFIX)):
            continue
        with _claimed(path) as is_abandoned:
            if not is_abandoned:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether no living process writes `path`; while the block runs, none can begin to."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        # A dead link, a file without permission to read, or gone meanwhile: nothing that is written here.
        yield True
        return
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the file `path` while the block runs; waits for a process that holds it. Makes its folder.

    A file system without locks does not keep two processes apart.
    """
    make_folder(path.parent)
    with path.open("a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed. False, without waiting, if another process has it.

    A file system without locks says nothing of who writes: there each lock succeeds.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
