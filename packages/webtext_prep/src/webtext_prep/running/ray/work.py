"""What a task of ours is on a node of a Ray cluster: one call, its answer, and reports while it runs.

How far a task is goes to the control store of the cluster, a few bytes every other second: Ray gives no other way out
of a task that still runs, but actors and the object store. That interface is not a public one of Ray's. Where it should
fail, progress comes as tasks end, and nothing else is lost.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from command_kit import available_cores
from webtext_prep.running.engines.attempts import answer, travelling
from webtext_prep.running.open_files import allow_open_files
from webtext_prep.running.task import Context

REPORT_SECONDS = 2.0
"""Between two reports of a task."""
NAMESPACE = b"webtext"


@dataclass(frozen=True)
class Surroundings:
    """What all tasks of a run have in common.

    Attributes:
        run: names the run in the control store.
        scratch: the job's folder.
        at_once: how many tasks the run has at once.
        cwd: the folder that relative paths begin at.
        search: where the driver looks for modules.
    """

    run: str
    scratch: Path
    at_once: int
    cwd: str
    search: tuple[str, ...]


def work(surroundings: Surroundings, position: int, attempt: int, packed: bytes) -> tuple[bytes, int]:
    """Run a task; returns its pickled `Answer`, and how many units it reported."""
    with contextlib.suppress(OSError):  # a node that sees storage alone
        surroundings.scratch.mkdir(parents=True, exist_ok=True)
        os.chdir(surroundings.cwd)
    sys.path += [folder for folder in surroundings.search if folder not in sys.path]
    allow_open_files()
    reports = _Reports(f"{surroundings.run}/{position}/{attempt}")
    try:
        call, task = pickle.loads(packed)  # noqa: S301 - from the driver, by Ray
        slots = min(surroundings.at_once, _cores_here())
        return pickle.dumps(answer(call, task, Context(surroundings.scratch, slots, reports))), reports.units
    except Exception as error:  # the result can't travel
        return pickle.dumps((False, travelling(error))), reports.units


@cache
def _cores_here() -> int:
    """How many tasks run on this node at once."""
    own = ray.get_runtime_context().get_node_id()
    found = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["NodeID"] == own)
    return max(1, int(next(found, available_cores())))


class _Reports:
    """`Context.report` of a task."""

    def __init__(self, key: str) -> None:
        self._key, self._next = key, time.monotonic() + REPORT_SECONDS
        self.units = 0

    def __call__(self, units: int) -> None:
        self.units = units
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_SECONDS
            with contextlib.suppress(Exception):
                _internal_kv_put(self._key, str(units), namespace=NAMESPACE)


def look(keys: Iterable[tuple[int, str]], seen: Callable[[int, int], None]) -> None:
    """Tell `seen(position, units)` what tasks have reported under the keys `run/position/attempt`."""
    with contextlib.suppress(Exception):
        for position, key in keys:
            if found := _internal_kv_get(key, namespace=NAMESPACE):
                seen(position, int(found))


def forget(run: str) -> None:
    """Remove all reports of a run."""
    with contextlib.suppress(Exception):
        _internal_kv_del(f"{run}/", del_by_prefix=True, namespace=NAMESPACE)
