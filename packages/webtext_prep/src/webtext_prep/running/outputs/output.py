"""The output of a job: made its own before anything is written, cleared of what does not belong there, and recorded."""

from __future__ import annotations

import contextlib
import datetime
import platform
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from command_kit import hide_credentials, write_json, write_text
from webtext_prep import storage
from webtext_prep.documents.folders.stage_record import STATE, files_by_record, lineage_of, stage_folder
from webtext_prep.errors import InputError
from webtext_prep.running.outputs import lease, ownership
from webtext_prep.running.outputs.markers import digest
from webtext_prep.running.stage import DROPPED, Outcome, Stage
from webtext_prep.running.tasks.staging import SharedScratch
from webtext_prep.storage.stores.base import Location

SPOOLED = "stdin-"
"""What the name of spooled standard input in the state folder begins with."""
SHARED = "shared-scratch"
"""In the state folder: where in storage the files between phases lie, for the run that removes them."""
MOST_FILES = 1000
"""So many input files without a record are named in `run.json` at most."""


class Output:
    """What one stage writes, and the state beside it.

    Args:
        stage: the stage.
        place: the folder, or for a stage with `output_is_prefix` the prefix of its files.
        state: the folder of this machine for what resuming needs.
        shared: the place in storage for files between phases, where tasks do not see the state; "" for none.
    """

    def __init__(self, stage: Stage, place: Location, state: Path, shared: str = "") -> None:
        self.stage, self.place, self.state = stage, place, state
        self.scratch = state / "scratch"
        name = f"{stage.name}-{digest([str(ownership.resolved(place)), str(state.resolve())])[:16]}"
        self.shared = SharedScratch.of(shared, name) if shared else None
        self.record_path = stage.record_path(place)

    def make_own(self, settings: dict[str, Any], libraries: dict[str, str], *, restart: bool) -> None:
        """Claim it for this stage, these settings and versions, removing first, for a restart, what is there.

        Raises InputError naming the stage, the settings or the libraries that it has been made with.
        """
        if restart:
            ownership.read_claim(self.state, self.stage, self.place)
            self.remove_all()
        else:
            self.refuse_other_settings(settings, libraries)
        ownership.write_claim(self.state, self.stage, settings, libraries, self.place)
        self.remove_leftovers()

    def refuse_other_settings(self, settings: dict[str, Any], libraries: dict[str, str]) -> None:
        """Raise InputError naming the other stage, settings or libraries that it was made with. Writes nothing."""
        theirs = ownership.read_claim(self.state, self.stage, self.place)
        if theirs is not None and self._has_begun():
            ownership.refuse_other_settings(theirs, settings, self.place)
            ownership.refuse_other_libraries(theirs, libraries, self.place)

    def _has_begun(self) -> bool:
        """Whether an earlier run made anything; one that failed before leaves its settings to be corrected."""
        return (
            storage.is_file(self.record_path)
            or any(path.is_file() for path in self.scratch.rglob("*"))
            or (self.state / SHARED).is_file()
            or any((self.state / "markers").rglob("*.json"))
            or bool(self.stage.outputs_in(self.place))
        )

    def written(self) -> tuple[int, int]:
        """Bytes of the output, and of files between phases, that are there already."""
        output = sum(storage.sizes(self.stage.outputs_in(self.place)))
        return output, sum(path.stat().st_size for path in self.scratch.rglob("*") if path.is_file())

    def remove_all(self) -> None:
        """Remove everything that the stage has made, but neither the lock nor what was read from standard input."""
        self.remove_others([])
        storage.remove(self.record_path)
        self._remove_shared()
        for entry in self.state.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name not in (ownership.LOCK, ownership.CLAIM, lease.OWNER) and not entry.name.startswith(
                SPOOLED
            ):
                entry.unlink()

    def remove_others(self, outputs: Sequence[Location]) -> None:
        """Remove the stage's files that are not among `outputs`: shards of an earlier run over other inputs."""
        expected = set(outputs)
        for path in self.stage.outputs_in(self.place):
            if path not in expected:
                storage.remove(path)

    def remove_leftovers(self) -> None:
        """Remove what killed processes left half-written: those of an earlier run, or workers of this one."""
        if not self.stage.output_is_prefix:
            places = [self.place, self.place / DROPPED, *(path.parent for path in self.stage.outputs_in(self.place))]
            for folder in dict.fromkeys(places):
                storage.remove_leftovers(folder)

    def begin(self) -> None:
        """Let whoever reads it see that it is not finished, also where its state lies elsewhere."""
        if self._notice is not None:
            storage.write_json(self._notice, {"unfinished": self.stage.name})
        storage.remove(self.record_path)
        self.make_scratch()

    @property
    def between(self) -> Location:
        """The folder of the files between phases."""
        return self.scratch if self.shared is None else self.shared.place

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
            with contextlib.suppress(OSError, InputError):  # what is left costs room, and nothing else
                SharedScratch(storage.location(noted.read_text(encoding="utf-8"))).remove()
            noted.unlink()

    def finish(
        self,
        outcome: Outcome,
        identity: dict[str, Any],
        libraries: dict[str, str],
        inputs: Sequence[Location],
        **run: Any,
    ) -> None:
        """Write the record, the same for the same input and settings, and beside the state how it was made (`run`)."""
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
            "version": metadata.version("webtext-prep"),
            **run,
            **_places(self.place, inputs),
        }
        write_json(self.state / "run.json", circumstances)
        storage.write_json(self.record_path, record)
        if self._notice is not None:
            storage.remove(self._notice)

    @property
    def _notice(self) -> Location | None:
        notice = self.place / STATE
        return None if self.stage.output_is_prefix or self.state == notice else notice


def _places(output: Location, inputs: Sequence[Location]) -> dict[str, Any]:
    """Where the output and its input lie, for `run.json`: folders in their order, and files that no stage wrote."""

    def shown(place: Location) -> str:
        return hide_credentials(str(storage.local_path(place).resolve() if storage.is_local(place) else place))

    _, plain = files_by_record(inputs)
    folders = dict.fromkeys(path.parent for path in inputs)
    return {
        "output": shown(output),
        "folders": [shown(folder) for folder in dict.fromkeys(map(stage_folder, folders))],
        "files": [shown(path) for path in plain[:MOST_FILES]],
    }
