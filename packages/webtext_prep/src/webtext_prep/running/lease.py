"""A lease on an output behind a URL: of two commands, on any machines, one writes it.

The lock of a state folder keeps two commands of one machine apart; those of two machines have two state folders. So a
command that writes to a URL first makes a small object there, `.webtext-lease.json`, which the storage system makes for
one of several writers only, renews it while it runs, and removes it at its end. A command that was killed leaves it: it
runs out some minutes after it was renewed last, by the clock of the storage. The same state folder on the same machine
takes its own lease over at once, since its lock says that nobody else has it; on another machine, where it may be a
copy, the command waits until the lease has run out.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import platform
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_kit import hide_credentials, write_text
from webtext_prep.documents import storage
from webtext_prep.documents.stores.base import Location, Note
from webtext_prep.errors import InputError, WebtextError

LEASE = ".webtext-lease.json"
"""In an output folder; beside an output that is a prefix, behind that."""
LASTS_SECONDS = 180
"""How long a lease holds without being renewed."""
RENEWED_SECONDS = 30
"""How often it is renewed: several attempts may fail."""
LOOK_SECONDS = 10
"""How often a lease that is waited for is looked at."""
OWNER = "owner"
"""In the state folder: what tells its leases from those of others."""


class Lease:
    """The right to write one output, while `held` is open.

    Args:
        place: of the object.
        output: what it is about.
        owner: which state folder it belongs to.
    """

    def __init__(self, place: Location, output: Location, owner: str) -> None:
        self._place, self._output, self._store = place, hide_credentials(str(output)), storage.store_of(place)
        self._mine: dict[str, Any] = {
            "owner": owner,
            "host": platform.node(),
            "pid": os.getpid(),
            "run": secrets.token_hex(8),
            "started": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "lasts_seconds": LASTS_SECONDS,
            "renewals": 0,
        }
        self._taken_by = ""
        self._is_over = threading.Event()
        self._renewer = threading.Thread(target=self._renew_often, name="lease", daemon=True)

    def take(self) -> None:
        """Take it. Raises InputError naming the command that has it."""
        for _ in range(3):  # whoever is faster, or ends just now, is seen the next time
            with contextlib.suppress(FileNotFoundError):
                found = self._free()
                self._write(found.version if found else "")
                if self._is_mine(self._store.read_note(self._place)):  # storage without conditions takes every writer
                    self._renewer.start()
                    if found and not self._is_ours(_read(found)):
                        end = f"is taken over from {_who(_read(found))}, which did not end it."
                        print(f"webtext: {self._output} {end}", file=sys.stderr)
                    return
        raise InputError(f"other webtext commands begin to work on {self._output} at this moment: run one of them.")

    def _free(self) -> Note | None:
        """The lease that is there, which was this state folder's, or has run out. Raises InputError if it has not."""
        try:
            note = self._store.read_note(self._place)
        except FileNotFoundError:
            return None
        if not self._is_ours(theirs := _read(note)):
            if theirs.get("owner") == self._mine["owner"]:
                return self._wait_for(note)
            refuse_if_held(note, self._output)
        return note

    def _is_ours(self, theirs: dict[str, Any]) -> bool:
        return (theirs.get("owner"), theirs.get("host")) == (self._mine["owner"], self._mine["host"])

    def _wait_for(self, note: Note) -> Note:
        """The lease that this state folder had on another machine, as it has run out. Raises InputError if it lives."""
        if (left := _left(note)) > 0:
            print(
                f"webtext: {_who(_read(note))} worked on {self._output} with this state: waiting up to "
                f"{math.ceil(left)} seconds, in case that it still does.",
                file=sys.stderr,
            )
        version = note.version
        while (left := _left(note)) > 0:
            time.sleep(min(left, LOOK_SECONDS))
            note = self._store.read_note(self._place)
            if note.version != version:
                refuse_if_held(note, self._output)
        return note

    def _write(self, version: str) -> None:
        """Write it in place of that version, "" for none. A lost answer is an error, too: what is there tells."""
        with contextlib.suppress(FileExistsError):
            self._store.write_note(self._place, (json.dumps(self._mine, indent=2) + "\n").encode(), version)

    def check(self) -> None:
        """Raise WebtextError if another command has taken it over."""
        if self._taken_by:
            raise WebtextError(
                f"{self._output} was taken over by {self._taken_by} while this command did not reach it: let that one "
                "go on, or stop it and run this again."
            )

    def renew(self) -> None:
        """Renew it; note it if it is another's. Raises OSError if it can't be told."""
        self._mine["renewals"] += 1
        try:
            note = self._store.read_note(self._place)
        except FileNotFoundError:  # somebody removed it
            if not self._is_over.is_set():
                self._write("")
            return
        if self._is_mine(note):
            self._write(note.version)
        else:
            self._taken_by = _who(_read(note))

    def _is_mine(self, note: Note) -> bool:
        return bool(_read(note).get("run") == self._mine["run"])

    def _renew_often(self) -> None:
        while not self._taken_by and not self._is_over.wait(RENEWED_SECONDS):
            with contextlib.suppress(Exception):  # said by what the command does there itself; the next one may go well
                self.renew()

    def give_back(self) -> None:
        """Remove it, if it is still ours."""
        self._is_over.set()
        self._renewer.join(5)
        with contextlib.suppress(OSError):  # it runs out by itself
            if self._is_mine(self._store.read_note(self._place)):
                self._store.remove(self._place)


@contextlib.contextmanager
def held(place: Location, output: Location, state: Path) -> Iterator[Lease | None]:
    """Have the lease at `place` while the block runs. Raises InputError if another command has it.

    An output on this machine, or a file system that looks like it, has the lock of its state folder instead: None.
    """
    if storage.is_local(place):
        yield None
        return
    lease = Lease(place, output, _owner(state))
    lease.take()
    try:
        yield lease
    finally:
        lease.give_back()


def lease_place(output: Location, *, is_prefix: bool) -> Location:
    """Where the lease on an output lies: in the folder, or behind the name of a prefix."""
    return output.with_name(f".{output.name}{LEASE}") if is_prefix else output / LEASE


def refuse_if_taken(place: Location, output: Location, state: Path) -> None:
    """Raise InputError if another command works on an output now. Writes nothing."""
    if storage.is_local(place):
        return
    with contextlib.suppress(FileNotFoundError):
        note = storage.store_of(place).read_note(place)
        theirs = _read(note)
        if theirs.get("owner") != _known_owner(state):
            refuse_if_held(note, hide_credentials(str(output)))


def refuse_if_held(note: Note, output: str) -> None:
    """Raise InputError if a lease has not run out."""
    if (left := _left(note)) > 0:
        who = _who(_read(note))
        raise InputError(
            f"another webtext command is at work on {output}, {who}: wait for it, give another --output, or, "
            f"if it was killed, run this again in {math.ceil(left)} seconds."
        )


def _left(note: Note) -> float:
    """Seconds until a lease runs out, if it is not renewed."""
    return float(_read(note).get("lasts_seconds", LASTS_SECONDS)) - note.age


def _read(note: Note) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(note.data)
        if isinstance(found, dict):
            return found
    return {}


def _who(theirs: dict[str, Any]) -> str:
    host, pid, started = (theirs.get(name, "?") for name in ("host", "pid", "started"))
    return f"process {pid} on {host} since {started}"


def _known_owner(state: Path) -> str:
    with contextlib.suppress(OSError):
        return (state / OWNER).read_text(encoding="ascii").strip()
    return ""


def _owner(state: Path) -> str:
    """What a state folder calls itself, from its first command on."""
    if not (known := _known_owner(state)):
        write_text(state / OWNER, (known := secrets.token_hex(16)) + "\n")
    return known
