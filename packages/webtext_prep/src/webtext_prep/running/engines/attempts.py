"""What all engines do alike with the tries of a task: how it is called, how often, and how its exceptions travel."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from webtext_prep.errors import RetryableError, WebtextError
from webtext_prep.running.engines.base import MAX_ATTEMPTS, Call
from webtext_prep.running.task import Context, Task

Answer = tuple[bool, Any]
"""Whether a task went well; its result, or the exception that it ended with."""


def answer(call: Call, task: Task, context: Context) -> Answer:
    """Call a task in another process than the one that waits for it."""
    try:
        return True, call(task, context)
    except (Exception, SystemExit) as error:
        return False, travelling(error)


def travelling(error: Exception | SystemExit) -> Exception:
    """The exception with its traceback as a note; if it can't be pickled, an error that names it."""
    error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, SystemExit):
        return WebtextError(f"internal error: a task ended its process with exit code {error.code}.")
    message = ""
    try:
        message = f": {error}"  # some fail even here
        # As connections do it.
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return WebtextError(f"internal error: {type(error).__name__}{message} (run again with --debug for more).")
    return error


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
            source = f" (reading {task.inputs[0]})" if task.inputs else ""
            raise WebtextError(
                f"the task {task.name}{source} failed {MAX_ATTEMPTS} times: {reason.rstrip('.')}: run the same command "
                f"again, it resumes from the last finished shard; if memory ran out, {self._advice}."
            ) from error

    def refuse_or_fail(self, position: int, error: Exception) -> None:
        """Note the exception of a task, if it is a `RetryableError`. Raises any other."""
        if not isinstance(error, RetryableError):
            raise error
        self.fail(position, str(error), error)
