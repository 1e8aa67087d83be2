"""A task: the unit of a stage's work, which is run, marked as done, and retried as a whole.

It is a pure function from files to files and a small JSON result. What its output depends on is its identity; hints
are what it does not depend on, and may differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from webtext_prep.documents.stores.base import Location


@dataclass(frozen=True)
class Task:
    """One unit of work: `stage.<method>(task, context)` in some process, on some machine.

    Attributes:
        name: unique within its phase.
        inputs: the files it reads; when one changes, the task is run again.
        outputs: the files it writes, each atomically.
        options: whatever else its output depends on, as JSON-like values.
        hints: what its output does not depend on (where a journal lies, a limit on pace), as picklable values.
        key: the digest of all that its output depends on, which the job fills in before the task is run.
    """

    name: str
    inputs: tuple[Location, ...]
    outputs: tuple[Location, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    hints: dict[str, Any] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True)
class Context:
    """The surroundings of a task: where it runs, and whom it reports to.

    Attributes:
        scratch: a folder of this node for files that no other task needs. It is kept until the stage is done, so that
            a task that is run again on the same node finds what it left; on another node it finds none.
        slots: how many tasks run on this node at once, to share out its cores and connections.
        report: is told how many units of work (documents, URLs) this task has done in all.
    """

    scratch: Path
    slots: int
    report: Callable[[int], None]
