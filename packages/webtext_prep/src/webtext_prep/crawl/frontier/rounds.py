"""The rounds of a download whose tasks run at once: what is fetched in which, seen from the command; see `redirects`.

The lists that a pass works on are noted when its first round begins: a run that resumes it has the same rounds, and
finds its tasks' markers and journals, also when some of the lists are finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from webtext_prep import storage
from webtext_prep.crawl.frontier.politeness import MAX_REDIRECTS
from webtext_prep.crawl.state.history import ROUNDS
from webtext_prep.running.run import Run
from webtext_prep.running.tasks import Context, Task
from webtext_prep.storage.stores.base import Location

LISTS = "lists.json"
"""In the folder of rounds: the lists of this pass, and its number."""
FOUND_SUFFIX, LEFT_SUFFIX = ".found", ".left"
PARTS = 64
"""Parts of all sites, each with a task of its own, in the rounds behind that of the lists, at most."""
FEW = 10_000
"""So few visits are left to one task for all hosts."""

Call = Callable[[Task, Context], Any]


def lists_due(job: Run, tasks: Sequence[Task], is_due: Callable[[Any], bool]) -> list[int]:
    """The numbers of the lists that are fetched in rounds; none where one task at a time may ask all hosts."""
    place, this_pass = job.scratch / ROUNDS / LISTS, tasks[0].hints["retry_pass"] if tasks else 0
    with contextlib.suppress(OSError, ValueError):
        begun = json.loads(storage.read_bytes(place))
        if begun["pass"] == this_pass:
            return list(begun["lists"])
    known = job.known("shards", tasks)
    due = [number for number, result in enumerate(known) if result is None or is_due(result)]
    if len(due) < 2 or (job.is_here and job.workers == 1):
        return []
    storage.write_json(place, {"pass": this_pass, "lists": due})
    return due


def fetch_in_rounds(
    job: Run, tasks: Sequence[Task], due: Sequence[int], fetch: Call, follow: Call, unit: str
) -> list[Location]:
    """Have all visits of the lists `due` made; returns the files with what was found by tasks other than a list's own.

    Args:
        job: the job.
        tasks: of all lists, by number; they are to write the shards behind this.
        due: numbers of lists.
        fetch: the task of a list, which leaves what leads to the hosts of others.
        follow: the task of a later round.
        unit: what both report.
    """
    folder, parts = job.scratch / ROUNDS, min(PARTS, len(job.inputs))
    hints = dict(tasks[0].hints)
    this_pass = hints["retry_pass"]
    own = [_of_list(job, tasks[number], number, folder, parts) for number in due]
    results = job.map("pages", fetch, own, unit=unit, again=lambda result: result["retry_pass"] < this_pass)
    latest, before, found = [task.outputs[0] for task in own], list[Location](), list[Location]()
    left, stuck = _sum(results, "left"), _sum(results, "all")
    for number in itertools.count(1):
        if not left:
            break
        is_last = left <= FEW or left == stuck or number > MAX_REDIRECTS
        options = {"parts": parts, "lists": len(job.inputs), "latest": len(latest)}
        name = f"redirects-{this_pass}-{number}"
        round_of = [
            Task(
                f"{name}-{'all' if part is None else f'{part:05}'}",
                (*latest, *(before if is_last else ())),
                options={**options, "part": part},
                hints={"retry_pass": this_pass},
            )
            for part in ([None] if is_last else range(parts))
        ]
        round_of = [
            dataclasses.replace(
                task, outputs=(folder / f"{task.name}{FOUND_SUFFIX}", folder / f"{task.name}{LEFT_SUFFIX}")
            )
            for task in round_of
        ]
        results = job.map("redirects", follow, round_of, unit=unit, total=left if is_last else left - stuck)
        found += [task.outputs[0] for task in round_of]
        before, latest = [*before, *latest], [task.outputs[1] for task in round_of]
        left, stuck = (0 if is_last else stuck) + _sum(results, "left"), stuck + _sum(results, "all")
    return found


def _of_list(job: Run, task: Task, number: int, folder: Location, parts: int) -> Task:
    """The task of the first round for the list of a shard's task; it reads the shard, if there is one from earlier."""
    finished = task.outputs[:2] if all(map(storage.is_file, task.outputs[:2])) else ()
    return Task(
        task.name,
        task.inputs,
        (folder / f"{task.name}{LEFT_SUFFIX}",),
        {**task.options, "list": number, "lists": len(job.inputs), "parts": parts},
        {**task.hints, "finished": len(finished)},
        reads=(*finished, *task.reads),
    )


def _sum(results: Sequence[dict[str, Any]], key: str) -> int:
    return sum(result[key] for result in results)
