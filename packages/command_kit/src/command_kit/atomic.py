"""Files and folders that appear under their final name complete, or not at all.

A file is written beside its final place under a hidden temporary name, flushed to the disk, and renamed: a crash, a
full disk or `kill -9` leaves the old file or none, never half of a new one. What a killed process left behind under
a temporary name is overwritten by the next writer of the same file, or removed by `remove_leftovers`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

LEFTOVER_SUFFIX = ".unfinished"
"""What the temporary name of an unfinished file or folder ends with; such a name also starts with a dot."""


def temporary_name(path: Path) -> Path:
    """The temporary name, in the same folder, under which `path` is written until it is complete."""
    return path.with_name(f".{path.name}{LEFTOVER_SUFFIX}")


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power cut (a no-op where unsupported)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open `path` for writing bytes; it appears when the block ends well and is untouched when the block raises.

    Creates missing parent folders. Raises OSError as writing does (a full disk, no permission).
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = temporary_name(path)
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(path.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A fresh folder to fill; it is renamed to `path` when the block ends well, removed when the block raises.

    An older folder of that name is replaced: a crash at any moment leaves one of them whole, under this name or, for
    the moment between two renames, under none. Files in it must be closed by the end of the block.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = temporary_name(path)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        yield unfinished
        sync_folder(unfinished)
        # Removing takes time, renaming does not: the old folder goes aside whole.
        aside = path.with_name(f".{path.name}.old{LEFTOVER_SUFFIX}")
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists():
            path.replace(aside)
        unfinished.replace(path)
        sync_folder(path.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, atomically."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON with a closing newline to `path`, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in `folder` (not below it) under temporary names."""
    for leftover in folder.glob(f".*{LEFTOVER_SUFFIX}"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
