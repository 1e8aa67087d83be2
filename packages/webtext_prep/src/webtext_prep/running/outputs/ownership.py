"""Who owns an output: one command at a time, one stage, one set of settings; unexpected files are left alone."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from command_kit import hide_credentials, parse_json, write_json
from command_kit.command import print_warning
from command_kit.settings import changes
from webtext_prep import storage
from webtext_prep.errors import InputError
from webtext_prep.running.outputs.lease import LEASE
from webtext_prep.running.stage import Stage
from webtext_prep.running.versions import changed
from webtext_prep.storage import is_local
from webtext_prep.storage.stores.base import Location

try:
    import fcntl
except ImportError:  # not on this system: there two commands on one folder are not detected
    fcntl = None  # type: ignore[assignment]

CLAIM = "job.json"
"""In the state folder: the stage and settings that own the output, written before anything else."""
LOCK = "lock"
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def locked(
    state: Path, output: Location | Path, who: str = "webtext command", flag: str = "--output"
) -> Iterator[None]:
    """Keep a second command off the same output while this one works on it. Raises InputError if one is at work.

    The lock is a file in `state`. The message calls what is at work `who`, and its output by `flag`.
    """
    state.mkdir(parents=True, exist_ok=True)
    with (state / LOCK).open("w") as lock:
        if fcntl is not None:
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


def refuse_foreign_output(stage: Stage, output: Location, state: Path, inputs: Sequence[Location] = ()) -> None:
    """Raise InputError where a run of `stage` would write among, or over, files that no such run has made."""
    if state.exists() and not state.is_dir():
        raise InputError(f"{output} was begun with its state elsewhere: give the same --state DIR again.")
    is_claimed = (state / CLAIM).is_file()
    read_claim(state, stage, output)
    if stage.output_is_prefix:
        _refuse_foreign_prefix(stage, output, is_claimed)
        return
    if storage.is_file(output):
        raise InputError(f"--output {output} is a file: give a folder.")
    home, own = str(resolved(output)), str(state.resolve())
    for folder in {path.parent for path in inputs}:
        place = str(resolved(folder))
        if _is_within(place, home) and not _is_within(place, own):
            raise InputError(f"input {folder} lies in the output folder itself: give another --output.")
    if not is_claimed:
        unexpected = [entry.name for entry, _ in storage.list_folder(output) if entry != state and entry.name != LEASE]
        if unexpected:
            shown = ", ".join(unexpected[:3]) + (", ..." if len(unexpected) > 3 else "")
            raise InputError(f"--output {output} holds other files ({shown}): give an empty or new folder.")


def _is_within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder}/")


def resolved(place: Location) -> Location:
    """The one name of a place, however it was given."""
    return storage.local_path(place).resolve() if is_local(place) else place


def _refuse_foreign_prefix(stage: Stage, output: Location, is_claimed: bool) -> None:
    if storage.is_folder(output) or str(output).endswith(("/", "\\")):
        raise InputError(f"--output {output} is a folder: give a file name prefix, such as {output / 'corpus'}.")
    unexpected = [] if is_claimed else [path.name for path in stage.outputs_in(output)]
    if unexpected:
        raise InputError(
            f"{' and '.join(unexpected)} in {output.parent} were not made by this command: give another --output, "
            "or remove them."
        )


def read_claim(state: Path, stage: Stage, output: Location) -> dict[str, Any] | None:
    """The stage and settings that own an output, or None. Raises InputError if the output or its state is another's."""
    claim: dict[str, Any] | None = None
    with contextlib.suppress(OSError, ValueError):
        claim = parse_json((state / CLAIM).read_bytes())
    if claim is not None and claim["stage"] != stage.name:
        raise InputError(f"{output} is the output of `webtext {claim['stage']}`: give another --output, or remove it.")
    if claim is not None and claim.get("output") != _output_elsewhere(state, stage, output):
        owner = claim.get("output", state.parent)
        raise InputError(f"{state} holds the state of another output, {owner}: give another --state DIR.")
    return claim


def _output_elsewhere(state: Path, stage: Stage, output: Location) -> str | None:
    """Which output a state belongs to, where that does not follow from its place; beside it, both may be moved."""
    return None if state == stage.state_folder(output) else hide_credentials(str(resolved(output)))


def refuse_other_settings(claim: dict[str, Any], settings: dict[str, Any], output: Location) -> None:
    """Raise InputError naming what differs between the settings of an output and those of this run.

    Whether dropped documents are written may differ: the output is made again, the same but for those.
    """
    theirs, ours = ({**known, "keep_dropped": False} for known in (claim["settings"], settings))
    if theirs != ours:
        raise InputError(
            f"{output} was made with other settings ({changes(theirs, ours)}): give another --output, or --restart to "
            "make it again from scratch."
        )


def refuse_other_libraries(claim: dict[str, Any], libraries: dict[str, str], output: Location) -> None:
    """Raise InputError naming the libraries of which an output was made with other versions than those of this run."""
    if differing := changed(claim.get("libraries", {}), libraries):
        raise InputError(
            f"{output} was made with {differing}, and two versions may say two things of one document: install that "
            "version again, give another --output, or --restart to make it again from scratch."
        )


def write_claim(
    state: Path, stage: Stage, settings: dict[str, Any], libraries: dict[str, str], output: Location
) -> None:
    """Record who owns the output, and where it is, if its state does not lie beside it."""
    elsewhere = _output_elsewhere(state, stage, output)
    place = {} if elsewhere is None else {"output": elsewhere}
    used = {"libraries": libraries} if libraries else {}
    write_json(state / CLAIM, {"stage": stage.name, "settings": settings, **used, **place})
