"""One run of tasks on a Ray cluster: a bounded number is handed over, and what comes back is taken or tried again.

Only the results that came back count: a driver that dies takes its tasks with it (Ray ends the workers of a driver
that is gone), and the next one hands over those without a result.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from webtext_prep.errors import WebtextError
from webtext_prep.running import wire
from webtext_prep.running.engines.attempts import Attempts
from webtext_prep.running.engines.base import Call, OnProgress, libraries_of, stage_of
from webtext_prep.running.ray.cluster import Cluster
from webtext_prep.running.ray.work import REPORT_SECONDS, Surroundings, forget, look, pack, work
from webtext_prep.running.task import Task
from webtext_prep.running.versions import versions_here

AT_ONCE_PER_CORE = 2
"""Tasks in Ray's hands for each core of the cluster: one at work, and one ready."""
LEAST_AT_ONCE = 4
"""So many also while a cluster has no cores yet, to be grown for."""
CLUSTER_SECONDS = 5.0
"""Between two looks at how large the cluster is."""
LOOKED_AT = 64
"""So many running tasks at most are asked for reports at once; the others next time."""
WAIT_SECONDS = 0.2
STOP_SECONDS = 10.0
"""How long tasks that are cancelled may take to end."""


class Waiting:
    """Runs tasks on a cluster.

    Args:
        cluster: the cluster.
        call: the tasks' function.
        tasks: the tasks.
        scratch: the job's folder.
        on_progress: is told how far each task is.
        most: how many run at once; 0 for as many as the cluster has cores.
    """

    def __init__(
        self,
        cluster: Cluster,
        call: Call,
        tasks: Sequence[Task],
        scratch: Path,
        on_progress: OnProgress,
        most: int = 0,
    ) -> None:
        self._cluster, self._tasks, self._on_progress = cluster, tasks, on_progress
        self._most = min(most or len(tasks), len(tasks))
        search = tuple(str(Path(folder).absolute()) for folder in sys.path)
        self._run = f"webtext-{secrets.token_hex(8)}"
        # Once for all tasks: with the versions of files that they read it may be large.
        self._versions = versions_here(libraries_of(call))
        surroundings = Surroundings(self._versions, scratch, self._most, str(Path.cwd()), search)
        self._phase = ray.put(pack(surroundings, call))
        self._memory = _memory_of(call)
        self._remote = ray.remote(work)
        self._running: dict[Any, int] = {}
        self._todo = deque(range(len(tasks)))
        self._attempts = Attempts(tasks, "on nodes with more of it")
        self._bound = self._largest_memory = 0
        self._next_cluster = self._next_look = 0.0
        self._turn = 0

    def run(self) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) as tasks finish."""
        self._cluster.check_nodes(self._versions)
        try:
            while self._todo or self._running:
                self._see_cluster()
                while self._todo and len(self._running) < self._bound:
                    self._hand_over(self._todo.popleft())
                ready, _ = ray.wait(list(self._running), timeout=WAIT_SECONDS)
                if ready and len(self._running) > 1:
                    ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
                for reference in ready:
                    yield from self._take(reference)
                self._see_progress()
        finally:
            self._stop()

    def _see_cluster(self) -> None:
        """Hand over more tasks at once when the cluster has grown."""
        now = time.monotonic()
        if now >= self._next_cluster:
            self._bound = min(self._most, max(LEAST_AT_ONCE, AT_ONCE_PER_CORE * self._cluster.cores))
            self._largest_memory = self._cluster.largest_memory
            self._next_cluster = time.monotonic() + CLUSTER_SECONDS

    def _hand_over(self, position: int) -> None:
        attempt = self._attempts.failed(position)
        memory = min(self._memory << attempt, self._largest_memory)
        task = self._tasks[position]
        remote = self._remote.options(num_cpus=1, memory=memory or None, max_retries=0, name=f"webtext {task.name}")
        reference = remote.remote(self._phase, json.dumps(wire.encode(task)), self._report_of(position))
        self._running[reference] = position

    def _report_of(self, position: int) -> str:
        """The key of a running task's reports."""
        return f"{self._run}/{position}/{self._attempts.failed(position)}"

    def _take(self, reference: Any) -> Iterator[tuple[int, Any]]:
        """What a task has to say; or, if its worker or node died, the task once more."""
        position = self._running.pop(reference)
        try:
            said = json.loads(ray.get(reference))
        except exceptions.RayTaskError as error:  # not the task's own: that is in its answer
            raise WebtextError(f"the task {self._tasks[position].name} could not be begun: {error.cause!r}.") from error
        except exceptions.RayError as error:
            self._attempts.fail(position, _how_it_ended(error))
            self._again(position)
            return
        if "error" in said:
            self._attempts.refuse_or_fail(position, wire.decode_error(said["error"]))
            self._again(position)
        else:
            self._on_progress(position, said["units"])
            yield position, wire.decode(said["result"])

    def _again(self, position: int) -> None:
        self._on_progress(position, 0)
        self._todo.append(position)

    def _see_progress(self) -> None:
        """Ask some of the running tasks how far they are."""
        now = time.monotonic()
        if now >= self._next_look:
            positions = list(self._running.values())
            begin = self._turn % max(1, len(positions))
            asked = list(itertools.islice(itertools.cycle(positions), begin, begin + min(LOOKED_AT, len(positions))))
            look(((position, self._report_of(position)) for position in asked), self._on_progress)
            self._turn += LOOKED_AT
            self._next_look = time.monotonic() + REPORT_SECONDS

    def _stop(self) -> None:
        """Stop what still runs, so that nothing writes after the end."""
        for reference in self._running:
            with contextlib.suppress(Exception):
                ray.cancel(reference, force=True)
        if self._running:
            with contextlib.suppress(Exception):
                ray.wait(list(self._running), num_returns=len(self._running), timeout=STOP_SECONDS)
        forget(self._run)


def _memory_of(call: Call) -> int:
    """Bytes that a stage states for a process of its own; 0 where it is not known."""
    return int(getattr(stage_of(call), "process_bytes", 0))


def _how_it_ended(error: exceptions.RayError) -> str:
    if isinstance(error, exceptions.OutOfMemoryError):
        return "its worker was killed by Ray, because memory ran out on its node"
    if isinstance(error, exceptions.NodeDiedError | exceptions.LocalRayletDiedError | exceptions.ObjectLostError):
        return "its node died"
    if isinstance(error, exceptions.WorkerCrashedError):
        return "its worker process died, most often because memory ran out"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
