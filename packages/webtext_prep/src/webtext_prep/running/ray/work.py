"""What a task of ours is on a node of a Ray cluster: one call, its answer, and reports while it runs.

How far a task is goes to an actor, a few bytes every other second, which the command asks. Only a phase that takes more
than some seconds has one: it is a process of its own. If it is lost with its node, progress comes as tasks end.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import ray

from command_kit import available_cores
from webtext_prep.errors import InputError
from webtext_prep.running.engines.base import Call
from webtext_prep.running.tasks import codec
from webtext_prep.running.tasks.open_files import allow_open_files
from webtext_prep.running.tasks.task import Context
from webtext_prep.running.versions import refuse_others, versions_here

REPORT_SECONDS = 2.0
"""Between two reports of a task."""


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


def work(phase: str, task: str, position: int, reports: str) -> str:
    """Run a task.

    Args:
        phase: the `Surroundings` and the call, encoded by `wire`, as JSON.
        task: the task, likewise.
        position: of the task.
        reports: the name of the actor.

    Returns the JSON object of the units that it reported, and its `result` or its `error`, encoded by `wire`.
    """
    done, due = 0, time.monotonic() + REPORT_SECONDS

    def report(units: int) -> None:
        nonlocal done, due
        done = units
        if time.monotonic() >= due:
            due = time.monotonic() + REPORT_SECONDS
            with contextlib.suppress(Exception):  # it is not there, or not yet
                ray.get_actor(reports).put.remote(position, units)

    said: dict[str, Any]
    try:
        surroundings, call = _unpack(phase)
        slots = min(surroundings.at_once, _cores_here())
        result = call(codec.decode(json.loads(task)), Context(surroundings.scratch, slots, report))
        said = {"result": codec.encode(result)}
    except (Exception, SystemExit) as error:
        said = {"error": codec.encode_error(error)}
    return json.dumps({"units": done, **said})


@lru_cache(maxsize=1)
def _unpack(phase: str) -> tuple[Surroundings, Call]:
    """The surroundings and the call; makes this process look like the driver. Ray keeps it for tasks of one driver.

    Raises InputError where it can't: other versions are installed, or a setting does not hold here.
    """
    encoded_surroundings, encoded_call = json.loads(phase)
    surroundings: Surroundings = codec.decode(encoded_surroundings)
    refuse_others(versions_here(surroundings.versions.keys() - {"Python"}), surroundings.versions, platform.node())
    with contextlib.suppress(OSError):  # a node that sees storage alone
        surroundings.scratch.mkdir(parents=True, exist_ok=True)
        os.chdir(surroundings.cwd)
    sys.path += [folder for folder in surroundings.search if folder not in sys.path]
    allow_open_files()
    try:
        return surroundings, codec.decode(encoded_call)
    except InputError as error:  # a file that a setting names, which this machine has not
        raise InputError(f"on the machine {platform.node()}: {error}") from error


@cache
def _cores_here() -> int:
    """How many tasks run on this node at once."""
    own = ray.get_runtime_context().get_node_id()
    found = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["NodeID"] == own)
    return max(1, int(next(found, available_cores())))
