"""Runs one stage over its shards: skips what is done, tallies, shows progress, and leaves only complete files.

A stage's work is one or more phases of tasks. A task reads some files, writes some files, and gives back a small JSON
value; when it is done, a mark says from which inputs (sizes, modification times), with which settings and by which
version of the stage its outputs were made. A task whose mark still holds is not run again: that is all there is to
resuming, whether the last run ended well, was interrupted, or was killed.

The output folder holds `part-00000.jsonl.zst`, ..., `stage.json` (settings and tallies, written last; the same bytes
for the same input and settings), with `--keep-dropped` the folder `dropped/`, and the marks in `.state/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from command_kit import Progress, duration, write_json
from command_kit.atomic import remove_leftovers
from command_kit.settings import differences, identity
from webtext_prep.documents.document import shard_name
from webtext_prep.documents.inputs import read_record
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.engines import Engine, LocalEngine, Report, allow_open_files
from webtext_prep.running.stage import Stage, Task
from webtext_prep.running.tally import Tally

try:
    import fcntl
except ImportError:  # not on this system: two commands on one folder are then the user's own care
    fcntl = None  # type: ignore[assignment]


CLAIM = "job.json"
"""In the state folder: whose output it is, written before anything else."""


def fingerprint(path: Path) -> list[Any]:
    """Name, size in bytes and modification time in nanoseconds: what changes when a file does."""
    status = path.stat()
    return [path.name, status.st_size, status.st_mtime_ns]


def refuse_foreign_output(stage: Stage, output: Path, inputs: Sequence[Path] = ()) -> None:
    """Raise InputError where a run of `stage` would write among, or over, files that no such run has made."""
    state = stage.state_folder(output)
    is_claimed = (state / CLAIM).is_file()
    if stage.output_is_prefix:
        if output.is_dir() or str(output).endswith(("/", "\\")):
            raise InputError(
                f"--output {output} is a folder: give the beginning of a file name, such as {output / 'corpus'}."
            )
        strangers = [] if is_claimed else [path.name for path in stage.outputs_in(output)]
        if strangers:
            raise InputError(
                f"{' and '.join(strangers)} in {output.parent} were not made by this command: give another --output, "
                "or remove them."
            )
        return
    if output.exists() and not output.is_dir():
        raise InputError(f"--output {output} is a file: give a folder.")
    for path in inputs:
        folders = path.resolve().parents
        if output.resolve() in folders and state.resolve() not in folders:
            raise InputError(f"input {path} lies in the output folder itself: give another --output.")
    if output.is_dir() and not is_claimed:
        strangers = sorted(entry.name for entry in output.iterdir() if entry != state)
        if strangers:
            shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
            raise InputError(f"--output {output} holds other files ({shown}): give an empty or new folder.")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _run_task(argument: tuple[Stage, str, Task], report: Report) -> Any:
    stage, method, task = argument
    return getattr(stage, method)(task, report)


@dataclass
class _Shown:
    """Progress with the number of finished tasks beside it."""

    progress: Progress
    tasks: int
    finished: int

    def update(self, units: int) -> None:
        self.progress.update(units, f"{self.finished}/{self.tasks} shards" if self.tasks > 1 else "")


@dataclass
class Summary:
    """What a stage ends with: shown as a table, or as one JSON object."""

    stage: str
    output: str
    tally: Tally
    extra: dict[str, Any]
    seconds: float = 0.0
    resumed: bool = False
    unit: str = "documents"

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that `--json` prints: stage, in, out, dropped, seconds, and what the stage adds."""
        counts = self.tally.as_dict()
        return {
            "stage": self.stage,
            "in": counts["in"],
            "out": counts["out"],
            "dropped": counts["dropped"],
            "notes": counts["notes"],
            "problems": counts["problems"],
            "seconds": round(self.seconds, 3),
            "resumed": self.resumed,
            "output": self.output,
            **self.extra,
        }

    def table(self) -> str:
        """The closing table: in, out, dropped by reason."""
        done = "already done" if self.resumed else duration(self.seconds)
        rows = [(f"{self.unit} in", self.tally.read), ("out", self.tally.kept)]
        lines = [f"{self.stage}  {self.output}  ({done})"]
        dropped = sorted(self.tally.dropped.items(), key=lambda item: (-item[1], item[0]))
        width = max(len(name) for name, _ in [*rows, *((f"  dropped: {r}", 0) for r, _ in dropped)])
        total = self.tally.read
        for name, count in [*rows, *((f"  dropped: {reason}", count) for reason, count in dropped)]:
            share = f"{count / total:7.1%}" if total else ""
            lines.append(f"  {name:<{width}}  {count:>12,}  {share}")
        lines += [f"  {name.replace('_', ' ')}: {count:,}" for name, count in sorted(self.tally.notes.items())]
        lines += [
            f"  {name.replace('_', ' ')}: {value:,}" if isinstance(value, int) else f"  {name}: {value}"
            for name, value in self.extra.items()
            if isinstance(value, int | str)
        ]
        lines += [f"  note: {sentence}" for sentence in self.tally.problems]
        return "\n".join(lines)


class Job:
    """One run of one stage: where it reads and writes, and how its tasks are run.

    Args:
        stage: the stage with its settings.
        inputs: the files to read, in order.
        output: the output folder, or for `tokenize` the path prefix of its files.
        workers: how many tasks run at once.
        keep_dropped: write the dropped documents, with their reasons, to `dropped/`.
        restart: start anew instead of going on.
        engine: where tasks run; processes of this machine by default.
    """

    def __init__(
        self,
        stage: Stage,
        inputs: Sequence[Path],
        output: Path,
        *,
        workers: int = 1,
        keep_dropped: bool = False,
        restart: bool = False,
        engine: Engine | None = None,
    ) -> None:
        if workers < 1:
            raise InputError(f"--workers must be at least 1, not {workers}.")
        self.stage, self.inputs, self.output = stage, list(inputs), output
        self.workers, self.keep_dropped, self.restart = workers, keep_dropped, restart
        self.engine = engine or LocalEngine(workers)
        self.state = stage.state_folder(output)
        self.record_path = stage.record_path(output)
        self._expected: list[Path] = []

    # What stages ask for

    @property
    def scratch(self) -> Path:
        """A folder for files between phases; it is emptied when the stage is done."""
        return self.state / "scratch"

    def shard_path(self, number: int) -> Path:
        """Where output shard `number` belongs."""
        return self.output / shard_name(number)

    def dropped_path(self, number: int) -> Path | None:
        """Where the dropped documents of shard `number` belong, or None without `--keep-dropped`."""
        return self.output / "dropped" / shard_name(number) if self.keep_dropped else None

    def expected_documents(self) -> int | None:
        """How many documents the input holds, where the stage that made it said so."""
        folders = {path.parent for path in self.inputs}
        total = 0
        for folder in folders:
            record = read_record(folder)
            if record is None or not isinstance(record.get("shards"), dict):
                return None
            total += sum(record["shards"].get(path.name, 0) for path in self.inputs if path.parent == folder)
        return total

    def map(
        self,
        phase: str,
        method: str,
        tasks: Sequence[Task],
        *,
        unit: str = "documents",
        total: int | None = None,
        again: Collection[str] = (),
    ) -> list[Any]:
        """Run `stage.<method>(task, report)` for each task not done yet, and return all results in order of the tasks.

        Args:
            phase: names the marks, and is shown with the progress where a stage has several.
            method: the stage's method; it returns a JSON-like value.
            tasks: what to do.
            unit: what `report` counts.
            total: how many units there are in all, where known.
            again: names of tasks to run even though they are done.
        """
        marks = self.state / "marks" / phase
        marks.mkdir(parents=True, exist_ok=True)
        keys = [self._key(phase, task) for task in tasks]
        results: list[Any] = [
            None if task.name in again else self._marked_result(marks, task, key)
            for task, key in zip(tasks, keys, strict=True)
        ]
        todo = [position for position, result in enumerate(results) if result is None]
        if todo:
            label = self.stage.name if phase == "shards" else f"{self.stage.name}: {phase}"
            arguments = [(self.stage, method, tasks[position]) for position in todo]
            known = total if len(todo) == len(tasks) else None
            with Progress(label, unit, known) as progress:
                shown = _Shown(progress, len(tasks), len(tasks) - len(todo))
                for position, result in self.engine.run(_run_task, arguments, shown.update):
                    shown.finished += 1
                    task = tasks[todo[position]]
                    results[todo[position]] = result
                    sizes = [output.stat().st_size for output in task.outputs]
                    mark = {"key": keys[todo[position]], "sizes": sizes, "result": result}
                    write_json(marks / f"{task.name}.json", mark)
        return results

    # How a job runs

    def run(self) -> Summary:
        """Do what is left to do and return the summary.

        Raises InputError if the output belongs to another stage, other settings, or a process at work; WebtextError
        if nothing comes out.
        """
        start = time.monotonic()
        allow_open_files()
        with self._locked():
            self._claim_output()
            whole = self._whole_key()
            done = self._complete(whole)
            if done is not None:
                shutil.rmtree(self.scratch, ignore_errors=True)  # a kill may have come just before this
                return done
            self.record_path.unlink(missing_ok=True)
            (self.state / "complete.json").unlink(missing_ok=True)
            outcome = self.stage.run(self)
            self._check(outcome.tally)
            self._remove_strangers(outcome.outputs)
            record = {
                "stage": self.stage.name,
                "version": self.stage.version,
                "settings": self._settings(),
                **outcome.tally.as_dict(),
                **outcome.extra,
                "shards": outcome.shards,
            }
            write_json(self.record_path, record)
            write_json(self.state / "complete.json", {"key": whole, "outputs": self._sizes(outcome.outputs)})
            shutil.rmtree(self.scratch, ignore_errors=True)
            extra = outcome.extra
        return Summary(
            self.stage.name, str(self.output), outcome.tally, extra, time.monotonic() - start, unit=self.stage.unit
        )

    def _settings(self) -> dict[str, Any]:
        return {**identity(self.stage), "keep_dropped": self.keep_dropped}

    def _key(self, phase: str, task: Task) -> str:
        return _digest(
            [
                self.stage.name,
                self.stage.version,
                self._settings(),
                [fingerprint(path) for path in self.stage.setting_files()],
                phase,
                [fingerprint(path) for path in task.inputs],
                [output.name for output in task.outputs],
                task.options,
            ]
        )

    def _whole_key(self) -> str:
        files = [*self.stage.setting_files(), *self.inputs]
        return _digest([self.stage.name, self.stage.version, self._settings(), [fingerprint(path) for path in files]])

    @staticmethod
    def _marked_result(marks: Path, task: Task, key: str) -> Any:
        try:
            mark = json.loads((marks / f"{task.name}.json").read_bytes())
            sizes = [output.stat().st_size for output in task.outputs]
        except (OSError, ValueError):
            return None
        return mark["result"] if mark.get("key") == key and mark.get("sizes") == sizes else None

    def _sizes(self, outputs: Sequence[Path]) -> dict[str, int]:
        return {str(path.relative_to(self.record_path.parent)): path.stat().st_size for path in outputs}

    def _complete(self, whole: str) -> Summary | None:
        """The summary of an earlier run, if all of it still stands."""
        try:
            mark = json.loads((self.state / "complete.json").read_bytes())
            record = json.loads(self.record_path.read_bytes())
            sizes = {name: (self.record_path.parent / name).stat().st_size for name in mark["outputs"]}
        except (OSError, ValueError, KeyError):
            return None
        if mark["key"] != whole or sizes != mark["outputs"] or self.stage.wants_another_run(self):
            return None
        known = {"stage", "version", "settings", "in", "out", "dropped", "notes", "problems", "shards"}
        extra = {name: value for name, value in record.items() if name not in known}
        return Summary(
            self.stage.name, str(self.output), Tally.from_dict(record), extra, resumed=True, unit=self.stage.unit
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep a second command off the same output while this one works on it."""
        refuse_foreign_output(self.stage, self.output, self.inputs)
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            if fcntl is not None:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise InputError(
                        f"another webtext command is at work on {self.output}: wait for it, or give another --output."
                    ) from None
            yield

    def _claim_output(self) -> None:
        """Make the output folder this stage's own, or say whose it is."""
        path = self.state / CLAIM
        ours = {"stage": self.stage.name, "settings": self._settings()}
        theirs: dict[str, Any] | None = None
        with contextlib.suppress(OSError, ValueError):
            theirs = json.loads(path.read_bytes())
        if theirs is not None and theirs["stage"] != ours["stage"]:
            raise InputError(
                f"{self.output} is the output of `webtext {theirs['stage']}`: give another --output, or remove it."
            )
        if self.restart:
            self._remove_all()
        elif theirs is not None and theirs["settings"] != ours["settings"] and self._has_begun():
            changed = "; ".join(differences(theirs["settings"], self._settings()))
            raise InputError(
                f"{self.output} was made with other settings ({changed}): give another --output, or --restart to "
                "make it anew."
            )
        write_json(path, ours)
        if self.output.is_dir():
            remove_leftovers(self.output)
            remove_leftovers(self.output / "dropped")

    def _has_begun(self) -> bool:
        """Whether an earlier run made anything; one that failed before leaves its settings to be corrected."""
        return (
            self.record_path.exists()
            or any(self.scratch.rglob("*"))
            or any((self.state / "marks").rglob("*.json"))
            or bool(self.stage.outputs_in(self.output))
        )

    def _remove_all(self) -> None:
        for path in self.stage.outputs_in(self.output):
            path.unlink()
        self.record_path.unlink(missing_ok=True)
        for entry in self.state.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name not in ("lock", CLAIM) and not entry.name.startswith("stdin-"):
                entry.unlink()

    def _check(self, tally: Tally) -> None:
        if not tally.is_balanced:
            raise WebtextError(
                f"internal error: {tally.read} in, {tally.kept} out, {tally.dropped.total()} dropped do not add up."
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

    def _remove_strangers(self, outputs: Sequence[Path]) -> None:
        """Remove shards of an earlier run over other inputs."""
        expected = set(outputs)
        for path in self.stage.outputs_in(self.output):
            if path not in expected:
                path.unlink()


def show(summary: Summary, *, as_json: bool, stream: IO[str] | None = None) -> None:
    """Print the closing table to standard error, and with `as_json` one JSON object to standard output."""
    print(summary.table(), file=stream or sys.stderr)
    if as_json:
        print(json.dumps(summary.as_dict(), ensure_ascii=False))
