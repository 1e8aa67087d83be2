"""Training and scoring the runs, several at a time, in processes that live for many runs.

A run is an ordinary folder of `gpt2 train`; next to its checkpoint lies `held_out.json` with the loss of every held-out
document, which appears when all is done. So a command that was killed trains only what has none: a run under way goes
on from its last checkpoint, or starts again where it had none.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from command_kit import CommandError, Progress, available_cores, parse_json, write_json
from command_kit.command import sentence_for
from command_kit.processes import WorkerProcess, keep_freed_memory
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.config.settings import TrainSettings
from webtext_run.ablation.held_out import HeldOut

LOSSES_FILE = "held_out.json"


class TrainingJob(NamedTuple):
    """One run to train and to score.

    Attributes:
        name: how it is shown.
        settings: of `gpt2 train`; its output is the run's folder.
    """

    name: str
    settings: TrainSettings

    @property
    def losses(self) -> Path:
        """The file of its losses."""
        return Path(self.settings.output) / LOSSES_FILE


class Workers:
    """Processes that train runs; use it in a `with` block.

    Args:
        count: how many.
        sets: what every run is scored on.
        tasks: evaluation tasks, as `gpt2 train --eval-task` takes them.

    They hear no Ctrl-C, and end with this process, however that ends.
    """

    def __init__(self, count: int, sets: Sequence[HeldOut], tasks: Sequence[str]) -> None:
        self._arguments = (list(sets), list(tasks))
        self._count, self._workers = count, list[WorkerProcess]()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self._workers:
            if kind is not None:
                worker.process.kill()
            worker.close()

    def carry_out(self, jobs: Sequence[TrainingJob]) -> Iterator[tuple[TrainingJob, dict[str, Any]]]:
        """Each job with what was measured, as they end. Raises Gpt2Error as the first that fails."""
        waiting = list(reversed(jobs))
        while len(self._workers) < min(self._count, len(jobs)):
            preload = ["gpt2_train.training.trainer", "gpt2_train.inference.scorer"]
            self._workers.append(WorkerProcess(_work, *self._arguments, preload=preload))
        at_work: dict[Any, tuple[WorkerProcess, TrainingJob]] = {}
        free = list(self._workers)
        while waiting or at_work:
            while waiting and free:
                worker, job = free.pop(), waiting.pop()
                worker.tasks.send(job)
                at_work[worker.results] = worker, job
            for ready in wait(list(at_work)):
                worker, job = at_work.pop(ready)
                try:
                    found = worker.results.recv()
                except EOFError:
                    raise Gpt2Error(
                        f"the process that trained {job.name} was killed, most often because memory ran out: the same "
                        "command resumes; with fewer --processes it takes less memory."
                    ) from None
                if isinstance(found, CommandError):
                    raise found
                free.append(worker)
                yield job, found


def _work(tasks: Connection, results: Connection, sets: list[HeldOut], evaluated: list[str]) -> None:
    """A worker's life: a run at a time, until the pipe ends."""
    while True:
        job: TrainingJob = tasks.recv()
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                found: Any = train_and_score(job, sets, evaluated)
        except Exception as error:
            found = type(error)(f"{job.name}: {error}") if isinstance(error, CommandError) else None
            found = found or Gpt2Error(f"{job.name}: {sentence_for(error)}")
        results.send(found)


def train_and_score(job: TrainingJob, sets: Sequence[HeldOut], tasks: Sequence[str]) -> dict[str, Any]:
    """Train a run and measure it, as far as that is not done; what was measured, which `held_out.json` keeps.

    Raises Gpt2Error.
    """
    if (kept := read_losses(job.losses)) is not None:
        return kept
    from gpt2_train.distributed.device import choose_device, use_threads
    from gpt2_train.distributed.jobs import StopRequest
    from gpt2_train.distributed.mesh import make_world
    from gpt2_train.evaluation.tasks import parse_task
    from gpt2_train.inference.model import open_model
    from gpt2_train.inference.scorer import Scorer
    from gpt2_train.training.trainer import train

    settings = job.settings
    device = choose_device(settings.device)
    use_threads(settings.threads)
    if device.type == "cpu":
        keep_freed_memory(all_of_it=True)
    summary = train(settings, make_world(device, 1, 1), StopRequest())
    scorer = Scorer(open_model(settings.output, device=settings.device))
    losses = {entry.name: scorer.document_losses(entry.documents).tolist() for entry in sets}
    found = {
        "step": summary["step"],
        "tokens": summary["tokens"],
        "epochs": summary["epochs"],
        "nats": losses,
        "tasks": {task: parse_task(task).run(scorer) for task in tasks},
        "scoring_seconds": scorer.seconds,
    }
    write_json(job.losses, found)
    return found


def read_losses(path: Path) -> dict[str, Any] | None:
    """The content of a run's `held_out.json`; None if there is none, or it is damaged."""
    try:
        return dict(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def all_runs(jobs: Sequence[TrainingJob], workers: Workers) -> dict[str, dict[str, Any]]:
    """The measurements of each run, by its name; finished runs are not made again. Raises Gpt2Error."""
    found = {job.name: kept for job in jobs if (kept := read_losses(job.losses)) is not None}
    todo = [job for job in jobs if job.name not in found]
    with Progress("ablate", "runs", len(jobs), done=len(found)) as progress:
        progress.update(len(found), todo[0].name if todo else "")
        for job, measured in workers.carry_out(todo):
            found[job.name] = measured
            progress.advance(note=job.name)
    return found


def processes_for(device: str, wanted: int) -> int:
    """Runs that are made at a time: one a core on CPU, and one on any other device, unless others are wanted."""
    return wanted or (available_cores() if device == "cpu" else 1)
