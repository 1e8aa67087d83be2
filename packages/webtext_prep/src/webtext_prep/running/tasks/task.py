"""A task: the unit of a stage's work, which is run, marked as done, and retried as a whole.

It is a pure function from files to files and a small JSON result. What its output depends on is its identity; hints
are what it does not depend on, and may differ from run to run.

A task reads and writes the files that it names and no others, so that it may run on a machine that sees nothing of the
one that named them (`running/handing_over.py`): there its files lie elsewhere, and it finds them by its own `inputs`,
`reads`, `outputs` and `folders`. No path stands anywhere else in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from webtext_prep.storage.stores.base import Location


@dataclass(frozen=True)
class Task:
    """One unit of work: `stage.<method>(task, context)` in some process, on some machine.

    Attributes:
        name: unique within its phase.
        inputs: the files it reads; when one changes, the task is run again.
        outputs: the files it writes, each atomically.
        options: whatever else its output depends on, as JSON-like values.
        hints: what its output does not depend on (the number of a pass, a limit on pace), as JSON-like values.
        reads: more files that it reads, which are not part of its identity: what they hold follows from its options (a
            digest of it), or only saves work.
        folders: folders for files whose number shows only when it is done. Tasks of later phases name them as inputs.
        key: the digest of all that its output depends on, which the job fills in before the task is run.
    """

    name: str
    inputs: tuple[Location, ...]
    outputs: tuple[Location, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    hints: dict[str, Any] = field(default_factory=dict)
    reads: tuple[Location, ...] = ()
    folders: tuple[Location, ...] = ()
    key: str = ""


@dataclass(frozen=True)
class Context:
    """The surroundings of a task: where it runs, and whom it reports to.

    Attributes:
        scratch: a folder of this node for files that no other task needs. It is kept until the stage is done, so that
            a task that is run again on the same node finds what it left; on another node it finds none.
        slots: how many tasks run on this node at once, to share out its cores and connections.
        report: is told how many units of work (documents, URLs) this task has done in all.
        kept: a folder that all machines of the job see, for what a task wants another node to find if it dies with its
            own: whole files that never change. None for tasks on the machine of the job, which find their scratch.
        local: a folder on a disk of this node's own where `kept` is one, for what a shared file system is not fit for.
    """

    scratch: Path
    slots: int
    report: Callable[[int], None]
    kept: Location | None = None
    local: Path | None = None
