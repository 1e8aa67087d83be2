"""How often a task is tried, which is the same whatever the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from webtext_prep.errors import RetryableError, WebtextError
from webtext_prep.running.engines.base import MAX_ATTEMPTS
from webtext_prep.running.tasks.task import Task


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
