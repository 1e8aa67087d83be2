"""Runs one stage over its inputs: skips what is done, tallies, shows progress, and leaves only complete files.

A stage's work is one or more phases of tasks (`running.tasks`), which an engine (`running.engines`) runs. A task whose
completion marker still holds is not run again.

The output folder holds `part-00000.jsonl.zst`, ..., `stage.json` (settings and tallies, written last; the same bytes
for the same input and settings), with `--keep-dropped` the folder `dropped/`, and the state in `.state/`: the lock, the
claim, the markers, `run.json` (where, when and how long it ran last), and while it runs `scratch/`. Inputs and output
may be URLs; the state is always a folder of this machine.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from command_kit import Progress, hide_credentials
from command_kit.machine import Machine
from command_kit.settings import identity
from webtext_prep import storage
from webtext_prep.documents.folders.inputs import spool_standard_input
from webtext_prep.documents.folders.sampling import Sample, take_sample
from webtext_prep.documents.folders.shards import DEFAULT_FORMAT, check_format, shard_name
from webtext_prep.documents.folders.stage_record import read_record, recorded_documents
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running import lease, staging
from webtext_prep.running.engines.base import Engine
from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.markers import Done, Markers, OutputMarker, digest
from webtext_prep.running.output import Output, locked, refuse_foreign_output
from webtext_prep.running.preflight import Estimate, compare
from webtext_prep.running.processes import allow_open_files, versions_of
from webtext_prep.running.stage import DROPPED, Stage
from webtext_prep.running.summary import Findings, Summary
from webtext_prep.running.tasks import Context, Tally, Task
from webtext_prep.storage import is_local
from webtext_prep.storage.stores.base import Location


class Job:
    """One run of one stage: where it reads and writes, and how its tasks are run.

    Args:
        stage: the stage with its settings.
        inputs: the files to read, in order.
        output: the output folder, or for `tokenize` the prefix of its files.
        state: the folder of this machine for what resuming needs; beside the output if None.
        workers: how many tasks run at once.
        keep_dropped: write the dropped documents, with their reasons, to `dropped/`.
        restart: start from scratch instead of resuming.
        engine: where tasks run; processes of this machine by default.
        format: how the shards are written, a name of `documents.formats`.
        standard_input: also read standard input, after `inputs`.
        problems: sentences about the input that the summary is to show (files that were not read).
        space_check: whether to stop before a run that will not fit this machine.
        shared_scratch: a place in storage for files between phases, for an engine whose tasks do not see the state.
        machine: what there is of disk and memory.
    """

    def __init__(
        self,
        stage: Stage,
        inputs: Sequence[Location],
        output: Location,
        *,
        state: Path | None = None,
        workers: int = 1,
        keep_dropped: bool = False,
        restart: bool = False,
        engine: Engine | None = None,
        format: str = DEFAULT_FORMAT,
        standard_input: bool = False,
        problems: Iterable[str] = (),
        space_check: bool = True,
        machine: Machine | None = None,
        shared_scratch: str = "",
    ) -> None:
        if workers < 1:
            raise InputError(f"--workers must be at least 1, not {workers}.")
        self.stage, self.inputs, self.output = stage, list(inputs), output
        self.workers, self.keep_dropped, self.restart = workers, keep_dropped, restart
        self.engine = engine or LocalEngine(workers)
        if shared_scratch and self.engine.is_here:
            raise InputError(
                f"--shared-scratch is for tasks on other machines, and --engine {self.engine.name} runs them here: "
                "leave it out."
            )
        self._shared_scratch = shared_scratch
        self.format = check_format(format)
        if state is None and not is_local(output):
            raise InputError(f"--output {output} is remote: give a local folder for its state with --state DIR.")
        beside = stage.state_folder(output)
        # One folder has one name here, however --state spells it.
        is_beside = state is None or (is_local(beside) and storage.local_path(beside).resolve() == state.resolve())
        self.state = cast(Path, beside if is_beside else state)
        self._own = Output(stage, output, self.state, shared_scratch)
        self.record_path = self._own.record_path
        self._space_check, self._machine = space_check, machine or Machine()
        self._standard_input, self._problems = standard_input, list(problems)
        self._finished = OutputMarker(self.state / "complete.json")
        self._lease: lease.Lease | None = None
        self._libraries = versions_of(stage.libraries_used())

    # What stages ask for

    @property
    def scratch(self) -> Location:
        """A folder for files between phases; it is removed when the stage is done."""
        return self._own.between

    @property
    def is_here(self) -> bool:
        """See `Run`."""
        return self.engine.is_here

    @property
    def is_flushed(self) -> bool:
        """See `Run`: tasks on other machines flush or publish what they make."""
        return not self.engine.is_here

    def shard_outputs(self, number: int) -> tuple[Location, ...]:
        """The outputs of the task that makes shard `number`: the shard, and with `--keep-dropped` what it dropped."""
        dropped = self.dropped_path(number)
        return (self.output / shard_name(number, self.format), *([dropped] if dropped is not None else []))

    def dropped_path(self, number: int) -> Location | None:
        """Where the dropped documents of shard `number` belong, or None without `--keep-dropped`."""
        return self.output / DROPPED / shard_name(number, self.format) if self.keep_dropped else None

    def expected_documents(self) -> int | None:
        """How many documents the input holds, where the stage that made it said so."""
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
                    self._check_lease()
                    units[todo[position]] = count
                    shards = f"{len(done)}/{len(tasks)} shards" if len(tasks) > 1 else ""
                    progress.update(earlier + sum(units.values()), shards)

                for at, result in self.engine.run(call, chosen, scratch=self._own.scratch, on_progress=show):
                    position = todo[at]
                    done[position] = Done(result, units[position])
                    self._mark(markers, tasks[position], keys[position], done[position])
        return [done[position].result for position in range(len(tasks))]

    def known(self, phase: str, tasks: Sequence[Task]) -> list[Any]:
        """The results of those tasks that `map` would find done, None of the others."""
        markers, stamps = self._markers(phase), _stamps(tasks)
        found = markers.read_all(tasks, [self._key(phase, task, stamps) for task in tasks])
        return [None if done is None else done.result for done in found]

    def once(self, name: str, beside: Location, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` gives, or gave earlier for the same input and settings.

        Tasks are done as long as their outputs are there. What is marked here stays done without: the files of all but
        the last of its phases can be removed, and a resumed job does not make them again.

        Args:
            name: of the marker, unique in the stage.
            beside: a file between phases that `make` writes, and that stays until the stage is done.
            make: runs phases, and gives a JSON-like value.
        """
        task = Task(name, tuple(self.inputs), (beside,))
        markers, key = self._markers("once"), self._key("once", task, _stamps([task]))
        done = markers.read(task, key)
        if done is None:
            done = Done(make(), 0)
            markers.write(task, key, done)
        return dict(done.result)

    def _markers(self, phase: str) -> Markers:
        return Markers(self.state / "markers" / phase, None if self.is_flushed else self._own.scratch)

    def _mark(self, markers: Markers, task: Task, key: str, done: Done) -> None:
        """Mark a task as done. Raises WebtextError where this machine does not see what it made on another one."""
        try:
            markers.write(task, key, done)
        except FileNotFoundError:
            if self.engine.is_here:
                raise
            missing = staging.unseen(task.outputs)
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
        if self.engine.is_here:
            return call
        if self._own.shared is None:
            return staging.OnSharedFiles.of(call, self.state)
        unknown = list({path for task in tasks for path in task.reads if path not in stamps})
        stamps = stamps | dict(zip(unknown, storage.stamps(unknown), strict=True))
        return self._own.shared.wrapped(call, stamps, [str(path) for path in self.stage.setting_files()])

    # How a job runs

    def run(self) -> Summary:
        """Do what is left to do and return the summary.

        Raises InputError if the output belongs to another stage, other settings, or a command at work; WebtextError
        if nothing comes out.
        """
        start = time.monotonic()
        allow_open_files()
        place = lease.lease_place(self.output, is_prefix=self.stage.output_is_prefix)
        lease.refuse_if_taken(place, self.output, self.state)
        refuse_foreign_output(self.stage, self.output, self.state, self.inputs)
        with locked(self.state, self.output), lease.held(place, self.output, self.state) as self._lease:
            if self.restart:
                self.engine.abandon(self._own.scratch)
            self._own.make_own(self._settings(), self._libraries, restart=self.restart)
            if self._standard_input:
                self.inputs.append(spool_standard_input(self.state))
            stamps = storage.stamps(self.inputs)
            key = self._whole_key(stamps)
            done = self._complete(key)
            if done is not None:
                self._own.remove_scratch()  # a kill may have come just before this
                return done
            estimate = self.estimate(self.sample([stamp[1] for stamp in stamps]))
            estimate.announce(is_checked=self._space_check)
            self._finished.remove()
            self._own.begin()
            outcome = self.stage.run(self)
            for sentence in self._problems:
                outcome.tally.problem(sentence)
            self._check(outcome.tally)
            self._check_lease()
            self._own.remove_others(outcome.outputs)
            self._own.remove_leftovers()
            seconds = round(time.monotonic() - start, 3)
            needs = dataclasses.asdict(estimate.needs)
            run = {"seconds": seconds, "engine": self.engine.name, "workers": self.workers, "estimate": needs}
            self._own.finish(outcome, self._identity(), self._libraries, self.inputs, **run)
            self._finished.write(key, outcome.outputs, self.record_path.parent)
            self._own.remove_scratch()
        return self._summary(outcome.tally, outcome.facts, seconds=time.monotonic() - start)

    def check_output(self) -> None:
        """Raise InputError where `run` would refuse its output: another's, or without a restart of other settings or
        libraries."""
        refuse_foreign_output(self.stage, self.output, self.state, self.inputs)
        if not self.restart:
            self._own.refuse_other_settings(self._settings(), self._libraries)

    def preview(self) -> Findings:
        """What the stage would do. Nothing is written but a folder in the state, which is removed at the end.

        An interrupted preview resumes. Raises InputError as `run` does, also where it would not fit this machine.
        """
        allow_open_files()
        refuse_foreign_output(self.stage, self.output, self.state, self.inputs)
        with locked(self.state, self.output):
            self.state = self.state / "preview"
            self._own = Output(self.stage, self.output, self.state, self._shared_scratch)
            self.estimate(self.sample()).announce(is_checked=self._space_check)
            self._own.make_scratch()
            found = self.stage.preview(self)
            self._own.remove_scratch()
            shutil.rmtree(self.state, ignore_errors=True)
        return found

    def sample(self, sizes: Sequence[int] | None = None) -> Sample:
        """What the input holds, about; `sizes` are the bytes of each file, if they are known already."""
        sizes = storage.sizes(self.inputs) if sizes is None else sizes
        is_one = self.stage.is_one_document
        sample = take_sample(self.inputs, sizes, format_name=self.format, is_one_document=is_one)
        documents = self.expected_documents()
        return sample if documents is None else dataclasses.replace(sample, documents=documents)

    def estimate(self, sample: Sample) -> Estimate:
        """What a run over input like `sample` needs of disk and memory, and what there is. Writes nothing."""
        needs_of = self.stage.preview_needs if self.stage.is_preview else self.stage.needs
        needs = needs_of(sample, self.workers)
        if not self.engine.is_here:
            needs = dataclasses.replace(needs, memory=0)
        return compare(
            self.stage.name,
            self.stage.unit,
            needs,
            output=self.output,
            state=self.state,
            written=self._own.written(),
            machine=self._machine,
        )

    def _summary(self, tally: Tally, facts: dict[str, Any], *, seconds: float = 0.0, resumed: bool = False) -> Summary:
        unit = self.stage.unit
        return Summary(
            self.stage.name, hide_credentials(str(self.output)), tally, facts, seconds, resumed=resumed, unit=unit
        )

    def _settings(self) -> dict[str, Any]:
        chosen = {"format": self.format} if self.format != DEFAULT_FORMAT else {}
        return {**identity(self.stage), **chosen, "keep_dropped": self.keep_dropped}

    def _identity(self) -> dict[str, Any]:
        """What every shard depends on besides its input."""
        return {**self._settings(), **self.stage.identity()}

    def _key(self, phase: str, task: Task, stamps: dict[Location, Any]) -> str:
        return digest(
            [
                self.stage.name,
                self.stage.version,
                self._identity(),
                [storage.stamp(path) for path in self.stage.setting_files()],
                phase,
                [stamps[path] for path in task.inputs],
                [output.name for output in task.outputs],
                task.options,
                *self._of_libraries,
            ]
        )

    def _whole_key(self, stamps: Sequence[Any]) -> str:
        of_settings = [storage.stamp(path) for path in self.stage.setting_files()]
        identity = [self.stage.name, self.stage.version, self._identity(), [*of_settings, *stamps]]
        return digest([*identity, *self._of_libraries])

    @property
    def _of_libraries(self) -> list[dict[str, str]]:
        """What keys say of them: nothing for a stage that depends on none."""
        return [self._libraries] if self._libraries else []

    def _complete(self, key: str) -> Summary | None:
        """The summary of an earlier run, if all of it still stands."""
        if not self._finished.holds(key, self.record_path.parent) or self.stage.wants_another_run(self):
            return None
        record = read_record(self.record_path.parent, self.record_path.name)
        return None if record is None else self._summary(Tally.from_dict(record), record.get("facts", {}), resumed=True)

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _check(self, tally: Tally) -> None:
        if not tally.is_balanced:
            came = f"{tally.read} in" + (f", {tally.added} added" if tally.added else "")
            raise WebtextError(
                f"internal error: {came}, {tally.kept} out, {tally.dropped.total()} dropped do not add up."
            )
        unit = self.stage.unit
        if tally.read == 0:
            names = ", ".join(str(path) for path in self.inputs[:3])
            raise InputError(f"{self.stage.name}: no {unit} in the input ({names}): check what made it.")
        if tally.kept == 0:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in tally.dropped.most_common())
            problems = " " + " ".join(tally.problems[:1]) if tally.problems else ""
            raise WebtextError(
                f"{self.stage.name}: none of the {tally.read:,} {unit} was kept ({reasons}): "
                f"{self.stage.advice(tally)}.{problems}"
            )


def _stamps(tasks: Iterable[Task]) -> dict[Location, Any]:
    """The stamps of all inputs."""
    paths = list(dict.fromkeys(path for task in tasks for path in task.inputs))
    return dict(zip(paths, storage.stamps(paths), strict=True))
