"""A cluster of Ray's: joined, or started on this machine; and whether its nodes can run our tasks."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import ray
import ray._private.worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.ray import cleaner
from webtext_prep.running.versions import refuse_others

LONGEST_FOLDER = 40
"""Bytes of the name of Ray's folder. It makes sockets 61 deeper, and the system allows 107."""
OBJECT_STORE_BYTES = 80 << 20
"""Of a local Ray, about the least that it takes: results are small."""
START_ATTEMPTS = 3
"""A busy machine may take longer to start a Ray than it allows itself; the next time its files are in memory."""
PROBE_SECONDS = 120.0
"""How long the nodes may take to answer before those that have not are left to the tasks."""


class Cluster:
    """The Ray that tasks run on.

    Args:
        address: of its head, or `auto`; "" starts a Ray on this machine.
        workers: how many tasks a Ray that is started here runs at once.

    A Ray that this process has joined before is used as it is. Raises InputError, WebtextError where there is none.
    """

    def __init__(self, address: str, workers: int) -> None:
        self._address = address
        self._cleaner: subprocess.Popen[bytes] | None = None
        self._is_ours = not ray.is_initialized()
        self._checked: set[str] = set()
        _silence()
        if not self._is_ours:
            return
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing about the work is told to anybody
        with _signals_kept():
            if address:
                self._join()
            else:
                self._start(workers)

    def _join(self) -> None:
        try:
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            raise InputError(
                f"no Ray cluster can be joined at --ray-address {self._address} ({_in_one_line(error)}): run the "
                "command on one of its machines, with the versions of Python and Ray that they have, and, where they "
                "ask for a token, with RAY_AUTH_MODE=token and their ~/.ray/auth_token."
            ) from error

    def _start(self, workers: int) -> None:
        # A Ray that is started so asks for a token. Ray would write one to ~/.ray, and its presence there has each
        # `ray start --head` of this user ask for it, which nodes and commands then do not know.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > LONGEST_FOLDER - len("/ray-12345678"):
            base = "/tmp"  # noqa: S108 - a folder of our own below it
        for attempt in range(1, START_ATTEMPTS + 1):
            folder = tempfile.mkdtemp(prefix="ray-", dir=base)
            self._cleaner = cleaner.started(folder)
            try:
                ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=folder,
                )
                return
            except Exception as error:
                self.close()
                if attempt == START_ATTEMPTS:
                    raise WebtextError(
                        f"Ray could not be started on this machine ({_in_one_line(error)}): run the same command "
                        "again, or choose --engine local."
                    ) from error
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Leave a cluster that was joined; stop a Ray that was started."""
        if self._is_ours:
            with _signals_kept():
                ray.shutdown()
        if self._cleaner is not None:
            self._cleaner.communicate()
            self._cleaner = None

    @property
    def cores(self) -> int:
        """How many tasks with one core each run at once now."""
        return int(ray.cluster_resources().get("CPU", 0))

    @property
    def largest_memory(self) -> int:
        """Bytes of memory that tasks may state on the node that has most of it; 0 where no node is known."""
        return max((int(node["Resources"].get("memory", 0)) for node in _nodes()), default=0)

    def check_nodes(self, wanted: dict[str, str]) -> None:
        """Look at nodes that are new. Raises InputError for one that lacks the versions that are `wanted`.

        Nodes that do not answer in time are not refused: the tasks that come there find out, as they do on those that
        join the cluster while tasks are waited for.
        """
        new = [node for node in _nodes() if node["NodeID"] not in self._checked]
        if not new:
            return
        asked = {_asked(node["NodeID"], wanted): node for node in new}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=PROBE_SECONDS)
        for answer in ready:
            node = asked[answer]
            with contextlib.suppress(ray.exceptions.RayError):  # it is gone again
                found = ray.get(answer)
                refuse_others(found, wanted, node["NodeManagerHostname"])
        self._checked |= {node["NodeID"] for node in new}


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _asked(node: str, wanted: dict[str, str]) -> Any:
    """A node's answer to come: its `versions_here`. The function goes there whole: the node may lack this package."""

    def look(packages: list[str]) -> dict[str, str]:
        import platform
        from importlib import metadata

        found = {"Python": ".".join(platform.python_version_tuple()[:2])}
        for package in packages:
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                found[package] = ""
        return found

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return (
        ray.remote(look)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=where)
        .remote([name for name in wanted if name != "Python"])
    )


def _in_one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line).rstrip(".") or type(error).__name__


def _silence() -> None:
    """Keep what Ray says of dead workers away from standard output, which is the command's own: the engine says it.

    There is no public way. Where the function has another name, a later version of Ray says it again.
    """
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda *_, **__: None


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo what Ray does to signals: it would end this process at SIGTERM, with nothing put in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
