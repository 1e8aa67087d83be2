"""Tasks as jobs of Slurm's job arrays, on a cluster whose nodes all see the state folder under one path.

The engine submits arrays and waits for the files that their jobs leave (`running/clusters/`). It waits between phases,
too: what the tasks of the next one are is made from the results of the one before, which Slurm's own dependencies
between jobs know nothing of.

If this process is killed its jobs go on, and the same command finds them again. An interrupt (Ctrl-C) cancels them.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from command_kit import setting
from webtext_prep.errors import InputError
from webtext_prep.running.clusters.slurm import FOLDER, SlurmRun, cancel_all
from webtext_prep.running.engines.base import Call, Engine, OnProgress
from webtext_prep.running.tasks import Task

_NOT_FOR_USERS = (
    "--array", "-a", "--job-name", "-J", "--output", "-o", "--chdir", "-D", "--wrap", "--wait", "-W", "--test-only",
)  # fmt: skip
"""Options of sbatch that the engine gives itself, or that would have it run something else."""


@dataclass(frozen=True)
class SlurmSettings:
    """How the tasks of a stage become jobs."""

    slurm_options: str = setting(
        "",
        "options of sbatch for every job, in quotes: '--partition=long --cpus-per-task=4 --mem=16G --time=8:00:00'",
        metavar="OPTIONS",
    )
    slurm_tasks_per_job: int = setting(1, "tasks in a job, which does as many at once as it has cores", ge=1)


class SlurmEngine(Engine):
    """Tasks as jobs of Slurm's; `workers` is how many jobs run at once, 0 for as many as Slurm lets."""

    name: ClassVar[str] = "slurm"
    settings_class: ClassVar[type] = SlurmSettings

    def __init__(self, workers: int, settings: SlurmSettings | None = None) -> None:
        super().__init__(workers, settings)
        try:
            options = tuple(shlex.split(self.settings.slurm_options))
        except ValueError as error:
            raise InputError(
                f"--slurm-options {self.settings.slurm_options!r} can't be split into options: {error}."
            ) from error
        if wrong := [word for word in options if word.partition("=")[0] in _NOT_FOR_USERS]:
            raise InputError(f"--slurm-options may not have {wrong[0]}: the engine says that itself. Leave it out.")
        self._options, self._most = options, workers
        if shutil.which("sbatch") is None:
            raise InputError(
                "--engine slurm needs Slurm's commands, and there is no sbatch here: start it on a login node of the "
                "cluster."
            )

    def run(
        self, call: Call, tasks: Sequence[Task], *, scratch: Path, on_progress: OnProgress
    ) -> Iterator[tuple[int, Any]]:
        """See `Engine.run`."""
        if tasks:
            size, scratch = self.settings.slurm_tasks_per_job, scratch.absolute()
            yield from SlurmRun(call, tasks, scratch, on_progress, self._options, size, self._most).run()

    def abandon(self, scratch: Path) -> None:
        """See `Engine.abandon`."""
        cancel_all(scratch.absolute() / FOLDER)
