"""A job: one command over one output. It skips finished tasks, tallies, and leaves only complete files.

A stage's work is one or more phases of tasks (`running.tasks`), which the job has an engine run (`Job.map`). A task
whose completion marker still holds is not run again.

The output folder holds `part-00000.jsonl.zst`, ..., `stage.json` (settings and tallies, written last; the same bytes
for the same input and settings), the folder `dropped/` with a receipt for each dropped document, and the state in
`.state/`: the lock, the claim, the markers, `run.json` (where, when and how long it ran last), and while it runs
`scratch/`. Inputs and output may be URLs; the state is always a folder of this machine.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import functools
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from command_kit import CommandError, Progress, hide_credentials, write_json, write_text
from command_kit.atomic import remove_leftovers_of
from command_kit.machine import Machine
from command_kit.settings import identity as identity_of
from webtext_prep import storage
from webtext_prep.documents.folders.inputs import spool_standard_input
from webtext_prep.documents.folders.sampling import Sample, take_sample
from webtext_prep.documents.folders.shards import DEFAULT_FORMAT, DROPPED, check_format, shard_name
from webtext_prep.documents.folders.stage_record import (
    COMPLETE,
    RUN,
    lineage_of,
    places_of,
    read_record,
    record_place,
    recorded_documents,
    state_place,
)
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running import staging
from webtext_prep.running.claims import (
    KEPT,
    MARKERS,
    SCRATCH,
    SHARED,
    Claim,
    locked,
    notice_place,
    remove_shared_scratch,
)
from webtext_prep.running.engines.base import Call, Engine
from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.estimates import Estimate, compare
from webtext_prep.running.processes import allow_open_files, versions_of
from webtext_prep.running.settings import RunSettings
from webtext_prep.running.stage import Outcome, Stage
from webtext_prep.running.summary import Findings, Summary
from webtext_prep.running.tasks import Done, Files, Markers, OutputMarker, Tally, Task, digest
from webtext_prep.storage import lease, location
from webtext_prep.storage.locations import Location


class Job:
    """One run of one stage, as settings say.

    Args:
        stage: the stage with its settings.
        settings: the common ones of all stages. `-` among the input is standard input, which is read last.
        engine: where tasks run; processes of this machine by default.
        restart: start from scratch instead of resuming.
        machine: what there is of disk and memory; this one by default.

    Attributes:
        inputs: the files to read, in order.
        output: the output folder, or for a stage that makes tokens the prefix of its files.
        state: the folder of this machine for what resuming needs.
        format: how the shards are written, a name of `documents.formats`.
        notes: sentences about the input that the summary is to show (files that are not read).

    Raises InputError for input that is not there, and for settings that do not go together.
    """

    def __init__(
        self,
        stage: Stage,
        settings: RunSettings,
        engine: Engine | None = None,
        *,
        restart: bool = False,
        machine: Machine | None = None,
    ) -> None:
        if settings.workers < 0:
            raise InputError(f"--workers must not be negative (0 means all cores), but is {settings.workers}.")
        self.stage, self.settings, self.restart = stage, settings, restart
        self.output = output = location(settings.output, is_written=True)
        reads = stage.reads
        given = [*reads.before, *(path for path in settings.input if path != "-"), *reads.after]
        self.inputs, self.notes = reads.find(given, output) if given else ([], [])
        self.engine = engine or LocalEngine(settings.workers)
        if settings.shared_scratch and self.engine.is_here:
            raise InputError(
                f"--shared-scratch is for tasks on other machines, and --engine {self.engine.name} runs them here: "
                "leave it out."
            )
        if stage.is_one_process and not self.engine.is_here:
            raise InputError(
                f"webtext {stage.name} works in one process of this machine: leave out --engine {self.engine.name} "
                "(for a cluster give --save-pages, and run webtext extract there)."
            )
        if stage.is_on_this_machine:
            self.engine, self.settings = LocalEngine(settings.workers), dataclasses.replace(settings, shared_scratch="")
        self.format = check_format(settings.format or stage.writes.format)
        beside = state_place(output, is_prefix=stage.writes.is_prefix)
        state = Path(settings.state) if settings.state else beside
        if not isinstance(state, Path):
            raise InputError(f"--output {output} is remote: give a local folder for its state with --state DIR.")
        # One folder has one name here, however --state spells it.
        self.state = beside if isinstance(beside, Path) and beside.resolve() == state.resolve() else state
        self._claim = Claim(stage, output, self.state)
        self._libraries = versions_of(stage.libraries)
        self._machine, self._finished = machine or Machine(), OutputMarker(self.state / COMPLETE)
        self._lease: lease.Lease | None = None

    # What a stage's `run` works with

    @property
    def workers(self) -> int:
        """How many tasks run at once."""
        return self.engine.workers

    @property
    def is_here(self) -> bool:
        """Whether tasks run on this machine: then several may each write their part of one file."""
        return self.engine.is_here

    @property
    def scratch(self) -> Location:
        """A folder for files between phases; it is removed when the stage is done. Tasks may see it elsewhere."""
        return self._local_scratch if self._shared is None else self._shared.place

    @property
    def kept(self) -> Path:
        """A folder of this machine for what the stage leaves for its next run over the same output."""
        return self.state / KEPT

    def shard_tasks(self, writes: Callable[[int], Files], **reads: Location) -> list[Task]:
        """A task for each shard of the input: what it writes, by its number, and what it reads besides."""
        return [Task(f"part-{at:05}", Files(**reads, shard=path), writes(at)) for at, path in enumerate(self.inputs)]

    def shard_files(self, number: int, **more: Location | None) -> Files:
        """Files that the task writes which makes a shard: `kept` documents, the receipts of `dropped` ones, and `more`,
        in which `dropped=None` leaves the receipts out."""
        files = {"kept": self.output / shard_name(number, self.format), "dropped": self.receipts_path(number)}
        return Files(**{**files, **more})

    def receipts_path(self, number: int) -> Location:
        """The file for the receipts of what task `number` drops, JSON lines whatever the format of shards."""
        return self.output / DROPPED / shard_name(number)

    @functools.cached_property
    def documents(self) -> int | None:
        """The number of documents in the input, where the stage that made it said so."""
        return recorded_documents(self.inputs)

    def map(
        self,
        phase: str,
        call: Call,
        tasks: Sequence[Task],
        *,
        unit: str = "documents",
        total: int | None = None,
        again: Callable[[Any], bool] = lambda result: False,
        is_led: bool = False,
    ) -> list[Any]:
        """Run `call(task, context)` for each task that is not done yet; all results in the order of the tasks.

        Args:
            phase: names the markers, and is shown with the progress where a stage has several.
            call: a method of the stage, or another picklable function; it returns a JSON-like value.
            tasks: what to do.
            unit: what `context.report` counts.
            total: how many units there are in all, where known.
            again: is asked with the result of each task that is done whether to run it once more.
            is_led: whether the tasks are phases of this job, which `call` has it map: they run in this process, and
                once they are done the files of these phases may be removed.
        """
        markers = Markers(self.state / MARKERS / phase, self._local_scratch if self.is_here else None)
        tasks = markers.keyed(tasks, [*self._made_of(), phase])
        found = enumerate(markers.read_all(tasks))
        done = {at: known for at, known in found if known is not None and not again(known.result)}
        todo = [at for at in range(len(tasks)) if at not in done]
        if not todo:
            return [done[at].result for at in range(len(tasks))]
        label = self.stage.name if phase == "shards" else f"{self.stage.name}: {phase}"
        earlier, units = sum(entry.units for entry in done.values()), dict.fromkeys(todo, 0)
        chosen = [tasks[at] for at in todo]
        engine, call = (LocalEngine(1), call) if is_led else (self.engine, self._brought_to_tasks(call, chosen))
        with contextlib.nullcontext() if is_led else Progress(label, unit, total, done=earlier) as progress:

            def show(position: int, count: int) -> None:
                self._check_lease()
                units[todo[position]] = count
                if progress is not None:
                    shards = f"{len(done)}/{len(tasks)} shards" if len(tasks) > 1 else ""
                    progress.update(earlier + sum(units.values()), shards)

            for position, result in engine.run(call, chosen, scratch=self._local_scratch, on_progress=show):
                at = todo[position]
                done[at] = Done(result, units[at])
                self._mark(markers, tasks[at], done[at])
        return [done[at].result for at in range(len(tasks))]

    def _mark(self, markers: Markers, task: Task, done: Done) -> None:
        """Mark a task as done. Raises WebtextError where this machine does not see what it made on another one."""
        try:
            markers.write(task, done)
        except FileNotFoundError:
            missing = None if self.is_here else staging.unseen(task.writes.all())
            if self.is_here:
                raise
            if missing is not None:
                raise WebtextError(
                    f"{missing} was made on another machine, and this one does not see it: give an --output that all "
                    "machines see, such as a folder in object storage."
                ) from None
            markers.write(task, done)

    def _brought_to_tasks(self, call: Call, tasks: Sequence[Task]) -> Call:
        """The call, made fit for the machines on which the engine runs it."""
        if self.is_here:
            return call
        if self._shared is None:
            return staging.OnSharedFiles.of(call, self.state)
        read = list({path for task in tasks for path in (*task.reads.all(), *task.unkeyed.all())})
        stamps = dict(zip(read, storage.stamps(read), strict=True))
        return self._shared.wrapped(call, stamps, [str(path) for path in self.stage.setting_files()])

    # What it depends on

    def _settings(self) -> dict[str, Any]:
        """The settings that the output depends on."""
        chosen = {"format": self.format} if self.format != DEFAULT_FORMAT else {}
        return {**identity_of(self.stage), **chosen}

    def _identity(self) -> dict[str, Any]:
        """All that every shard depends on besides its input and files that settings name."""
        return {**self._settings(), **self.stage.identity()}

    def _made_of(self) -> list[Any]:
        """What each marker's key begins with: all that every shard depends on besides its input."""
        files = [storage.stamp(path) for path in self.stage.setting_files()]
        return [self.stage.name, self.stage.version, self._identity(), self._libraries, files]

    # The command

    def run(self) -> Summary:
        """Do the rest, also in the runs that belong to this one, and return the summary.

        Raises InputError if the output belongs to another stage, other settings, or a command at work; WebtextError
        if nothing comes out.
        """
        summary, own = self._run(), self.settings
        for stage, given, output in self.stage.companions(own.input, own.output):
            state = f"{own.state}-{location(output).name}" if own.state else ""
            its = dataclasses.replace(own, input=tuple(given), output=output, state=state)
            job = Job(stage, its, self.engine, restart=self.restart, machine=self._machine)
            summary.companions.append(job.run())
        return summary

    def _run(self) -> Summary:
        start, stage = time.monotonic(), self.stage
        own = self.settings
        companions = [location(output).name for _, _, output in stage.companions(own.input, own.output)]
        allow_open_files()
        place = lease.lease_place(self.output, is_prefix=stage.writes.is_prefix)
        lease.refuse_if_taken(place, self.output, self.state)
        self._claim.refuse_foreign(self.inputs)
        with locked(self.state, self.output), lease.held(place, self.output, self.state) as self._lease:
            is_new = self._claim.take(self._settings(), self._libraries, companions, restart=self.restart)
            self._remove_leftovers()
            outcome = None
            try:
                if "-" in own.input:
                    self.inputs.append(spool_standard_input(self.state))
                stamps = storage.stamps(self.inputs)
                key = digest([*self._made_of(), *stamps])
                done = self._complete(key)
                if done is not None:
                    self._renew_lineage()
                    self._remove_scratch()  # a kill may have come just before this
                    self._claim.remove_companions(companions)
                    return done
                estimate = self.estimate(self.sample([stamp[1] for stamp in stamps]))
                estimate.announce(is_checked=own.space_check)
                self._begin()
                self._claim.remove_companions(companions)
                outcome = stage.run(self)
                for sentence in self.notes:
                    outcome.tally.problem(sentence)
                outcome.check(stage.name, stage.reads.unit, self.inputs)
            except CommandError:
                if is_new:
                    self._claim.withdraw(outcome)
                raise
            self._check_lease()
            self._remove_others(outcome.outputs)
            self._remove_leftovers()
            self._record(outcome, stamps, estimate, round(time.monotonic() - start, 3))
            self._finished.write(key, outcome.outputs, self._record_path.parent)
            self._remove_scratch()
        return self._summary(outcome.tally, outcome.facts, seconds=time.monotonic() - start)

    def check_output(self) -> None:
        """Raise InputError where `run` would refuse its output: another's, or without a restart of other settings or
        libraries."""
        self._claim.refuse_foreign(self.inputs)
        if not self.restart:
            self._claim.refuse_other_settings(self._settings(), self._libraries)

    def preview(self) -> Findings:
        """Say what the stage would do. Nothing is written but a folder in the state, which is removed at the end.

        An interrupted preview resumes. Raises InputError as `run` does, also where it would not fit this machine.
        """
        allow_open_files()
        self._claim.refuse_foreign(self.inputs)
        with locked(self.state, self.output):
            own = copy.copy(self)
            own.state = self.state / "preview"
            own.estimate(own.sample()).announce(is_checked=self.settings.space_check)
            own._make_scratch()
            found = self.stage.preview(own)
            own._remove_scratch()
            shutil.rmtree(own.state, ignore_errors=True)
        return found

    def sample(self, sizes: Sequence[int] | None = None) -> Sample:
        """A sample of the input; `sizes` are the bytes of each file, if they are known already."""
        sizes = storage.sizes(self.inputs) if sizes is None else sizes
        is_one = self.stage.reads.is_one_document
        sample = take_sample(self.inputs, sizes, format_name=self.format, is_one_document=is_one)
        return sample if self.documents is None else dataclasses.replace(sample, documents=self.documents)

    def estimate(self, sample: Sample) -> Estimate:
        """The disk and memory that a run over input like `sample` needs, and what there is. Writes nothing."""
        stage, needs = self.stage, self.stage.needs(sample, self.workers)
        if not self.is_here:
            needs = dataclasses.replace(needs, memory=0)
        # What is there already of the output, and of files between phases and for the next run.
        output = sum(storage.sizes(stage.writes.files_in(self.output)))
        folders = (self._local_scratch, self.kept)
        others = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
        return compare(
            stage.name,
            stage.reads.unit,
            needs,
            output=self.output,
            state=self.state,
            written=(output, others),
            machine=self._machine,
        )

    def _complete(self, key: str) -> Summary | None:
        """The summary of an earlier run, if all of it still stands."""
        place = self._record_path
        if not self._finished.holds(key, place.parent) or self.stage.wants_another_run(self):
            return None
        record = read_record(place.parent, place.name)
        return None if record is None else self._summary(Tally.from_dict(record), record.get("facts", {}), resumed=True)

    def _summary(self, tally: Tally, facts: dict[str, Any], *, seconds: float = 0.0, resumed: bool = False) -> Summary:
        output, unit = hide_credentials(str(self.output)), self.stage.reads.unit
        return Summary(self.stage.name, output, tally, facts, seconds, resumed=resumed, unit=unit)

    def _check_lease(self) -> None:
        """Raise WebtextError if another command has taken the output over."""
        if self._lease is not None:
            self._lease.check()

    # Its files

    @property
    def _local_scratch(self) -> Path:
        """A folder of this machine for files that only one node needs."""
        return self.state / SCRATCH

    @property
    def _shared(self) -> staging.SharedScratch | None:
        """The folder in storage for files between phases, where tasks do not see the state."""
        if not self.settings.shared_scratch:
            return None
        name = f"{self.stage.name}-{digest([storage.identity(self.output), str(self.state.resolve())])[:16]}"
        return staging.SharedScratch(location(self.settings.shared_scratch, is_written=True) / name)

    @property
    def _record_path(self) -> Location:
        return record_place(self.output, is_prefix=self.stage.writes.is_prefix)

    @property
    def _notice(self) -> Location | None:
        return notice_place(self.output, self.state, is_prefix=self.stage.writes.is_prefix)

    def _begin(self) -> None:
        """Let whoever reads the output see that it is not finished, also where its state lies elsewhere."""
        self._finished.remove()
        if self._notice is not None:
            storage.write_json(self._notice, {"unfinished": self.stage.name})
        storage.remove(self._record_path)
        self._make_scratch()

    def _make_scratch(self) -> None:
        """Make the folders for files between phases. Raises InputError where the shared one can't be used."""
        self._local_scratch.mkdir(parents=True, exist_ok=True)
        noted, shared = self.state / SHARED, self._shared
        if shared is None or not noted.is_file() or noted.read_text(encoding="utf-8") != str(shared.place):
            remove_shared_scratch(self.state)
        if shared is not None:
            write_text(noted, str(shared.place))
            shared.begin()

    def _remove_scratch(self) -> None:
        """Remove the files between phases, here and in storage."""
        shutil.rmtree(self._local_scratch, ignore_errors=True)
        remove_shared_scratch(self.state)

    def _remove_others(self, outputs: Sequence[Location]) -> None:
        """Remove the stage's files that are not among `outputs`: shards of an earlier run over other inputs."""
        expected = set(outputs)
        for path in self.stage.writes.files_in(self.output):
            if path not in expected:
                storage.remove(path)

    def _remove_leftovers(self) -> None:
        """Remove half-written files of killed processes: of an earlier run, or of workers of this one."""
        if self.stage.writes.is_prefix:
            for path in (self._record_path, *self.stage.writes.files_in(self.output)):
                if isinstance(path, Path):  # next to which lie files of others
                    remove_leftovers_of(path)
        else:
            written = (path.parent for path in self.stage.writes.files_in(self.output))
            for folder in dict.fromkeys([self.output, self.output / DROPPED, *written]):
                storage.remove_leftovers(folder)

    def _record(self, outcome: Outcome, stamps: Sequence[Any], estimate: Estimate, seconds: float) -> None:
        """Write the record, the same for the same input and settings, and in the state how it was made.

        `stamps` are those of the inputs, from before they were read.
        """
        record = {
            "stage": self.stage.name,
            "version": self.stage.version,
            "settings": self._identity(),
            **({"libraries": self._libraries} if self._libraries else {}),
            **outcome.tally.as_dict(),
            "facts": outcome.facts,
            "shards": outcome.shards,
            "inputs": lineage_of(self.inputs),
        }
        circumstances = {
            "finished_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "host": platform.node(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "version": metadata.version("webtext-gpt2-prep"),
            "seconds": seconds,
            "engine": self.engine.name,
            "workers": self.workers,
            "estimate": dataclasses.asdict(estimate.needs),
            **places_of(self.output, self.inputs, stamps),
        }
        write_json(self.state / RUN, circumstances)
        storage.write_json(self._record_path, record)
        if self._notice is not None:
            storage.remove(self._notice)

    def _renew_lineage(self) -> None:
        """Write the record of a finished output again where those of its inputs have changed since.

        They do though its input files stay the same: a document is gone that the stage before had dropped.
        """
        place, lineage = self._record_path, lineage_of(self.inputs)
        record = read_record(place.parent, place.name)
        if record is not None and record.get("inputs") != lineage:
            storage.write_json(place, {**record, "inputs": lineage})
