"""A cluster of Ray's: joined, or started on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator

import ray

from webtext_prep.errors import InputError, WebtextError

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
        if self._is_ours:
            with _signals_kept():
                ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def cores(self) -> int:
        """How many tasks with one core each run at once now."""
        return int(ray.cluster_resources().get("CPU", 0))

    @property
    def largest_memory(self) -> int:
        """Bytes of memory that tasks may state on the node that has most of it; 0 where no node is known."""
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
