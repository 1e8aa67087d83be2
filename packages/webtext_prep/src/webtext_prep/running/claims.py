"""The claim on an output: one command, one stage and one set of settings own it; other files are left alone.

It is a small file in the state folder, which is written before anything else, and says who may go on with the output.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from command_kit import hide_credentials, read_json, write_json
from command_kit.atomic import make_folder
from command_kit.command import print_warning
from command_kit.settings import changes
from webtext_prep import storage
from webtext_prep.documents.folders.shards import DROPPED
from webtext_prep.documents.folders.stage_record import read_record, record_place, state_place
from webtext_prep.errors import InputError
from webtext_prep.running.processes import changed
from webtext_prep.running.stage import Outcome, Stage
from webtext_prep.running.staging import SharedScratch
from webtext_prep.storage import lease
from webtext_prep.storage.locations import Location

CLAIM = "job.json"
"""In the state folder: the stage and settings that own the output."""
LOCK = "lock"
SCRATCH, KEPT, MARKERS = "scratch", "kept", "markers"
"""Folders in it: files between phases, what a stage leaves for its next run over whatever input, and finished tasks."""
SHARED = "shared-scratch"
"""A file in it: where in storage the files between phases lie, for the run that removes them."""
SPOOLED = "stdin-"
"""The beginning of the name of spooled standard input in it."""
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def locked(
    state: Path, output: Location | Path, who: str = "webtext command", flag: str = "--output"
) -> Iterator[None]:
    """Keep a second command off the same output while this one works on it. Raises InputError if one is at work.

    The lock is a file in `state`. The message calls the command at work `who`, and its output by `flag`.
    """
    make_folder(state)
    with (state / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                raise InputError(
                    f"another {who} is at work on {output}: wait for it, or give another {flag}."
                ) from None
            # Some network file systems have no locks.
            print_warning(
                "webtext",
                f"{state} can't be locked ({error.strerror}): make sure that no second command works on {output}.",
            )
        yield


class Claim:
    """The claim of a stage on an output.

    Args:
        stage: the stage.
        output: the folder, or for a stage that makes tokens the prefix of its files.
        state: the folder of this machine for what resuming needs.
    """

    def __init__(self, stage: Stage, output: Location, state: Path) -> None:
        self._stage, self._output, self._state = stage, output, state
        self._is_prefix = stage.writes.is_prefix
        self._record_path = record_place(output, is_prefix=self._is_prefix)
        # Which output the state belongs to, where that does not follow from its place; next to it, both may be moved.
        is_beside = state == state_place(output, is_prefix=self._is_prefix)
        self._elsewhere = None if is_beside else hide_credentials(storage.identity(output))

    # Who owns it

    def refuse_foreign(self, inputs: Sequence[Location] = ()) -> None:
        """Raise InputError where a run of the stage would write among, or over, files that no such run has made."""
        place = self._output
        if self._state.exists() and not self._state.is_dir():
            raise InputError(f"{place} was begun with its state elsewhere: give the same --state DIR again.")
        self._read()
        is_claimed = (self._state / CLAIM).is_file()  # also where it is damaged
        if self._is_prefix:
            self._refuse_foreign_prefix(is_claimed)
            return
        if storage.is_file(place):
            raise InputError(f"--output {place} is a file: give a folder.")
        home, own = storage.identity(place), str(self._state.resolve())
        for folder in {path.parent for path in inputs}:
            within = f"{storage.identity(folder)}/"
            if within.startswith(f"{home}/") and not within.startswith(f"{own}/"):
                raise InputError(f"input {folder} lies in the output folder itself: give another --output.")
        entries = [] if is_claimed else storage.list_folder(place)
        if unexpected := [entry.name for entry, _ in entries if entry != self._state and entry.name != lease.LEASE]:
            shown = ", ".join(unexpected[:3]) + (", ..." if len(unexpected) > 3 else "")
            raise InputError(f"--output {place} holds other files ({shown}): give an empty or new folder.")

    def _refuse_foreign_prefix(self, is_claimed: bool) -> None:
        place = self._output
        if storage.is_folder(place) or str(place).endswith(("/", "\\")):
            raise InputError(f"--output {place} is a folder: give a file name prefix, such as {place / 'corpus'}.")
        if unexpected := [] if is_claimed else [path.name for path in self._stage.writes.files_in(place)]:
            raise InputError(
                f"{' and '.join(unexpected)} in {place.parent} were not made by this command: give another --output, "
                "or remove them."
            )

    def refuse_other_settings(self, settings: dict[str, Any], libraries: dict[str, str]) -> None:
        """Raise InputError naming the other version, settings or libraries that it was made with. Writes nothing."""
        claim = self._read()
        if claim is None or claim.get("refused") or not self._has_begun():
            return
        if self._version(claim) < self._stage.oldest:
            raise InputError(
                f"{self._output} was made by an earlier version of `webtext {self._stage.name}`, with which this one "
                "can't go on: give another --output, or --restart to make it again from scratch."
            )
        theirs = {
            name: value for name, value in claim["settings"].items() if name != "keep_dropped"
        }  # of earlier versions
        if theirs != settings:
            raise InputError(
                f"{self._output} was made with other settings ({changes(theirs, settings)}): give another --output, or "
                "--restart to make it again from scratch."
            )
        if differing := changed(claim.get("libraries", {}), libraries):
            raise InputError(
                f"{self._output} was made with {differing}, and another version may decide otherwise about a "
                "document: install that version again, give another --output, or --restart to make it again from "
                "scratch."
            )

    def _read(self) -> dict[str, Any] | None:
        """The stage and settings that own it, or None. Raises InputError if it, or its state, is another's."""
        claim: dict[str, Any] | None = read_json(self._state / CLAIM)
        if claim is not None and claim["stage"] != self._stage.name:
            raise InputError(
                f"{self._output} is the output of `webtext {claim['stage']}`: give another --output, or remove it."
            )
        if claim is not None and claim.get("output") != self._elsewhere:
            owner = claim.get("output", self._state.parent)
            raise InputError(f"{self._state} holds the state of another output, {owner}: give another --state DIR.")
        return claim

    def _version(self, claim: dict[str, Any]) -> int:
        """The version of the stage that made it; 0 where that did not say so."""
        record = None if "version" in claim else read_record(self._record_path.parent, self._record_path.name)
        return int((claim if record is None else record).get("version", 0))

    def _has_begun(self) -> bool:
        """Whether an earlier run made anything; one that failed before leaves its settings to be corrected."""
        folders = (self._state / SCRATCH, self._state / KEPT)
        return (
            storage.is_file(self._record_path)
            or any(path.is_file() for folder in folders for path in folder.rglob("*"))
            or (self._state / SHARED).is_file()
            or any((self._state / MARKERS).rglob("*.json"))
            or bool(self._stage.writes.files_in(self._output))
        )

    # Taking it, and giving it back

    def take(
        self, settings: dict[str, Any], libraries: dict[str, str], companions: Sequence[str] = (), *, restart: bool
    ) -> bool:
        """Claim it for this stage, these settings and versions, removing first, for a restart, the old output.

        `companions` are the names of the outputs next to it that belong to it. Returns whether no run before this one
        has made anything of it, but one that was refused.

        Raises InputError naming the stage, the settings or the libraries that it has been made with.
        """
        claim = self._read() or {}
        if not restart:
            self.refuse_other_settings(settings, libraries)
        was_refused = claim.get("refused", False)
        if claim and not restart and self._version(claim) < self._stage.version and self._has_begun():
            print_warning(
                "webtext",
                f"{self._output} holds files of an earlier version of `webtext {self._stage.name}`, which made others "
                "of the same input: they are made again.",
            )
        if restart or (was_refused and (claim["settings"], claim.get("libraries", {})) != (settings, libraries)):
            self.remove_output()
        # Companions of earlier runs stay named until they are removed.
        named = sorted({*claim.get("companions", []), *companions})
        others = {"libraries": libraries, "output": self._elsewhere, "companions": named}
        write_json(
            self._state / CLAIM,
            {
                "stage": self._stage.name,
                "version": self._stage.version,
                "settings": settings,
                **{name: value for name, value in others.items() if value},
            },
        )
        return was_refused or not self._has_begun()

    def withdraw(self, outcome: Outcome | None) -> None:
        """Let another run have other settings, after the first one was refused: remove what it left, or mark it.

        What its tasks have found stays, for the same settings, unless nothing was kept and the output says nothing
        more: what was dropped, how fetching went. Of a run that failed with some shards done nothing is touched.
        """
        outputs = self._stage.writes.files_in(self._output)
        is_empty = outcome is not None and not outcome.tally.kept
        has_read = outcome is None or outcome.tally.read > 0
        tells = has_read and not self._is_prefix and any(path.parent != self._output for path in outputs)
        own = (LOCK, CLAIM, lease.OWNER)
        found = [path for path in self._state.rglob("*") if path.is_file() and path.name not in own]
        has_work = bool(outputs) or any(not path.name.startswith(SPOOLED) for path in found)
        if not has_work or (is_empty and not tells):
            self.remove_output()
            self._remove_folders()
        elif is_empty or all(path.parent == self._output / DROPPED for path in outputs):
            write_json(self._state / CLAIM, {**(self._read() or {}), "refused": True})

    def remove_output(self) -> None:
        """Remove everything that the stage has made, but neither the lock nor what was read from standard input."""
        for path in (*self._stage.writes.files_in(self._output), self._record_path):
            storage.remove(path)
        remove_shared_scratch(self._state)
        for entry in self._state.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name not in (LOCK, CLAIM, lease.OWNER) and not entry.name.startswith(SPOOLED):
                entry.unlink()

    def remove_companions(self, names: Sequence[str]) -> None:
        """Remove the outputs that belonged to it in earlier runs, but for those of these names."""
        claim = self._read() or {}
        gone = set(claim.get("companions", [])) - set(names)
        for name in gone:
            output = self._output.with_name(name)
            beside = state_place(output, is_prefix=self._is_prefix)
            state = beside if self._elsewhere is None else Path(f"{self._state}-{name}")
            if isinstance(state, Path) and state.is_dir():
                other = Claim(self._stage, output, state)
                with locked(state, output):
                    other.remove_output()
                    other._remove_folders()
        if gone:
            write_json(self._state / CLAIM, {**claim, "companions": sorted(names)})

    def _remove_folders(self) -> None:
        """Remove the state, the notice of it, and the output folder if nothing else is in it."""
        shutil.rmtree(self._state, ignore_errors=True)
        if (notice := notice_place(self._output, self._state, is_prefix=self._is_prefix)) is not None:
            storage.remove(notice)
        if not self._is_prefix and isinstance(self._output, Path):
            for folder in (*(self._output / name for name in self._stage.writes.folders if name), self._output):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def notice_place(output: Location, state: Path, *, is_prefix: bool) -> Location | None:
    """Where it is written that an output is not finished, if its state lies elsewhere; None if that tells."""
    beside = state_place(output, is_prefix=is_prefix)
    return None if is_prefix or state == beside else beside


def remove_shared_scratch(state: Path) -> None:
    """Remove what this run, or an earlier one, keeps in storage."""
    noted = state / SHARED
    if noted.is_file():
        with contextlib.suppress(OSError, InputError):  # leftovers cost room, and nothing else
            SharedScratch(storage.location(noted.read_text(encoding="utf-8"))).remove()
        noted.unlink()
