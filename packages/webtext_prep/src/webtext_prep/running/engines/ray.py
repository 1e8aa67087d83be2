"""Tasks on a cluster that Ray manages, or on this machine by a Ray of its own.

Each task of ours is one task of Ray's, with a core and the memory that its stage states; no actors. What travels are
the task and its small result; files go by the file system, or storage (`running/staging.py`). Ray retries nothing:
a worker or node that dies costs its task one of our own attempts, and the next one may take twice the memory.

Starting a Ray on this machine costs some 14 s of CPU time, the first tasks included, whose workers import Ray and their
stage. After that a task costs 3 ms.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import setting
from webtext_prep.errors import InputError
from webtext_prep.running.engines.base import Call, Engine, OnProgress
from webtext_prep.running.tasks import Task

if TYPE_CHECKING:
    from webtext_prep.running.clusters.ray import Cluster

VARIABLES = {
    # For a command that `uv run` started, Ray would have each worker install the environment of this machine once more.
    # Nodes have their own, whose versions are compared.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Ray would print what it knows of dead workers to standard output, which is the command's own; the engine says it.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    # Nothing about the work is sent to anybody.
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What Ray reads when it is imported."""


@dataclass(frozen=True)
class RaySettings:
    """Which Ray runs the tasks."""

    ray_address: str = setting(
        "",
        "the cluster, HOST:PORT of its head, or auto for the one that this machine belongs to; without it a Ray of "
        "this machine alone is started, and stopped at the end",
        metavar="ADDRESS",
    )

    def __post_init__(self) -> None:
        if "://" in self.ray_address:
            raise InputError(
                f"--ray-address {self.ray_address} is a URL: run the command on a machine of the cluster, and give "
                "HOST:PORT of its head, or auto."
            )


class RayEngine(Engine):
    """Tasks of Ray's; `workers` is how many run at once, 0 for as many as the cluster has cores."""

    name: ClassVar[str] = "ray"
    settings_class: ClassVar[type] = RaySettings

    def __init__(self, workers: int, settings: Any = None) -> None:
        super().__init__(workers, settings)
        if importlib.util.find_spec("ray") is None:
            raise InputError("--engine ray needs the package ray: install it with `pip install 'webtext-gpt2[ray]'`.")
        self._most = workers
        self._cluster: Cluster | None = None
        self.is_here = not self.settings.ray_address

    def run(
        self, call: Call, tasks: Sequence[Task], *, scratch: Path, on_progress: OnProgress
    ) -> Iterator[tuple[int, Any]]:
        """See `Engine.run`.

        Raises InputError for a cluster that can't be reached, or whose machines have another version of this package
        or of Python.
        """
        if not tasks:
            return
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        from webtext_prep.running.clusters.ray import Cluster, RayRun

        if self._cluster is None:
            self._cluster = Cluster(self.settings.ray_address, self.workers)
        yield from RayRun(self._cluster, call, tasks, scratch.absolute(), on_progress, self._most).run()

    def close(self) -> None:
        """Leave the cluster; a Ray that was started for this engine is stopped."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
