"""The copies that a machine has of files between phases in storage; all its processes share them.

Beside a copy it is noted which version of the file it is. A lock for each keeps two processes from fetching the same
one, and a lock for all of them has the first process of a phase remove what that phase does not need, before any other
one begins: what processes of a phase fetch and make stays until the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from command_kit import write_text
from command_kit.atomic import waiting_lock
from webtext_prep.running.markers import digest

_FILES, _VERSIONS, _PHASE = "files", "versions", "phase"


class Copy:
    """The copy of a file between phases on this machine.

    Args:
        node: the job's folder here.
        name: the path of the file from the job's folder in storage.
    """

    def __init__(self, node: Path, name: str) -> None:
        self._name, self.path, self._note = name, node / _FILES / name, node / _VERSIONS / digest(name)

    def is_version(self, version: str) -> bool:
        """Whether it is there, and of that version."""
        return _text_of(self._note) == f"{version} {self._name}" and self.path.is_file()

    def forget(self) -> None:
        """Before it is replaced: its version is not known until it is noted."""
        self._note.unlink(missing_ok=True)

    def note(self, version: str) -> None:
        """Note which version it is."""
        write_text(self._note, f"{version} {self._name}", durable=False)

    def locked(self) -> AbstractContextManager[None]:
        """Only one process of this machine at a time."""
        return waiting_lock(self._note.with_name(f"{self._note.name}.lock"))


def keep_only(node: Path, versions: Mapping[str, str], phase: str) -> None:
    """Remove the copies of files that no task of a phase reads, if no process of this machine has done so.

    Args:
        node: the job's folder here.
        versions: of the files that are read, by their names.
        phase: tells the phase from others.
    """
    with waiting_lock(node / f"{_PHASE}.lock"):
        if _text_of(node / _PHASE) == phase:
            return
        for note in list((node / _VERSIONS).glob("*")):
            name = _text_of(note).partition(" ")[2]
            copy = Copy(node, name)
            if name and not copy.is_version(versions.get(name, "")):
                copy.forget()
                copy.path.unlink(missing_ok=True)
        write_text(node / _PHASE, phase, durable=False)


def _text_of(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8")
    return ""
