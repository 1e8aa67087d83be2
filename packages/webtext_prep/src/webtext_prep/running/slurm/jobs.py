"""One job of an array as the engine sees it: its tasks, what Slurm says of it, and in which words it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.slurm.arrays import JobArray
from webtext_prep.running.slurm.commands import JobState
from webtext_prep.running.task import Task

NODE_TROUBLES = frozenset(["BOOT_FAIL", "LAUNCH_FAILED", "NODE_FAIL", "PREEMPTED", "RECONFIG_FAIL", "REVOKED"])
"""States that say nothing of the job itself."""
_ENDS = {
    "OUT_OF_MEMORY": ("was killed, because memory ran out", "ask for more, as with --slurm-options '--mem=16G', and "),
    "TIMEOUT": (
        "came to its time limit",
        "ask for more, as with --slurm-options '--time=8:00:00', or give fewer --slurm-tasks-per-job, and ",
    ),
    "NODE_FAIL": ("lost its node", ""),
    "PREEMPTED": ("was preempted", ""),
    "FORGOTTEN": ("ended without a result, and Slurm does not know why", ""),
    "COMPLETED": ("ended without a result", ""),
}
"""State -> what happened, and what to do about it."""


@dataclass
class Job:
    """One job that may still give results.

    Attributes:
        array: the array that it belongs to.
        number: its number there.
        positions: of its tasks among those of this run; None for one that this run does not ask for.
        state: what Slurm said last.
        ended: when it was first said to have ended.
    """

    array: JobArray
    number: int
    positions: Sequence[int | None]
    state: JobState
    ended: float | None = None

    def __str__(self) -> str:
        return f"Slurm job {self.state.array}_{self.number}"

    def how_it_ended(self) -> str:
        """As the end of a sentence about one of its tasks."""
        reason = f" ({self.state.state}{f', {self.state.reason}' if self.state.reason not in ('', 'None') else ''})"
        known, _ = _ENDS.get(self.state.state, ("ended early" + reason, ""))
        return f"its {self} {known}"

    def never_begun(self) -> WebtextError:
        """The error for a job that ended before its first task, as any other one would."""
        lines = self.array.last_lines(self.number)
        if lines is None:
            return InputError(
                f"{self} left no log in {self.array.log(self.number).parent}: the state folder must lie on a file "
                "system that this machine and all nodes of the cluster see under the same path, give such a one with "
                "--state DIR."
            )
        said = next((line for line in reversed(lines) if line.strip()), "it says nothing").strip().rstrip(".")
        error = WebtextError(
            f"{self} ended ({self.state.state}) before its first task: {said}: see {self.array.log(self.number)}, and "
            "run the same command again."
        )
        error.add_note("\n".join(lines))
        return error

    def given_up(self, task: Task, attempts: int) -> WebtextError:
        """The error for the task that it was at when it ended, which was tried so often."""
        source = f" (reading {task.inputs[0]})" if task.inputs else ""
        _, advice = _ENDS.get(self.state.state, ("", ""))
        advice = advice or f"see {self.array.log(self.number)}, and "
        error = WebtextError(
            f"the task {task.name}{source} failed {attempts} times: {self.how_it_ended()}: {advice}run the same "
            "command again, it resumes from the last finished shard."
        )
        error.add_note(f"the end of {self.array.log(self.number)}:")
        error.add_note("\n".join(self.array.last_lines(self.number) or ["(there is no such file)"]))
        return error
