"""Runs one stage over its inputs: skips finished tasks, tallies, shows progress, and leaves only complete files.

A stage's work is one or more phases of tasks (`running.tasks`), which an engine (`running.engines`) runs; `running.run`
has what the stage is given for that.

The output folder holds `part-00000.jsonl.zst`, ..., `stage.json` (settings and tallies, written last; the same bytes
for the same input and settings), the folder `dropped/` with a receipt for each dropped document, and the state in
`.state/`: the lock, the claim, the markers, `run.json` (where, when and how long it ran last), and while it runs
`scratch/`. Inputs and output may be URLs; the state is always a folder of this machine.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from command_kit import CommandError, hide_credentials
from command_kit.machine import Machine
from webtext_prep import storage
from webtext_prep.documents.folders.inputs import spool_standard_input
from webtext_prep.documents.folders.sampling import Sample, take_sample
from webtext_prep.documents.folders.shards import check_format
from webtext_prep.documents.folders.stage_record import COMPLETE, read_record, state_place
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.engines.base import Engine
from webtext_prep.running.engines.local import LocalEngine
from webtext_prep.running.markers import OutputMarker
from webtext_prep.running.output import Output, locked
from webtext_prep.running.preflight import Estimate, compare
from webtext_prep.running.processes import allow_open_files, versions_of
from webtext_prep.running.run import StageRun
from webtext_prep.running.settings import RunSettings
from webtext_prep.running.stage import Accompanied, Continues, Outcome, Previews, Stage
from webtext_prep.running.summary import Findings, Summary
from webtext_prep.running.tasks import Tally
from webtext_prep.storage import is_local, lease, location
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
        work: what the stage's `run` is given: the files, and the phases of tasks.
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
        self.output = output = location(settings.output)
        storage.writable(output)
        reads = stage.reads
        given = [*reads.before, *(path for path in settings.input if path != "-"), *reads.after]
        inputs, self.notes = reads.find(given, output) if given else ([], [])
        self.engine = engine or LocalEngine(settings.workers)
        if settings.shared_scratch and self.engine.is_here:
            raise InputError(
                f"--shared-scratch is for tasks on other machines, and --engine {self.engine.name} runs them here: "
                "leave it out."
            )
        if isinstance(stage, Continues) and not self.engine.is_here:
            raise InputError(
                f"webtext {stage.name} works in one process of this machine: leave out --engine {self.engine.name} "
                "(for a cluster give --save-pages, and run webtext extract there)."
            )
        format_name = check_format(settings.format or stage.writes.format)
        if not settings.state and not is_local(output):
            raise InputError(f"--output {output} is remote: give a local folder for its state with --state DIR.")
        beside, state = state_place(output, is_prefix=stage.writes.made == "tokens"), Path(settings.state)
        # One folder has one name here, however --state spells it.
        is_beside = not settings.state or (is_local(beside) and storage.local_path(beside).resolve() == state.resolve())
        self.state = cast(Path, beside) if is_beside else state
        self._own = own = Output(stage, output, self.state, settings.shared_scratch)
        self.work = StageRun(
            stage,
            inputs,
            output,
            self.state,
            own.scratch,
            own.shared,
            self.engine,
            format_name,
            versions_of(stage.libraries),
        )
        self._machine, self._finished = machine or Machine(), OutputMarker(self.state / COMPLETE)

    @property
    def inputs(self) -> list[Location]:
        """The files to read, in order."""
        return self.work.inputs

    def run(self) -> Summary:
        """Do the rest, also in the runs that belong to this one, and return the summary.

        Raises InputError if the output belongs to another stage, other settings, or a command at work; WebtextError
        if nothing comes out.
        """
        summary, own = self._run(), self.settings
        for stage, given, output in self._companions():
            state = f"{own.state}-{location(output).name}" if own.state else ""
            its = dataclasses.replace(own, input=tuple(given), output=output, state=state)
            job = Job(stage, its, self.engine, restart=self.restart, machine=self._machine)
            summary.companions.append(job.run())
        return summary

    def _companions(self) -> list[tuple[Stage, Sequence[str], str]]:
        stage, own = self.stage, self.settings
        return stage.companions(own.input, own.output) if isinstance(stage, Accompanied) else []

    def _run(self) -> Summary:
        own, work, start = self._own, self.work, time.monotonic()
        companions = [location(output).name for _, _, output in self._companions()]
        allow_open_files()
        place = lease.lease_place(self.output, is_prefix=own.is_prefix)
        lease.refuse_if_taken(place, self.output, self.state)
        own.refuse_foreign(self.inputs)
        with locked(self.state, self.output), lease.held(place, self.output, self.state) as work.lease:
            is_new = own.make_own(work.settings(), work.libraries, companions, restart=self.restart)
            outcome = None
            try:
                if "-" in self.settings.input:
                    self.inputs.append(spool_standard_input(self.state))
                stamps = storage.stamps(self.inputs)
                key = work.whole_key(stamps)
                done = self._complete(key)
                if done is not None:
                    own.renew_lineage(self.inputs)
                    own.remove_scratch()  # a kill may have come just before this
                    own.remove_companions(companions)
                    return done
                estimate = self.estimate(self.sample([stamp[1] for stamp in stamps]))
                estimate.announce(is_checked=self.settings.space_check)
                self._finished.remove()
                own.begin()
                own.remove_companions(companions)
                outcome = self.stage.run(work)
                for sentence in self.notes:
                    outcome.tally.problem(sentence)
                self._check(outcome)
            except CommandError:
                if is_new:
                    own.withdraw(outcome)
                raise
            work.check_lease()
            own.remove_others(outcome.outputs)
            own.remove_leftovers()
            seconds = round(time.monotonic() - start, 3)
            needs = dataclasses.asdict(estimate.needs)
            run = {"seconds": seconds, "engine": self.engine.name, "workers": self.engine.workers, "estimate": needs}
            own.finish(outcome, work.identity(), work.libraries, self.inputs, stamps, **run)
            self._finished.write(key, outcome.outputs, own.record_path.parent)
            own.remove_scratch()
        return self._summary(outcome.tally, outcome.facts, seconds=time.monotonic() - start)

    def check_output(self) -> None:
        """Raise InputError where `run` would refuse its output: another's, or without a restart of other settings or
        libraries."""
        self._own.refuse_foreign(self.inputs)
        if not self.restart:
            self._own.refuse_other_settings(self.work.settings(), self.work.libraries)

    def preview(self) -> Findings:
        """Say what the stage would do. Nothing is written but a folder in the state, which is removed at the end.

        An interrupted preview resumes. Raises InputError as `run` does, also where it would not fit this machine.
        """
        assert isinstance(self.stage, Previews)
        allow_open_files()
        self._own.refuse_foreign(self.inputs)
        with locked(self.state, self.output):
            state = self.state / "preview"
            own = Output(self.stage, self.output, state, self.settings.shared_scratch)
            its = dataclasses.replace(self.work, state=state, local_scratch=own.scratch, shared=own.shared)
            self.estimate(self.sample(), own).announce(is_checked=self.settings.space_check)
            own.make_scratch()
            found = self.stage.preview(its)
            own.remove_scratch()
            shutil.rmtree(state, ignore_errors=True)
        return found

    def sample(self, sizes: Sequence[int] | None = None) -> Sample:
        """A sample of the input; `sizes` are the bytes of each file, if they are known already."""
        sizes = storage.sizes(self.inputs) if sizes is None else sizes
        is_one = self.stage.reads.is_one_document
        sample = take_sample(self.inputs, sizes, format_name=self.work.format, is_one_document=is_one)
        documents = self.work.expected_documents()
        return sample if documents is None else dataclasses.replace(sample, documents=documents)

    def estimate(self, sample: Sample, own: Output | None = None) -> Estimate:
        """The disk and memory that a run over input like `sample` needs, and what there is. Writes nothing.

        What is there of it already lies in `own`; by default where `run` writes.
        """
        stage = self.stage
        workers, own = self.engine.workers, own or self._own
        if isinstance(stage, Previews) and stage.is_preview:
            needs = stage.preview_needs(sample, workers)
        else:
            needs = stage.needs(sample, workers)
        if not self.engine.is_here:
            needs = dataclasses.replace(needs, memory=0)
        written, machine = own.written(), self._machine
        return compare(
            stage.name, stage.reads.unit, needs, output=self.output, state=own.state, written=written, machine=machine
        )

    def _summary(self, tally: Tally, facts: dict[str, Any], *, seconds: float = 0.0, resumed: bool = False) -> Summary:
        unit = self.stage.reads.unit
        return Summary(
            self.stage.name, hide_credentials(str(self.output)), tally, facts, seconds, resumed=resumed, unit=unit
        )

    def _complete(self, key: str) -> Summary | None:
        """The summary of an earlier run, if all of it still stands."""
        place = self._own.record_path
        if not self._finished.holds(key, place.parent):
            return None
        if isinstance(self.stage, Continues) and self.stage.wants_another_run(self.work):
            return None
        record = read_record(place.parent, place.name)
        return None if record is None else self._summary(Tally.from_dict(record), record.get("facts", {}), resumed=True)

    def _check(self, outcome: Outcome) -> None:
        tally = outcome.tally
        if not tally.is_balanced:
            came = f"{tally.read} in" + (f", {tally.added} added" if tally.added else "")
            raise WebtextError(
                f"internal error: {came}, {tally.kept} out, {tally.dropped.total()} dropped do not add up."
            )
        unit = self.stage.reads.unit
        if tally.read == 0:
            names = ", ".join(str(path) for path in self.inputs[:3])
            raise InputError(f"{self.stage.name}: no {unit} in the input ({names}): check what made it.")
        if tally.kept == 0 and outcome.advice is not None:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in tally.dropped.most_common())
            problems = " " + " ".join(tally.problems[:1]) if tally.problems else ""
            raise WebtextError(
                f"{self.stage.name}: none of the {tally.read:,} {unit} was kept ({reasons}): "
                f"{outcome.advice}.{problems}"
            )
