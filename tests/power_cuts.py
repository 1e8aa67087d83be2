"""Power cuts in tests, without a compiler: what this process does to a folder is recorded by looking at it.

The folder is looked at whenever names change or something is flushed; what was written since then counts as written
just before. Flushes of libraries in C, such as SQLite's, are not seen: `benchmarks/power_cuts.py` records those.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from disk_states import FILE_SYSTEMS, ROOT, Data, Flush, Record, Said, disk_after

_NAMES = ("link", "mkdir", "remove", "rename", "replace", "rmdir", "unlink")


class Watched:
    """Records what is done to an empty folder while the block runs.

    Args:
        folder: the folder; it is left to `disks`, which lays out one disk after another in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.record = folder, Record()
        self._numbers, self._contents = {folder.stat().st_ino: ROOT}, dict[int, bytes]()
        self._lock = threading.RLock()

    def __enter__(self) -> Watched:
        self._patches = [mock.patch.object(os, name, self._followed(getattr(os, name))) for name in _NAMES]
        self._patches.append(mock.patch.object(os, "fsync", self._flushing(os.fsync)))
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()
        self._look()

    def say(self, text: str) -> None:
        """Note what is promised from here on."""
        self._look()
        self.record.changes.append(Said(text))

    def _followed(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._look()
                result = plain(*arguments, **options)
                self._look()
                return result

        return changing

    def _flushing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def flush(descriptor: int) -> None:
            with self._lock:
                self._look()
                plain(descriptor)
                number = self._numbers.get(os.fstat(descriptor).st_ino)
                if number is not None:
                    self.record.changes.append(Flush(number))

        return flush

    def _look(self) -> None:
        """Add what differs from what was there when it was looked at last."""
        known = self.record.paths()
        found = {str(path.relative_to(self.folder)): path for path in sorted(self.folder.rglob("*"))}
        inodes = {path: place.lstat().st_ino for path, place in found.items()}
        fresh = [path for path in found if known.get(path) != self._numbers.get(inodes[path], -1)]
        gone = [path for path in known if path not in found]
        for path in fresh:
            number = self._numbers.get(inodes[path])
            old = next((was for was in gone if known[was] == number), None)
            if old is not None:
                self.record.rename(old, path)
                gone = [was for was in gone if was != old and not was.startswith(f"{old}/")]
                if found[path].is_dir():  # what is in it has moved along
                    self._look()
                    return
                continue
            if number is None or number not in known.values():
                number = max(self._numbers.values()) + 1
                self._numbers[inodes[path]] = number
            self.record.add(path, number, is_folder=found[path].is_dir())
        for path in reversed(gone):
            self.record.remove(path)
        for path, place in found.items():
            if place.is_file():
                self._compare(self._numbers[inodes[path]], place)

    def _compare(self, number: int, place: Path) -> None:
        content, before = place.read_bytes(), self._contents.get(number, b"")
        if content != before:
            start = len(before) if content.startswith(before) else 0
            if not start and before:
                self.record.changes.append(Data(number, 0, None))
            self.record.changes.append(Data(number, start, content[start:], place.stat().st_mtime_ns))
            self._contents[number] = content

    def disks(self, chances: int = 1, every: int = 1) -> Iterator[tuple[int, str]]:
        """After each change the folder as a disk may hold it, each once: how many promises there were, and its name.

        Of what is not the end only each change with a number that `every` divides is looked at.
        """
        seen, promises = set[tuple[int, str]](), 0
        for cut, change in enumerate([*self.record.changes, None]):
            for system in FILE_SYSTEMS if change is None or cut % every == 0 else ():
                for loss in (*system.losses, *map(str, range(chances))):
                    disk = disk_after(self.record, cut, system, loss)
                    if (promises, disk.digest) not in seen:
                        seen.add((promises, disk.digest))
                        disk.write(self.folder)
                        yield promises, f"{system.name}, {loss} lost, cut {cut}"
            promises += isinstance(change, Said)
