"""The output of a job: one command, one stage and one set of settings own it; other files are left alone.

It is made its own before anything is written, cleared of what does not belong there, and recorded at the end.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from command_kit import hide_credentials, read_json, write_json, write_text
from command_kit.command import print_warning
from command_kit.settings import changes
from webtext_prep import storage
from webtext_prep.documents.folders.stage_record import (
    RUN,
    STATE,
    files_by_record,
    lineage_of,
    read_record,
    record_place,
    stage_folder,
    state_place,
)
from webtext_prep.errors import InputError
from webtext_prep.running.markers import digest
from webtext_prep.running.processes import changed
from webtext_prep.running.run import DROPPED, KEPT
from webtext_prep.running.stage import Outcome, Stage
from webtext_prep.running.staging import SharedScratch
from webtext_prep.storage import lease
from webtext_prep.storage.locations import Location

CLAIM = "job.json"
"""In the state folder: the stage and settings that own the output, written before anything else."""
LOCK = "lock"
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def locked(
    state: Path, output: Location | Path, who: str = "webtext command", flag: str = "--output"
) -> Iterator[None]:
    """Keep a second command off the same output while this one works on it. Raises InputError if one is at work.

    The lock is a file in `state`. The message calls the command at work `who`, and its output by `flag`.
    """
    state.mkdir(parents=True, exist_ok=True)
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


SPOOLED = "stdin-"
"""The beginning of the name of spooled standard input in the state folder."""
SHARED = "shared-scratch"
"""In the state folder: where in storage the files between phases lie, for the run that removes them."""
MOST_FILES = 1000
"""Input files without a record that are named in `run.json`, at most."""


class Output:
    """The output of one stage, and the state next to it.

    Args:
        stage: the stage.
        place: the folder, or for a stage that makes tokens the prefix of its files.
        state: the folder of this machine for what resuming needs.
        shared: the place in storage for files between phases, where tasks do not see the state; "" for none.
    """

    def __init__(self, stage: Stage, place: Location, state: Path, shared: str = "") -> None:
        self.stage, self.place, self.state = stage, place, state
        self.scratch = state / "scratch"
        name = f"{stage.name}-{digest([storage.identity(place), str(state.resolve())])[:16]}"
        self.shared = SharedScratch.of(shared, name) if shared else None
        self.is_prefix = stage.writes.made == "tokens"
        self.record_path = record_place(place, is_prefix=self.is_prefix)
        # Which output the state belongs to, where that does not follow from its place; next to it, both may be moved.
        is_beside = state == state_place(place, is_prefix=self.is_prefix)
        self._elsewhere = None if is_beside else hide_credentials(storage.identity(place))

    def refuse_foreign(self, inputs: Sequence[Location] = ()) -> None:
        """Raise InputError where a run of the stage would write among, or over, files that no such run has made."""
        if self.state.exists() and not self.state.is_dir():
            raise InputError(f"{self.place} was begun with its state elsewhere: give the same --state DIR again.")
        is_claimed = (self.state / CLAIM).is_file()
        self._read_claim()
        if self.is_prefix:
            self._refuse_foreign_prefix(is_claimed)
            return
        if storage.is_file(self.place):
            raise InputError(f"--output {self.place} is a file: give a folder.")
        home, own = storage.identity(self.place), str(self.state.resolve())
        for folder in {path.parent for path in inputs}:
            within = f"{storage.identity(folder)}/"
            if within.startswith(f"{home}/") and not within.startswith(f"{own}/"):
                raise InputError(f"input {folder} lies in the output folder itself: give another --output.")
        entries = [] if is_claimed else storage.list_folder(self.place)
        if unexpected := [entry.name for entry, _ in entries if entry != self.state and entry.name != lease.LEASE]:
            shown = ", ".join(unexpected[:3]) + (", ..." if len(unexpected) > 3 else "")
            raise InputError(f"--output {self.place} holds other files ({shown}): give an empty or new folder.")

    def _refuse_foreign_prefix(self, is_claimed: bool) -> None:
        place = self.place
        if storage.is_folder(place) or str(place).endswith(("/", "\\")):
            raise InputError(f"--output {place} is a folder: give a file name prefix, such as {place / 'corpus'}.")
        if unexpected := [] if is_claimed else [path.name for path in self.stage.writes.files_in(place)]:
            raise InputError(
                f"{' and '.join(unexpected)} in {place.parent} were not made by this command: give another --output, "
                "or remove them."
            )

    def _read_claim(self) -> dict[str, Any] | None:
        """The stage and settings that own it, or None. Raises InputError if it, or its state, is another's."""
        claim: dict[str, Any] | None = read_json(self.state / CLAIM)
        if claim is not None and claim["stage"] != self.stage.name:
            raise InputError(
                f"{self.place} is the output of `webtext {claim['stage']}`: give another --output, or remove it."
            )
        if claim is not None and claim.get("output") != self._elsewhere:
            owner = claim.get("output", self.state.parent)
            raise InputError(f"{self.state} holds the state of another output, {owner}: give another --state DIR.")
        return claim

    def make_own(
        self, settings: dict[str, Any], libraries: dict[str, str], companions: Sequence[str] = (), *, restart: bool
    ) -> bool:
        """Claim it for this stage, these settings and versions, removing first, for a restart, the old output.

        `companions` are the names of the outputs next to it that belong to it. Returns whether no run before this one
        has made anything of it, but one that was refused.

        Raises InputError naming the stage, the settings or the libraries that it has been made with.
        """
        claim = self._read_claim() or {}
        if not restart:
            self.refuse_other_settings(settings, libraries)
        was_refused = claim.get("refused", False)
        if restart or (was_refused and (claim["settings"], claim.get("libraries", {})) != (settings, libraries)):
            self.remove_all()
        place = {} if self._elsewhere is None else {"output": self._elsewhere}
        used = {"libraries": libraries} if libraries else {}
        # Those of earlier runs stay named until they are removed.
        named = sorted({*claim.get("companions", []), *companions})
        beside = {"companions": named} if named else {}
        write_json(
            self.state / CLAIM,
            {"stage": self.stage.name, "version": self.stage.version, "settings": settings, **used, **place, **beside},
        )
        self.remove_leftovers()
        return was_refused or not self._has_begun()

    def withdraw(self, outcome: Outcome | None) -> None:
        """Let another run have other settings, after the first one was refused: remove what it left, or mark it.

        What its tasks have found stays, for the same settings, unless nothing was kept and the output says nothing
        more: what was dropped, how fetching went. Of a run that failed with some shards done nothing is touched.
        """
        outputs = self.stage.writes.files_in(self.place)
        is_empty = outcome is not None and not outcome.tally.kept
        has_read = outcome is None or outcome.tally.read > 0
        tells = has_read and not self.is_prefix and any(path.parent != self.place for path in outputs)
        own = (LOCK, CLAIM, lease.OWNER)
        found = [path for path in self.state.rglob("*") if path.is_file() and path.name not in own]
        has_work = bool(outputs) or any(not path.name.startswith(SPOOLED) for path in found)
        if not has_work or (is_empty and not tells):
            self.remove_all()
            if self._notice is not None:
                storage.remove(self._notice)
            self._remove_folders()
        elif is_empty or all(path.parent == self.place / DROPPED for path in outputs):
            write_json(self.state / CLAIM, {**(self._read_claim() or {}), "refused": True})

    def remove_companions(self, names: Sequence[str]) -> None:
        """Remove the outputs that belonged to it in earlier runs, but for those of these names."""
        claim = self._read_claim() or {}
        gone = set(claim.get("companions", [])) - set(names)
        for name in gone:
            place = self.place.with_name(name)
            beside = state_place(place, is_prefix=self.is_prefix)
            state = beside if self._elsewhere is None else Path(f"{self.state}-{name}")
            if isinstance(state, Path) and state.is_dir():
                other = Output(self.stage, place, state)
                with locked(state, place):
                    other.remove_all()
                    other._remove_folders()
        if gone:
            write_json(self.state / CLAIM, {**claim, "companions": sorted(names)})

    def _remove_folders(self) -> None:
        """Remove the state, and the output folder if nothing else is in it."""
        shutil.rmtree(self.state, ignore_errors=True)
        if not self.is_prefix and isinstance(self.place, Path):
            for folder in (*(self.place / name for name in self.stage.writes.folders if name), self.place):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def refuse_other_settings(self, settings: dict[str, Any], libraries: dict[str, str]) -> None:
        """Raise InputError naming the other version, settings or libraries that it was made with. Writes nothing."""
        claim = self._read_claim()
        if claim is None or claim.get("refused") or not self._has_begun():
            return
        if self._version(claim) < getattr(self.stage, "oldest", 0):
            raise InputError(
                f"{self.place} was made by an earlier version of `webtext {self.stage.name}`, with which this one "
                "can't go on: give another --output, or --restart to make it again from scratch."
            )
        theirs = {name: value for name, value in claim["settings"].items() if name != "keep_dropped"}  # of version 1
        if theirs != settings:
            raise InputError(
                f"{self.place} was made with other settings ({changes(theirs, settings)}): give another --output, or "
                "--restart to make it again from scratch."
            )
        if differing := changed(claim.get("libraries", {}), libraries):
            raise InputError(
                f"{self.place} was made with {differing}, and another version may decide otherwise about a "
                "document: install that version again, give another --output, or --restart to make it again from "
                "scratch."
            )

    def _version(self, claim: dict[str, Any]) -> int:
        """The version of the stage that made it; 0 where that did not say so."""
        record = None if "version" in claim else read_record(self.record_path.parent, self.record_path.name)
        return int((claim if record is None else record).get("version", 0))

    def _has_begun(self) -> bool:
        """Whether an earlier run made anything; one that failed before leaves its settings to be corrected."""
        return (
            storage.is_file(self.record_path)
            or any(self._own_files())
            or (self.state / SHARED).is_file()
            or any((self.state / "markers").rglob("*.json"))
            or bool(self.stage.writes.files_in(self.place))
        )

    def written(self) -> tuple[int, int]:
        """Bytes of the output, and of files between phases, that are there already."""
        output = sum(storage.sizes(self.stage.writes.files_in(self.place)))
        return output, sum(path.stat().st_size for path in self._own_files())

    def _own_files(self) -> Iterator[Path]:
        """The files that tasks have made for each other, and for the next run."""
        return (path for folder in (self.scratch, self.state / KEPT) for path in folder.rglob("*") if path.is_file())

    def remove_all(self) -> None:
        """Remove everything that the stage has made, but neither the lock nor what was read from standard input."""
        self.remove_others([])
        storage.remove(self.record_path)
        self._remove_shared()
        for entry in self.state.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name not in (LOCK, CLAIM, lease.OWNER) and not entry.name.startswith(SPOOLED):
                entry.unlink()

    def remove_others(self, outputs: Sequence[Location]) -> None:
        """Remove the stage's files that are not among `outputs`: shards of an earlier run over other inputs."""
        expected = set(outputs)
        for path in self.stage.writes.files_in(self.place):
            if path not in expected:
                storage.remove(path)

    def remove_leftovers(self) -> None:
        """Remove half-written files of killed processes: of an earlier run, or of workers of this one."""
        if not self.is_prefix:
            places = [
                self.place,
                self.place / DROPPED,
                *(path.parent for path in self.stage.writes.files_in(self.place)),
            ]
            for folder in dict.fromkeys(places):
                storage.remove_leftovers(folder)

    def begin(self) -> None:
        """Let whoever reads it see that it is not finished, also where its state lies elsewhere."""
        if self._notice is not None:
            storage.write_json(self._notice, {"unfinished": self.stage.name})
        storage.remove(self.record_path)
        self.make_scratch()

    def make_scratch(self) -> None:
        """Make the folders for files between phases. Raises InputError where the shared one can't be used."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        noted = self.state / SHARED
        if self.shared is None or not noted.is_file() or noted.read_text(encoding="utf-8") != str(self.shared.place):
            self._remove_shared()
        if self.shared is not None:
            write_text(noted, str(self.shared.place))
            self.shared.begin()

    def remove_scratch(self) -> None:
        """Remove the files between phases, here and in storage."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._remove_shared()

    def _remove_shared(self) -> None:
        """Remove what this run, or an earlier one, keeps in storage."""
        noted = self.state / SHARED
        if noted.is_file():
            with contextlib.suppress(OSError, InputError):  # leftovers cost room, and nothing else
                SharedScratch(storage.location(noted.read_text(encoding="utf-8"))).remove()
            noted.unlink()

    def finish(
        self,
        outcome: Outcome,
        identity: dict[str, Any],
        libraries: dict[str, str],
        inputs: Sequence[Location],
        stamps: Sequence[Any],
        **run: Any,
    ) -> None:
        """Write the record, the same for the same input and settings, and in the state how it was made (`run`).

        `stamps` are those of `inputs`, from before they were read.
        """
        record = {
            "stage": self.stage.name,
            "version": self.stage.version,
            "settings": identity,
            **({"libraries": libraries} if libraries else {}),
            **outcome.tally.as_dict(),
            "facts": outcome.facts,
            "shards": outcome.shards,
            "inputs": lineage_of(inputs),
        }
        circumstances = {
            "finished_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "host": platform.node(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "version": metadata.version("webtext-gpt2-prep"),
            **run,
            **_places(self.place, inputs, stamps),
        }
        write_json(self.state / RUN, circumstances)
        storage.write_json(self.record_path, record)
        if self._notice is not None:
            storage.remove(self._notice)

    def renew_lineage(self, inputs: Sequence[Location]) -> None:
        """Write the record of a finished output again where those of its inputs have changed since.

        They do though its input files stay the same: a document is gone that the stage before had dropped.
        """
        record, lineage = read_record(self.record_path.parent, self.record_path.name), lineage_of(inputs)
        if record is not None and record.get("inputs") != lineage:
            storage.write_json(self.record_path, {**record, "inputs": lineage})

    @property
    def _notice(self) -> Location | None:
        notice = self.place / STATE
        return None if self.is_prefix or self.state == notice else notice


def _places(output: Location, inputs: Sequence[Location], stamps: Sequence[Any]) -> dict[str, Any]:
    """The places of the output and of its input, for `run.json`: folders in their order, and files that no stage wrote.

    Of each of these also its stamp without the name, by which a reader sees that it has changed since.
    """

    def shown(place: Location) -> str:
        return hide_credentials(storage.identity(place))

    _, plain = files_by_record(inputs)
    stamp_of = dict(zip(inputs, stamps, strict=True))
    folders = dict.fromkeys(path.parent for path in inputs)
    return {
        "output": shown(output),
        "folders": [shown(folder) for folder in dict.fromkeys(map(stage_folder, folders))],
        "files": [shown(path) for path in plain[:MOST_FILES]],
        "stamps": [stamp_of[path][1:] for path in plain[:MOST_FILES]],
    }
