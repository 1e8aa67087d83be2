"""One run of tasks on a Ray cluster: a bounded number is handed over, and what comes back is taken or tried again.

Only the results that came back count: a driver that dies takes its tasks with it (Ray ends the workers of a driver
that is gone), and the next one hands over those without a result.
"""

from __future__ import annotations

import contextlib
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
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from webtext_prep.errors import WebtextError
from webtext_prep.running.engines.attempts import Attempts
from webtext_prep.running.engines.base import Call, OnProgress, libraries_of, stage_of
from webtext_prep.running.ray.cluster import Cluster
from webtext_prep.running.ray.work import REPORT_SECONDS, Reports, Surroundings, work
from webtext_prep.running.tasks import codec
from webtext_prep.running.tasks.task import Task
from webtext_prep.running.versions import versions_here

AT_ONCE_PER_CORE = 2
"""Tasks in Ray's hands for each core of the cluster: one at work, and one ready."""
LEAST_AT_ONCE = 4
"""So many also while a cluster has no cores yet, to be grown for."""
REPORTS_AFTER = 5.0
"""After so many seconds a phase has an actor for reports."""
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
        self, cluster: Cluster, call: Call, tasks: Sequence[Task], scratch: Path, on_progress: OnProgress, most: int = 0
    ) -> None:
        self._cluster, self._tasks, self._on_progress = cluster, tasks, on_progress
        self._most = min(most or len(tasks), len(tasks))
        search = tuple(str(Path(folder).absolute()) for folder in sys.path)
        versions = versions_here(libraries_of(call))
        surroundings = Surroundings(versions, scratch, self._most, str(Path.cwd()), search)
        # Once for all tasks: with the versions of files that they read it may be large.
        self._phase = ray.put(json.dumps([codec.encode(surroundings), codec.encode(call)]))
        self._memory = _memory_of(call)
        self._remote = ray.remote(work)
        self._name = f"webtext-{secrets.token_hex(8)}"
        self._reports: Any = None
        self._asked: Any = None
        self._start = time.monotonic()
        self._running: dict[Any, int] = {}
        self._todo = deque(range(len(tasks)))
        self._attempts = Attempts(tasks, "on nodes with more of it")
        self._bound = self._largest_memory = 0
        self._next_look = 0.0

    def run(self) -> Iterator[tuple[int, Any]]:
        """Yield (position, result) as tasks finish."""
        try:
            while self._todo or self._running:
                if time.monotonic() >= self._next_look:
                    self._look()
                while self._todo and len(self._running) < self._bound:
                    self._hand_over(self._todo.popleft())
                ready, _ = ray.wait(list(self._running), timeout=WAIT_SECONDS)
                if ready and len(self._running) > 1:
                    ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
                for reference in ready:
                    yield from self._take(reference)
        finally:
            self._stop()

    def _look(self) -> None:
        """See how far the running tasks are, and whether the cluster has grown."""
        self._bound = min(self._most, max(LEAST_AT_ONCE, AT_ONCE_PER_CORE * self._cluster.cores))
        self._largest_memory = self._cluster.largest_memory
        if self._reports is not None and ray.wait([self._asked], timeout=0)[0]:
            with contextlib.suppress(exceptions.RayError):  # it was lost with its node
                for position, units in ray.get(self._asked).items():
                    if position in self._running.values():
                        self._on_progress(position, units)
            self._asked = self._reports.take.remote()
        elif self._reports is None and time.monotonic() - self._start > REPORTS_AFTER:
            # On this node, which is there as long as the command.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            actor = ray.remote(Reports).options(name=self._name, num_cpus=0, scheduling_strategy=here)
            self._reports = actor.remote()
            self._asked = self._reports.take.remote()
        self._next_look = time.monotonic() + REPORT_SECONDS

    def _hand_over(self, position: int) -> None:
        task = self._tasks[position]
        memory = min(self._memory << self._attempts.failed(position), self._largest_memory)
        remote = self._remote.options(num_cpus=1, memory=memory or None, max_retries=0, name=f"webtext {task.name}")
        self._running[remote.remote(self._phase, json.dumps(codec.encode(task)), position, self._name)] = position

    def _take(self, reference: Any) -> Iterator[tuple[int, Any]]:
        """What a task has to say; or, if its worker or node died, the task once more."""
        position = self._running.pop(reference)
        try:
            said = json.loads(ray.get(reference))
            if "result" in said:
                self._on_progress(position, said["units"])
                yield position, codec.decode(said["result"])
                return
            self._attempts.refuse_or_fail(position, codec.decode_error(said["error"]))
        except exceptions.RayTaskError as error:  # not the task's own: that is in its answer
            raise WebtextError(f"the task {self._tasks[position].name} could not be begun: {error.cause!r}.") from error
        except exceptions.RayError as error:
            self._attempts.fail(position, _how_it_ended(error))
        self._on_progress(position, 0)
        self._todo.append(position)

    def _stop(self) -> None:
        """Stop what still runs, so that nothing writes after the end."""
        with contextlib.suppress(Exception):
            for reference in self._running:
                ray.cancel(reference, force=True)
            if self._running:
                ray.wait(list(self._running), num_returns=len(self._running), timeout=STOP_SECONDS)


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
