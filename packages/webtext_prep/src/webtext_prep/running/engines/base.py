"""The interface of an engine, a place to run tasks, and what every engine guarantees.

An engine is given picklable tasks and gives back their small results as they finish; nothing else passes between
them. Everything a task makes lies in the files that it names. An engine tries a task again where trying may help: a
worker that died, or a `RetryableError`, costs its task one of `MAX_ATTEMPTS`; any other exception is raised at once.

An engine need not know how files come to a task on another machine: the call that the job gives it does that
(`running/staging.py`), and raises InputError on a machine that can't see them.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from command_kit import available_cores
from webtext_prep.errors import RetryableError, WebtextError
from webtext_prep.running.tasks import Context, Task

MAX_ATTEMPTS = 4
"""How often a task is tried: once, and three times again."""

Call = Callable[[Task, Context], Any]
"""A task's function, picklable: a bound method of a stage."""
OnProgress = Callable[[int, int], None]
"""Is told the position of a task and how many units of it are done in all; a retried task begins at 0 again."""


def stage_of(call: Call) -> Any:
    """The stage whose method a call is, also where the job has wrapped it; None for any other function."""
    return getattr(getattr(call, "call", call), "__self__", None)


def libraries_of(call: Call) -> tuple[str, ...]:
    """The libraries of the stage whose method a call is; see `Stage.libraries`."""
    named: tuple[str, ...] = getattr(stage_of(call), "libraries", ())
    return named


def travelling(error: Exception | SystemExit) -> Exception:
    """An exception as another process can have it, its traceback as a note.

    One that pickle can't bring there whole becomes a WebtextError that names it.
    """
    notes = f"where the task ran:\n{''.join(traceback.format_exception(error)).rstrip()}"
    try:
        pickle.dumps(error)
        found = copy.copy(error)  # made again as pickle makes it
        str(found)
        if type(found) is not type(error) or not isinstance(found, Exception):
            raise TypeError
    except Exception:
        found = WebtextError(_sentence(error))
    found.add_note(notes)
    return found


def _sentence(error: Exception | SystemExit) -> str:
    if isinstance(error, SystemExit):
        return f"internal error: a task ended its process with exit code {error.code}."
    message = ""
    with contextlib.suppress(Exception):  # some fail even here
        message = f": {error}"
    return f"internal error: {type(error).__name__}{message} (run again with --debug for more)."


@dataclass(frozen=True)
class NoSettings:
    """The settings of an engine that has none of its own."""


class Engine(abc.ABC):
    """A place to run tasks.

    To make one costs nothing: no process or connection is started before `run`.

    Args:
        workers: how many tasks run at once; 0 for as many as there are cores.
        settings: an instance of its `settings_class`; by default one with default values.

    Raises InputError, saying what to install, where a package that it needs is missing.
    """

    name: ClassVar[str]
    """What `--engine` calls it."""
    is_here: bool = False
    """Whether tasks run on this machine, whose memory they then need, and whose files they see. If not, the job hands
    the engine a call that brings the files between phases to each task and takes them back."""
    settings_class: ClassVar[type] = NoSettings
    """A frozen dataclass of its own settings, made by `setting`. Each begins with the engine's name, as `ray_address`
    of the engine `ray`; none is part of the identity of an output."""

    def __init__(self, workers: int, settings: Any = None) -> None:
        self.workers = workers or available_cores()
        self.settings = self.settings_class() if settings is None else settings

    @abc.abstractmethod
    def run(
        self, call: Call, tasks: Sequence[Task], *, scratch: Path, on_progress: OnProgress
    ) -> Iterator[tuple[int, Any]]:
        """Call `call(task, context)` for each task and yield (position, result) as they finish, in any order.

        Args:
            call: the function; picklable.
            tasks: what to call it with; picklable, options and hints JSON-like.
            scratch: the job's folder for files that only one node needs, the same path on each. It is there on this
                machine; an engine of other machines makes it where it is not.
            on_progress: called now and then with the progress of each task.

        Raises a task's exception, after the other running tasks have been stopped; WebtextError naming the task that
        failed `MAX_ATTEMPTS` times.
        """

    def close(self) -> None:  # noqa: B027 - most engines keep nothing
        """Stop what `run` has started and kept for its next call."""


class Attempts:
    """How often each task of a run has failed.

    Args:
        tasks: the tasks.
        advice: what to do where memory may have run out, as the end of a sentence.
    """

    def __init__(self, tasks: Sequence[Task], advice: str = "with fewer --workers") -> None:
        self._tasks, self._advice = tasks, advice
        self._failures: Counter[int] = Counter()

    def failed(self, position: int) -> int:
        """How often a task has failed."""
        return self._failures[position]

    def fail(self, position: int, reason: str, error: Exception | None = None) -> None:
        """Note that a task failed at something that may go well if it is tried again.

        Raises WebtextError, which names the task and the reason, when it has failed `MAX_ATTEMPTS` times.
        """
        self._failures[position] += 1
        if self._failures[position] >= MAX_ATTEMPTS:
            task = self._tasks[position]
            source = f" (reading {read[0]})" if (read := task.reads.all()) else ""
            raise WebtextError(
                f"the task {task.name}{source} failed {MAX_ATTEMPTS} times: {reason.rstrip('.')}: run the same command "
                f"again, it resumes from the last finished shard; if memory ran out, {self._advice}."
            ) from error

    def refuse_or_fail(self, position: int, error: Exception) -> None:
        """Note the exception of a task, if it is a `RetryableError`. Raises any other."""
        if not isinstance(error, RetryableError):
            raise error
        self.fail(position, str(error), error)
