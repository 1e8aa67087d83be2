"""A lease on an output at a URL: of two commands, on any machines, one writes it.

The lock of a state folder keeps two commands of one machine apart; commands of two machines have two state folders. So
a command that writes to a URL first makes a small object there, `.webtext-lease.json`, which the storage system makes
for one of several writers only, renews it while it runs, and removes it at its end. A command that was killed leaves
it: it runs out some minutes after it was renewed last, by the clock of the storage. The same state folder on the same
machine takes its own lease over at once, since its lock says that nobody else has it; on another machine, where it may
be a copy, the command waits until the lease has run out.
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
from webtext_prep import storage
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.storage.locations import Location
from webtext_prep.storage.stores.base import Note

LEASE = ".webtext-lease.json"
"""In an output folder; next to an output that is a prefix, after that."""
LASTS_SECONDS = 180
"""Seconds that a lease holds without being renewed."""
RENEWED_SECONDS = 30
"""Seconds between renewals: several attempts may fail."""
LOOK_SECONDS = 10
"""Seconds between two looks at a lease that is waited for."""
OWNER = "owner"
"""In the state folder: what tells its leases from other commands' leases."""


class FoundLease:
    """A lease as it was found.

    Attributes:
        says: what stands in it.
        version: changes with it.
        left: seconds until it runs out, if it is not renewed.
        who: whose it is, for messages.
    """

    def __init__(self, note: Note) -> None:
        self.says: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            content = json.loads(note.data)
            self.says = content if isinstance(content, dict) else {}
        self.version = note.version
        self.left = float(self.says.get("lasts_seconds", LASTS_SECONDS)) - note.age
        host, pid, started = (self.says.get(name, "?") for name in ("host", "pid", "started"))
        self.who = f"process {pid} on {host} since {started}"

    def refuse_if_held(self, output: str) -> None:
        """Raise InputError if it has not run out."""
        if self.left > 0:
            raise InputError(
                f"another webtext command is at work on {output}, {self.who}: wait for it, give another --output, or, "
                f"if it was killed, run this again in {math.ceil(self.left)} seconds."
            )


def look(place: Location) -> FoundLease | None:
    """The lease at `place`. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return FoundLease(storage.store_of(place).read_note(place))
    return None


class Lease:
    """The right to write one output, while `held` is open.

    Args:
        place: of the object.
        output: what it is about.
        owner: which state folder it belongs to.
    """

    def __init__(self, place: Location, output: Location, owner: str) -> None:
        self._place, self._output = place, hide_credentials(str(output))
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
            found = self._free()
            self._write(found)
            # An answer may have been lost, and a storage without conditions takes every writer: the object itself
            # tells.
            if self._is_mine(look(self._place)):
                self._renewer.start()
                if found and not self._is_ours(found):
                    _say(f"{self._output} is taken over from {found.who}, which did not end it.")
                return
        raise InputError(f"other webtext commands begin to work on {self._output} at this moment: run one of them.")

    def _free(self) -> FoundLease | None:
        """The lease that is there, which was this state folder's, or has run out. Raises InputError if it has not.

        One that this state folder had on another machine is waited for, and held if it is renewed meanwhile.
        """
        found = first = look(self._place)
        if first and first.says.get("owner") != self._mine["owner"]:
            first.refuse_if_held(self._output)
        elif first and not self._is_ours(first) and first.left > 0:
            _say(
                f"{first.who} worked on {self._output} with this state: waiting up to {math.ceil(first.left)} seconds, "
                "in case that it still does."
            )
            while found and found.left > 0:
                time.sleep(min(found.left, LOOK_SECONDS))
                if (found := look(self._place)) and found.version != first.version:
                    found.refuse_if_held(self._output)
        return found

    def _is_ours(self, found: FoundLease) -> bool:
        return all(found.says.get(name) == self._mine[name] for name in ("owner", "host"))

    def _is_mine(self, found: FoundLease | None) -> bool:
        return found is not None and found.says.get("run") == self._mine["run"]

    def _write(self, found: FoundLease | None) -> None:
        """Write it, if what was found is there still."""
        data = (json.dumps(self._mine, indent=2) + "\n").encode()
        with contextlib.suppress(FileExistsError):
            storage.store_of(self._place).write_note(self._place, data, found.version if found else "")

    def check(self) -> None:
        """Raise WebtextError if another command has taken it over."""
        if self._taken_by:
            raise WebtextError(
                f"{self._output} was taken over by {self._taken_by} while this command did not reach it: let that one "
                "go on, or stop it and run this again."
            )

    def renew(self) -> None:
        """Renew it, or make it again if somebody removed it; note it if it is another's. Raises OSError."""
        self._mine["renewals"] += 1
        found = look(self._place)
        if found and not self._is_mine(found):
            self._taken_by = found.who
        elif not self._is_over.is_set():
            self._write(found)

    def _renew_often(self) -> None:
        while not self._taken_by and not self._is_over.wait(RENEWED_SECONDS):
            with contextlib.suppress(Exception):  # said by what the command does there itself; the next one may go well
                self.renew()

    def give_back(self) -> None:
        """Remove it, if it is still ours."""
        self._is_over.set()
        self._renewer.join(5)
        with contextlib.suppress(OSError):  # it runs out by itself
            if self._is_mine(look(self._place)):
                storage.remove(self._place)


@contextlib.contextmanager
def held(place: Location, output: Location, state: Path) -> Iterator[Lease | None]:
    """Have the lease at `place` while the block runs. Raises InputError if another command has it.

    An output on this machine, or a file system that looks like it, has the lock of its state folder instead: None.
    """
    if isinstance(place, Path):
        yield None
        return
    lease = Lease(place, output, _owner(state))
    lease.take()
    try:
        yield lease
    finally:
        lease.give_back()


def lease_place(output: Location, *, is_prefix: bool) -> Location:
    """The place of the lease on an output: in the folder, or after the name of a prefix."""
    return output.with_name(f".{output.name}{LEASE}") if is_prefix else output / LEASE


def refuse_if_taken(place: Location, output: Location, state: Path) -> None:
    """Raise InputError if another command works on an output now. Writes nothing."""
    if isinstance(place, Path):
        return
    if (found := look(place)) and found.says.get("owner") != _known_owner(state):
        found.refuse_if_held(hide_credentials(str(output)))


def _say(sentence: str) -> None:
    print(f"webtext: {sentence}", file=sys.stderr)


def _known_owner(state: Path) -> str:
    with contextlib.suppress(OSError):
        return (state / OWNER).read_text(encoding="ascii").strip()
    return ""


def _owner(state: Path) -> str:
    """The name that a state folder has from its first command on."""
    if not (known := _known_owner(state)):
        write_text(state / OWNER, (known := secrets.token_hex(16)) + "\n")
    return known
