"""A Ray cluster of several nodes, which are processes of this machine and can be killed one by one.

Each node has a folder of its own for temporary files, so that files between phases which are handed over by storage
come to each by itself. The further nodes have addresses of their own (127.0.0.2, ...) where the system lets them:
a command that joins the cluster then is on the first one, which is not killed.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from processes import descendants

OBJECT_STORE_BYTES = 80 << 20
AWS_CONFIG = "aws-config"
"""In the folder of a cluster: the configuration in which its nodes find credentials, if a test writes it."""
ATTEMPTS = 3
"""A busy machine may take longer to start a Ray than it allows itself."""


class RayNodes:
    """The nodes.

    Args:
        cores: of each node, unless it is said otherwise.

    Attributes:
        address: what `--ray-address` is to be.
        folder: where everything of the cluster lies.
    """

    def __init__(self, cores: int = 2) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # short: sockets lie in it
        self._cores, self._number, self._others = cores, 0, []
        (self.folder / "ray").mkdir()
        with self._environment():
            try:
                self._start()
            except BaseException:
                shutil.rmtree(self.folder, ignore_errors=True)
                raise

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """Ray uses $RAY_TMPDIR/ray for itself."""
        ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(self.folder)}
        before = {name: os.environ.get(name) for name in ours}
        os.environ |= ours
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def _start(self) -> None:
        from ray.cluster_utils import Cluster

        for attempt in range(ATTEMPTS):
            self._cluster = Cluster()
            try:
                self._first = self._cluster.add_node(**self._settings(self._cores), include_dashboard=False)
                break
            except Exception:
                self._cluster.shutdown()
                if attempt == ATTEMPTS - 1:
                    raise
        self.address = self._cluster.address

    def _settings(self, cores: int) -> dict:
        temporary = self.folder / f"node-{self._number}"
        temporary.mkdir(exist_ok=True)
        memory = {"object_store_memory": OBJECT_STORE_BYTES}
        variables = {"TMPDIR": str(temporary), "AWS_CONFIG_FILE": str(self.folder / AWS_CONFIG)}
        return {"num_cpus": cores, **memory, "env_vars": variables}

    def add(self, cores: int = 0):
        """Start one more node."""
        self._number += 1
        settings = self._settings(cores or self._cores)
        if sys.platform == "linux":
            settings["node_ip_address"] = f"127.0.0.{1 + self._number}"
        with self._environment():
            self._others.append(self._cluster.add_node(**settings))
        return self._others[-1]

    def kill(self, node=None) -> None:
        """Kill a node, with its workers: by default the one that was added last."""
        node = node or self._others[-1]
        self._others.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    @staticmethod
    def processes(node) -> set[int]:
        """The workers of a node."""
        return descendants(node.all_processes["raylet"][0].process.pid)

    def at_work(self) -> list[int]:
        """The workers, of all nodes, that are at one of our tasks."""
        found = []
        for node in [self._first, *self._others]:
            for pid in self.processes(node):
                try:
                    title = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if title.startswith(b"ray::webtext"):
                    found.append(pid)
        return found

    def stop(self) -> None:
        """End all of them."""
        self._cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)
