"""A run of a stage as the stage sees it: what it reads and writes, and its phases of tasks.

A task whose completion marker still holds is not run again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit import Progress
from command_kit.settings import identity as identity_of
from webtext_prep import storage
from webtext_prep.documents.folders.shards import DEFAULT_FORMAT, shard_name
from webtext_prep.documents.folders.stage_record import recorded_documents
from webtext_prep.errors import WebtextError
from webtext_prep.running import staging
from webtext_prep.running.engines.base import Engine
from webtext_prep.running.markers import Done, Markers, digest
from webtext_prep.running.staging import SharedScratch
from webtext_prep.running.tasks import Context, Files, Task
from webtext_prep.storage.lease import Lease
from webtext_prep.storage.locations import Location

DROPPED = "dropped"
"""The folder in an output with a receipt for each dropped document."""
KEPT = "kept"
"""In the state folder: what a stage leaves for its next run, over whatever input."""


@dataclass
class StageRun:
    """A run as a stage's `run` is given it, by the `Job` that a command makes of its settings.

    Attributes:
        stage: the `Stage`.
        inputs: the files to read, in order.
        output: the output folder, or for a stage that makes tokens the prefix of its files.
        state: the folder of this machine for what resuming needs.
        local_scratch: a folder of this machine for files that only one node needs.
        shared: the folder in storage for files between phases, where tasks do not see the state.
        engine: where tasks run.
        format: how the shards are written, a name of `documents.formats`.
        libraries: the versions of the libraries that the output depends on.
        lease: the right to write the output; it is looked at while tasks run.
    """

    stage: Any
    inputs: list[Location]
    output: Location
    state: Path
    local_scratch: Path
    shared: SharedScratch | None
    engine: Engine
    format: str
    libraries: dict[str, str]
    lease: Lease | None = None

    @property
    def workers(self) -> int:
        """How many tasks run at once."""
        return self.engine.workers

    @property
    def scratch(self) -> Location:
        """A folder for files between phases; it is removed when the stage is done. Tasks may see it elsewhere."""
        return self.local_scratch if self.shared is None else self.shared.place

    @property
    def kept(self) -> Path:
        """A folder of this machine for what the stage leaves for its next run over the same output."""
        return self.state / KEPT

    @property
    def is_here(self) -> bool:
        """Whether tasks run on this machine: then several may each write their part of one file."""
        return self.engine.is_here

    def shard_files(self, number: int, **more: Location | None) -> Files:
        """Files that the task writes which makes a shard: `kept` documents, the receipts of `dropped` ones, and `more`,
        in which `dropped=None` leaves the receipts out."""
        files = {"kept": self.output / shard_name(number, self.format), "dropped": self.receipts_path(number)}
        return Files(**{**files, **more})

    def receipts_path(self, number: int) -> Location:
        """The file for the receipts of what task `number` drops, JSON lines whatever the format of shards."""
        return self.output / DROPPED / shard_name(number)

    def expected_documents(self) -> int | None:
        """The number of documents in the input, where the stage that made it said so."""
        return recorded_documents(self.inputs)

    def map(
        self,
        phase: str,
        call: Callable[[Task, Context], Any],
        tasks: Sequence[Task],
        *,
        unit: str = "documents",
        total: int | None = None,
        again: Callable[[Any], bool] = lambda result: False,
    ) -> list[Any]:
        """Run `call(task, context)` for each task that is not done yet; all results in the order of the tasks.

        Args:
            phase: names the markers, and is shown with the progress where a stage has several.
            call: a method of the stage, or another picklable function; it returns a JSON-like value.
            tasks: what to do.
            unit: what `context.report` counts.
            total: how many units there are in all, where known.
            again: is asked with the result of each task that is done whether to run it once more.
        """
        markers, stamps = self._markers(phase), _stamps(tasks)
        keys = [self._key(phase, task, stamps) for task in tasks]
        done = {
            position: found
            for position, found in enumerate(markers.read_all(tasks, keys))
            if found is not None and not again(found.result)
        }
        todo = [position for position in range(len(tasks)) if position not in done]
        if todo:
            label = self.stage.name if phase == "shards" else f"{self.stage.name}: {phase}"
            earlier = sum(entry.units for entry in done.values())
            chosen = [dataclasses.replace(tasks[position], key=keys[position]) for position in todo]
            call = self._handed_over(call, chosen, stamps)
            units = dict.fromkeys(todo, 0)
            with Progress(label, unit, total, done=earlier) as progress:

                def show(position: int, count: int) -> None:
                    self.check_lease()
                    units[todo[position]] = count
                    shards = f"{len(done)}/{len(tasks)} shards" if len(tasks) > 1 else ""
                    progress.update(earlier + sum(units.values()), shards)

                for at, result in self.engine.run(call, chosen, scratch=self.local_scratch, on_progress=show):
                    position = todo[at]
                    done[position] = Done(result, units[position])
                    self._mark(markers, tasks[position], keys[position], done[position])
        return [done[position].result for position in range(len(tasks))]

    def known(self, phase: str, tasks: Sequence[Task]) -> list[Any]:
        """The results of tasks that `map` would find done, None for the others."""
        markers, stamps = self._markers(phase), _stamps(tasks)
        found = markers.read_all(tasks, [self._key(phase, task, stamps) for task in tasks])
        return [None if done is None else done.result for done in found]

    def once(self, name: str, beside: Location, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The value that `make` gives, or gave earlier for the same input and settings.

        Tasks are done as long as their outputs are there. Tasks marked here stay done without: the files of all but
        the last of its phases can be removed, and a resumed job does not make them again.

        Args:
            name: of the marker, unique in the stage.
            beside: a file between phases that `make` writes, and that stays until the stage is done.
            make: runs phases, and gives a JSON-like value.
        """
        task = Task(name, Files(inputs=self.inputs), Files(beside=beside))
        markers, key = self._markers("once"), self._key("once", task, _stamps([task]))
        done = markers.read(task, key)
        if done is None:
            done = Done(make(), 0)
            markers.write(task, key, done)
        return dict(done.result)

    def _markers(self, phase: str) -> Markers:
        return Markers(self.state / "markers" / phase, self.local_scratch if self.is_here else None)

    def _mark(self, markers: Markers, task: Task, key: str, done: Done) -> None:
        """Mark a task as done. Raises WebtextError where this machine does not see what it made on another one."""
        try:
            markers.write(task, key, done)
        except FileNotFoundError:
            if self.is_here:
                raise
            missing = staging.unseen(task.writes.all())
            if missing is not None:
                raise WebtextError(
                    f"{missing} was made on another machine, and this one does not see it: give an --output that all "
                    "machines see, such as a folder in object storage."
                ) from None
            markers.write(task, key, done)

    def _handed_over(
        self, call: Callable[[Task, Context], Any], tasks: Sequence[Task], stamps: dict[Location, Any]
    ) -> Callable[[Task, Context], Any]:
        """The call, made fit for the machines on which the engine runs it."""
        if self.is_here:
            return call
        if self.shared is None:
            return staging.OnSharedFiles.of(call, self.state)
        unknown = list({path for task in tasks for path in task.unkeyed.all() if path not in stamps})
        stamps = stamps | dict(zip(unknown, storage.stamps(unknown), strict=True))
        return self.shared.wrapped(call, stamps, [str(path) for path in self.stage.setting_files()])

    def settings(self) -> dict[str, Any]:
        """The settings that the output depends on."""
        chosen = {"format": self.format} if self.format != DEFAULT_FORMAT else {}
        return {**identity_of(self.stage), **chosen}

    def identity(self) -> dict[str, Any]:
        """All that every shard depends on besides its input."""
        return {**self.settings(), **self.stage.identity()}

    def whole_key(self, stamps: Sequence[Any]) -> str:
        """The digest of all that the whole output depends on; `stamps` are those of the inputs."""
        return self._digest([*self._of_settings(), *stamps])

    def _key(self, phase: str, task: Task, stamps: dict[Location, Any]) -> str:
        read = [stamps[path] for path in task.reads.all()]
        written = [output.name for output in task.writes.all()]
        return self._digest(self._of_settings(), phase, read, written, task.options)

    def _of_settings(self) -> list[Any]:
        """The stamps of the files that settings name."""
        return [storage.stamp(path) for path in self.stage.setting_files()]

    def _digest(self, *parts: Any) -> str:
        """The digest of the stage, its settings and libraries, and of `parts`."""
        libraries = [self.libraries] if self.libraries else []
        return digest([self.stage.name, self.stage.version, self.identity(), *parts, *libraries])

    def check_lease(self) -> None:
        """Raise WebtextError if another command has taken the output over."""
        if self.lease is not None:
            self.lease.check()


def _stamps(tasks: Iterable[Task]) -> dict[Location, Any]:
    """The stamps of all files that are part of the tasks' identities."""
    paths = list(dict.fromkeys(path for task in tasks for path in task.reads.all()))
    return dict(zip(paths, storage.stamps(paths), strict=True))
