"""The way of files between phases to tasks on other machines, and of their outputs back.

Tasks of an engine that runs them here see this machine's files, and nothing of this is used. Of the tasks of other
engines one of two things is true; the job chooses by whether `--shared-scratch URL` is given:

    every machine sees the state folder under one path     `OnSharedFiles`: the files between phases lie in it
    they see storage alone                                 `OnLocalCopies`: they lie in a folder of that storage

Both wrap a task's call and are picklable calls themselves: an engine runs them as it runs any other. With
`OnLocalCopies` the job names its files between phases by their places in storage. On a node, the files that a task
declares are fetched to a folder below the node's temporary folder (TMPDIR), the task runs on these copies, and what it
made is published. Next to a copy it is noted which version of the file it is, so that it is never an old one; all tasks
of a node share it, until the node starts again: copies are not flushed. It costs each node the disk for the inputs of
one phase, and the storage one reading of them a node.

Relative paths hold on a node, too: the call goes to the folder in which the command was given, if the node has it.
Files that settings name (a list of rules, a tokenizer) are not brought anywhere; a node that lacks one says so.

Files that outlive a node are safe before their task counts as done: storage keeps what was published, and on a shared
file system they are flushed first. So no boot id, which tells of this machine alone, limits how long they count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit import atomic_file, hide_credentials, read_json, write_json, write_text
from command_kit.atomic import sync_file, waiting_lock
from webtext_prep import storage
from webtext_prep.errors import InputError, RetryableError, WebtextError
from webtext_prep.running.engines.base import Call
from webtext_prep.running.tasks import Context, Task, digest
from webtext_prep.storage.locations import Location
from webtext_prep.storage.stores.local import boot_id

BEACON = "job.json"
"""Begins the job's folder in shared storage, and is the last file that is removed from it."""
SEEN = "seen.json"
"""In the state folder: what a machine must find there to see the same folder as the one that wrote it."""
_MADE, _OWN, _PLACE, _PHASE, _FILES, _VERSIONS = "made", "own", "place", "phase", "files", "versions"
"""In the folder of a job on a node: what tasks make, their scratch, where the job's folder in storage is, the digest of
the phase, and the copies of files with a note for each, which version of which file it is."""
_CHUNK = 1 << 20


# On a shared file system


@dataclass(frozen=True)
class OnSharedFiles:
    """A call on a machine that sees the state folder as the one that started the job does.

    Attributes:
        call: the task's function.
        state: the folder.
        token: what its file `SEEN` holds.
        here: the folder in which the command was given.
    """

    call: Call
    state: Path
    token: str
    here: str

    @classmethod
    def of(cls, call: Call, state: Path) -> OnSharedFiles:
        """Wrap a call on the machine that starts the job. Raises OSError."""
        state = state.absolute()
        if "token" not in (seen := read_json(state / SEEN) or {}):
            write_json(state / SEEN, seen := {"token": secrets.token_hex(8)})
        return cls(call, state, seen["token"], str(Path.cwd()))

    def __call__(self, task: Task, context: Context) -> Any:
        """Run the task, and flush the files between phases that it made.

        Raises InputError on a machine that does not see the state folder.
        """
        if read_json(self.state / SEEN) != {"token": self.token}:
            raise InputError(
                f"the machine {platform.node()} does not see the state folder {self.state}: put it on a file system "
                "that all machines of the engine share, with --state DIR, or give --shared-scratch URL."
            )
        _go_to(self.here)
        result = self.call(task, context)
        made = [*task.writes.all(), *(storage.files_in(task.folder) if task.folder is not None else ())]
        for file in made:
            if isinstance(file, Path) and file.absolute().is_relative_to(self.state):
                sync_file(file)
        return result


def unseen(files: Sequence[Location]) -> Location | None:
    """The first of some files, made on another machine, that this one does not see; None if it sees all.

    A network file system may say for a minute that there is none, unless its folder changes.
    """
    for file in files:
        if not storage.is_file(file):
            if isinstance(file, Path) and file.parent.is_dir():
                with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".look-"):
                    pass
            if not storage.is_file(file):
                return file
    return None


def _node_root() -> Path:
    """The folder of all jobs in this machine's temporary folder. Raises WebtextError if it is another user's."""
    root = Path(tempfile.gettempdir()) / f"webtext-scratch-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise WebtextError(f"{root} on {platform.node()} belongs to another user: set TMPDIR to another folder.")
    return root


def _go_to(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(folder)


# In storage


@dataclass(frozen=True)
class SharedScratch:
    """The folder of one job for files between phases, in storage that all machines see.

    Attributes:
        place: the folder.
    """

    place: Location

    def begin(self) -> None:
        """Show that the job has begun. Raises InputError where nothing can be written."""
        try:
            storage.write_json(self.place / BEACON, {"host": platform.node()})
        except OSError as error:
            raise _unusable(self.place, error) from error

    def remove(self) -> None:
        """Remove all of it, the beacon last."""
        for entry, is_folder in storage.list_folder(self.place):
            if is_folder:
                storage.remove_folder(entry)
            elif entry.name != BEACON:
                storage.remove(entry)
        storage.remove_folder(self.place)

    def wrapped(self, call: Call, stamps: Mapping[Location, Any], named: Sequence[str] = ()) -> OnLocalCopies:
        """Wrap a call on the machine that starts the job.

        Args:
            call: the task's function.
            stamps: of all files that the tasks of the phase read.
            named: files that settings name.
        """
        versions = {name: digest(stamp) for file, stamp in stamps.items() if (name := _name_in(self.place, file))}
        phase = digest(sorted(versions.items()))
        return OnLocalCopies(call, self.place, versions, phase, str(Path.cwd()), tuple(named))


@dataclass(frozen=True)
class OnLocalCopies:
    """A call on a machine that sees storage alone; see the top of the module.

    Attributes:
        call: the task's function.
        place: the folder of the job's files between phases in storage.
        versions: for each of them that the tasks of this phase read, by its path from there, a digest of its stamp.
        phase: a digest of these.
        here: the folder in which the command was given.
        named: files that settings name.
    """

    call: Call
    place: Location
    versions: Mapping[str, str]
    phase: str
    here: str
    named: tuple[str, ...] = ()

    def __call__(self, task: Task, context: Context) -> Any:
        """Run the task on local copies of its files; raises what `local_copies` does."""
        with self.local_copies(task) as own:
            return self.call(own, dataclasses.replace(context, scratch=self._node / _OWN))

    @property
    def _node(self) -> Path:
        """The folder of the job on this node."""
        return _node_root() / f"{self.place.name}-{digest(str(self.place))[:8]}"

    @contextlib.contextmanager
    def local_copies(self, task: Task) -> Iterator[Task]:
        """The task as this node sees it: what it reads is fetched, and what it wrote published when nothing failed.

        Raises InputError on a machine that can't read the storage, or does not see an input; RetryableError where a
        file could not be copied; WebtextError where the temporary folder is another user's.
        """
        node = self._node
        self._prepare(node)
        made = node / _MADE / (task.key or task.name)
        own = dataclasses.replace(
            task,
            reads=task.reads.moved(lambda file: self._fetched(file, node)),
            unkeyed=task.unkeyed.moved(lambda file: self._fetched(file, node)),
            writes=task.writes.moved(lambda file: self._local(file, made)),
            folder=None if task.folder is None else self._local(task.folder, made),
        )
        for file in [*own.writes.all(), own.folder]:
            if isinstance(file, Path) and file.is_relative_to(made):
                file.parent.mkdir(parents=True, exist_ok=True)
        yield own
        self._publish(task, own)
        shutil.rmtree(made, ignore_errors=True)

    def _prepare(self, node: Path) -> None:
        """Look whether the storage is there, and with the first task of a phase remove what nobody needs any more."""
        try:
            storage.read_bytes(self.place / BEACON)
        except OSError as error:
            raise _unusable(self.place, error) from error
        _go_to(self.here)
        if missing := [name for name in self.named if not storage.is_file(storage.location(name))]:
            raise _not_seen(missing[0])
        if _text_of(node / _PHASE) != self.phase:
            (node / _OWN).mkdir(parents=True, exist_ok=True)
            write_text(node / _PLACE, str(self.place), durable=False)
            _remove_finished(node)
            _keep_only(node, self.versions, self.phase)

    def _local(self, file: Location, folder: Path) -> Location:
        name = _name_in(self.place, file)
        return folder / name if name else file

    def _fetched(self, file: Location, node: Path) -> Location:
        """A file as this machine sees it; fetched, if that is not done yet."""
        name = _name_in(self.place, file)
        if not name:
            if isinstance(file, Path) and not file.is_file():
                raise _not_seen(file)
            return file
        copy, note = node / _FILES / name, node / _VERSIONS / digest(name)
        # What was written before the machine started again was never flushed.
        wanted = f"{boot_id()} {self.versions[name]} {name}"
        if _text_of(note) != wanted or not copy.is_file():
            with waiting_lock(note.with_suffix(".lock")), _retried(file):
                # Another process may have fetched it meanwhile.
                if _text_of(note) != wanted or not copy.is_file():
                    note.unlink(missing_ok=True)
                    with storage.open_for_reading(file) as source, atomic_file(copy, durable=False) as target:
                        shutil.copyfileobj(source, target, _CHUNK)
                    write_text(note, wanted, durable=False)
        return copy

    def _publish(self, task: Task, own: Task) -> None:
        """Put what the task made in its place in storage."""
        files = list(zip(own.writes.all(), task.writes.all(), strict=True))
        if own.folder is not None and task.folder is not None:
            named, place = {file for file, _ in files}, task.folder
            found = (file for file in storage.files_in(own.folder) if file not in named)
            files[:0] = [(file, place / file.name) for file in found if not file.name.startswith(".")]
        for file, place in files:
            if file != place:
                with _retried(place):
                    if isinstance(place, Path):
                        sync_file(storage.local_path(file))
                    storage.publish(storage.local_path(file), place)


def _name_in(place: Location, file: Location) -> str:
    """The path of a file between phases from the job's folder; "" for any other file."""
    prefix = f"{place}/"
    return str(file).removeprefix(prefix) if str(file).startswith(prefix) else ""


def _keep_only(node: Path, versions: Mapping[str, str], phase: str) -> None:
    """Remove the copies of files that no task of a phase reads, if no process of this machine has done so."""
    with waiting_lock(node / f"{_PHASE}.lock"):
        if _text_of(node / _PHASE) != phase:
            for note in list((node / _VERSIONS).glob("*")):
                version, _, name = _text_of(note).partition(" ")[2].partition(" ")
                if name and versions.get(name) != version:
                    note.unlink(missing_ok=True)
                    (node / _FILES / name).unlink(missing_ok=True)
            write_text(node / _PHASE, phase, durable=False)


def _text_of(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8")
    return ""


def _not_seen(file: Path | str) -> InputError:
    return InputError(
        f"the machine {platform.node()} does not see {file}: put it where all machines of the engine see it under that "
        "name; input may also be in object storage."
    )


def _unusable(place: Location, error: OSError) -> InputError:
    return InputError(
        f"the machine {platform.node()} can't use {hide_credentials(str(place))} ({error}): give a --shared-scratch "
        "that every machine of the engine can read and write."
    )


def _remove_finished(node: Path) -> None:
    """Remove what jobs left on this machine whose folder in storage is gone: they are done."""
    for folder in list(node.parent.iterdir()):
        if folder != node:
            # What can't be looked at stays.
            with contextlib.suppress(OSError, ValueError, InputError):
                place = storage.location((folder / _PLACE).read_text(encoding="utf-8"))
                if not storage.is_file(place / BEACON):
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _retried(place: Location) -> Iterator[None]:
    """Have the engine try a task again that could not copy a file."""
    try:
        yield
    except OSError as error:
        name = hide_credentials(str(place))
        raise RetryableError(f"{name} could not be copied on {platform.node()} ({error})") from error
