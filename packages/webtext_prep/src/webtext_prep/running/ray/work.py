"""What a task of ours is on a node of a Ray cluster: one call, its answer, and reports while it runs.

How far a task is goes to the control store of the cluster, a few bytes every other second: Ray gives no other way out
of a task that still runs, but actors and the object store. That interface is not a public one of Ray's. Where it should
fail, progress comes as tasks end, and nothing else is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from command_kit import available_cores
from webtext_prep.errors import InputError
from webtext_prep.running import wire
from webtext_prep.running.engines.base import Call
from webtext_prep.running.open_files import allow_open_files
from webtext_prep.running.task import Context
from webtext_prep.running.versions import refuse_others, versions_here

REPORT_SECONDS = 2.0
"""Between two reports of a task."""
NAMESPACE = b"webtext"


@dataclass(frozen=True)
class Surroundings:
    """What all tasks of a phase have in common.

    Attributes:
        versions: what the driver's `versions_here` are, with those of the stage's libraries.
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


def work(phase: str, task: str, report_as: str) -> str:
    """Run a task.

    Args:
        phase: the `Surroundings` and the call, as `pack` puts them together.
        task: the task, encoded by `wire`, as JSON.
        report_as: the key of its reports in the control store.

    Returns the JSON object of the units that it reported, and its `result` or its `error`, encoded by `wire`.
    """
    reports = _Reports(report_as)
    said: dict[str, Any]
    try:
        surroundings, call = _unpack(phase)
        slots = min(surroundings.at_once, _cores_here())
        result = call(wire.decode(json.loads(task)), Context(surroundings.scratch, slots, reports))
        said = {"result": wire.encode(result)}
    except (Exception, SystemExit) as error:
        said = {"error": wire.encode_error(error)}
    return json.dumps({"units": reports.units, **said})


def pack(surroundings: Surroundings, call: Call) -> str:
    """What all tasks of a phase are told. Raises TypeError for a call that can't travel."""
    return json.dumps({"surroundings": wire.encode(surroundings), "call": wire.encode(call)})


@lru_cache(maxsize=1)
def _unpack(phase: str) -> tuple[Surroundings, Call]:
    """The inverse of `pack`; makes this process look like the driver. Ray keeps it for tasks of one driver alone.

    Raises InputError where it can't: other versions are installed (a node may have come after they were asked), or a
    setting does not hold here.
    """
    values = json.loads(phase)
    surroundings: Surroundings = wire.decode(values["surroundings"])
    refuse_others(versions_here(surroundings.versions.keys() - {"Python"}), surroundings.versions, platform.node())
    with contextlib.suppress(OSError):  # a node that sees storage alone
        surroundings.scratch.mkdir(parents=True, exist_ok=True)
        os.chdir(surroundings.cwd)
    sys.path += [folder for folder in surroundings.search if folder not in sys.path]
    allow_open_files()
    try:
        return surroundings, wire.decode(values["call"])
    except InputError as error:  # a file that a setting names, which this machine has not
        raise InputError(f"on the machine {platform.node()}: {error}") from error


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
