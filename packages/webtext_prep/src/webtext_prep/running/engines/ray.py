"""Tasks on a cluster that Ray manages, or on this machine by a Ray of its own.

Each task of ours is one task of Ray's, with a core and the memory that its stage states. What travels are the task and
its small result; files go by the file system, or storage (`running/staging.py`). A bounded number of tasks is handed
over, and what comes back is taken or tried again: Ray retries nothing, a worker or node that dies costs its task one of
our own attempts, and the next one may take twice the memory. Only the results that came back count: a driver that dies
takes its tasks with it (Ray ends the workers of a driver that is gone), and the next one hands over the tasks without a
result.

How far a task is goes to an actor, a few bytes every other second, which the command asks. Only a phase that takes more
than some seconds has one: it is a process of its own. If it is lost with its node, progress comes as tasks end.

Starting a Ray on this machine costs some 14 s of CPU time, the first tasks included, whose workers import Ray and their
stage. After that a task costs 3 ms. Ray is imported where it is used: that takes a second, and every command knows its
flags.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import os
import platform
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import available_cores, setting
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.engines.base import Attempts, Call, Engine, OnProgress, libraries_of, stage_of, travelling
from webtext_prep.running.processes import allow_open_files, refuse_others, versions_here
from webtext_prep.running.tasks import Context, Task

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.exceptions import RayError

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
        if self._cluster is None:
            self._cluster = Cluster(self.settings.ray_address, self.workers)
        yield from RayRun(self._cluster, call, tasks, scratch.absolute(), on_progress, self._most).run()

    def close(self) -> None:
        """Leave the cluster; a Ray that was started for this engine is stopped."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


LONGEST_FOLDER = 40
"""Bytes of the name of Ray's folder. It makes sockets 61 deeper, and the system allows 107."""
OBJECT_STORE_BYTES = 80 << 20
"""Of a local Ray, about the least that it takes: results are small."""


class Cluster:
    """The Ray that tasks run on.

    Args:
        address: of its head, or `auto`; "" starts a Ray on this machine.
        workers: how many tasks a Ray that is started here runs at once.

    A Ray that this process has joined before is used as it is. Raises InputError, WebtextError where there is none.
    """

    def __init__(self, address: str, workers: int) -> None:
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        import ray

        self._is_ours, self._folder = not ray.is_initialized(), ""
        if not self._is_ours:
            return
        try:
            with _signals_kept():
                if address:
                    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
                else:
                    self._start(workers)
        except Exception as error:
            self.close()
            said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            if address:
                raise InputError(
                    f"no Ray cluster can be joined at --ray-address {address} ({said}): run the command on one of its "
                    "machines, with the versions of Python and Ray that they have, and, where they ask for a token, "
                    "with RAY_AUTH_MODE=token and their ~/.ray/auth_token."
                ) from error
            raise WebtextError(
                f"Ray could not be started on this machine ({said}): run the same command again, or choose --engine "
                "local."
            ) from error
        except BaseException:
            self.close()
            raise

    def _start(self, workers: int) -> None:
        import ray

        # A Ray that is started so asks for a token. Ray would write one to ~/.ray, and its presence there has each
        # `ray start --head` of this user ask for it, which nodes and commands then do not know.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > LONGEST_FOLDER - len("/ray-12345678"):
            base = "/tmp"  # noqa: S108 - a folder of our own below it
        self._folder = tempfile.mkdtemp(prefix="ray-", dir=base)
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=self._folder,
        )

    def close(self) -> None:
        """Leave a cluster that was joined; stop a Ray that was started."""
        import ray

        if self._is_ours:
            with _signals_kept():
                ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def cores(self) -> int:
        """How many tasks with one core each run at once now."""
        import ray

        return int(ray.cluster_resources().get("CPU", 0))

    @property
    def largest_memory(self) -> int:
        """Bytes of memory that tasks may state on the node that has most of it; 0 where no node is known."""
        import ray

        return max((int(node["Resources"].get("memory", 0)) for node in ray.nodes() if node["Alive"]), default=0)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo what Ray does to signals: it would end this process at SIGTERM, with nothing put in order."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


REPORT_SECONDS = 2.0
"""Between two reports of a task."""


@dataclass(frozen=True)
class Surroundings:
    """What all tasks of a phase have in common.

    Attributes:
        versions: the driver's `versions_here`, with the stage's libraries.
        scratch: the job's folder.
        at_once: how many tasks the run has at once.
        cwd: the folder that relative paths begin at.
        search: where the driver looks for modules.
    """

    versions: dict[str, str]
    scratch: Path
    at_once: int
    cwd: str
    search: tuple[str, ...]


class Reports:
    """The actor that knows how many units of each running task are done."""

    def __init__(self) -> None:
        self._units: dict[int, int] = {}

    def put(self, position: int, units: int) -> None:
        """Note how far a task is."""
        self._units[position] = units

    def take(self) -> dict[int, int]:
        """What was noted since this was asked last."""
        found, self._units = self._units, {}
        return found


def work(
    phase: tuple[ObjectRef, ObjectRef], task: Task, position: int, reports: str
) -> tuple[int, Any, Exception | None]:
    """Run a task.

    Args:
        phase: the `Surroundings` and the call, in Ray's store.
        task: the task.
        position: of the task.
        reports: the name of the actor.

    Returns the units that it reported, and its result or its exception.
    """
    import ray

    done, due = 0, time.monotonic() + REPORT_SECONDS

    def report(units: int) -> None:
        nonlocal done, due
        done = units
        if time.monotonic() >= due:
            due = time.monotonic() + REPORT_SECONDS
            with contextlib.suppress(Exception):  # it is not there, or not yet
                ray.get_actor(reports).put.remote(position, units)

    try:
        surroundings, call = _fetched(*phase)
        slots = min(surroundings.at_once, _cores_here())
        result = call(task, Context(surroundings.scratch, slots, report))
        return done, result, None
    except (Exception, SystemExit) as error:
        return done, None, travelling(error)


@lru_cache(maxsize=1)
def _fetched(common: ObjectRef, function: ObjectRef) -> tuple[Surroundings, Call]:
    """The surroundings and the call; makes this process look like the driver. Ray keeps it for tasks of one driver.

    Raises InputError where it can't: other versions are installed, or a setting does not hold here.
    """
    import ray

    surroundings: Surroundings = ray.get(common)
    refuse_others(versions_here(surroundings.versions.keys() - {"Python"}), surroundings.versions, platform.node())
    with contextlib.suppress(OSError):  # a node that sees storage alone
        surroundings.scratch.mkdir(parents=True, exist_ok=True)
        os.chdir(surroundings.cwd)
    sys.path += [folder for folder in surroundings.search if folder not in sys.path]
    allow_open_files()
    call: Call = ray.get(function)  # now that this process has the same code
    try:
        if (stage := stage_of(call)) is not None:
            dataclasses.replace(stage)  # checks its settings once more
    except InputError as error:  # a file that a setting names, which this machine has not
        raise InputError(f"on the machine {platform.node()}: {error}") from error
    return surroundings, call


@cache
def _cores_here() -> int:
    """How many tasks run on this node at once."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    found = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["NodeID"] == own)
    return max(1, int(next(found, available_cores())))


AT_ONCE_PER_CORE = 2
"""Tasks in Ray's hands for each core of the cluster: one at work, and one ready."""
LEAST_AT_ONCE = 4
"""As many also while a cluster has no cores yet, to be grown for."""
REPORTS_AFTER = 5.0
"""Seconds after which a phase has an actor for reports."""
WAIT_SECONDS = 0.2
STOP_SECONDS = 10.0
"""How long tasks that are cancelled may take to end."""


class RayRun:
    """Runs tasks on a cluster.

    Args:
        cluster: the cluster.
        call: the tasks' function.
        tasks: the tasks.
        scratch: the job's folder.
        on_progress: called with the progress of each task.
        most: how many run at once; 0 for as many as the cluster has cores.
    """

    def __init__(
        self, cluster: Cluster, call: Call, tasks: Sequence[Task], scratch: Path, on_progress: OnProgress, most: int = 0
    ) -> None:
        import ray

        self._cluster, self._tasks, self._on_progress = cluster, tasks, on_progress
        self._most = min(most or len(tasks), len(tasks))
        search = tuple(str(Path(folder).absolute()) for folder in sys.path)
        versions = versions_here(libraries_of(call))
        surroundings = Surroundings(versions, scratch, self._most, str(Path.cwd()), search)
        # Once for all tasks: with the versions of files that they read it may be large.
        self._phase = (ray.put(surroundings), ray.put(call))
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
        import ray

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
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._bound = min(self._most, max(LEAST_AT_ONCE, AT_ONCE_PER_CORE * self._cluster.cores))
        self._largest_memory = self._cluster.largest_memory
        if self._reports is not None and ray.wait([self._asked], timeout=0)[0]:
            with contextlib.suppress(ray.exceptions.RayError):  # it was lost with its node
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
        self._running[remote.remote(self._phase, task, position, self._name)] = position

    def _take(self, reference: Any) -> Iterator[tuple[int, Any]]:
        """What a task has to say; or, if its worker or node died, the task once more."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        position = self._running.pop(reference)
        try:
            units, result, failure = ray.get(reference)
            if failure is None:
                self._on_progress(position, units)
                yield position, result
                return
            self._attempts.refuse_or_fail(position, failure)
        except RayTaskError as error:  # not the task's own: that is in its answer
            name, cause = self._tasks[position].name, error.cause
            raise WebtextError(f"internal error: the task {name}, or its result, can't travel: {cause!r}.") from error
        except RayError as error:
            self._attempts.fail(position, _how_it_ended(error))
        self._on_progress(position, 0)
        self._todo.append(position)

    def _stop(self) -> None:
        """Stop what still runs, so that nothing writes after the end."""
        import ray

        with contextlib.suppress(Exception):
            for reference in self._running:
                ray.cancel(reference, force=True)
            if self._running:
                ray.wait(list(self._running), num_returns=len(self._running), timeout=STOP_SECONDS)


def _memory_of(call: Call) -> int:
    """Bytes that a stage states for a process of its own; 0 where it is not known."""
    return int(getattr(stage_of(call), "process_bytes", 0))


def _how_it_ended(error: RayError) -> str:
    from ray import exceptions

    if isinstance(error, exceptions.OutOfMemoryError):
        return "its worker was killed by Ray, because memory ran out on its node"
    if isinstance(error, exceptions.NodeDiedError | exceptions.LocalRayletDiedError | exceptions.ObjectLostError):
        return "its node died"
    if isinstance(error, exceptions.WorkerCrashedError):
        return "its worker process died, most often because memory ran out"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
