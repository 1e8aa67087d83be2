"""Calibration: a few timed steps before the first one, which leave no trace in the training.

They are done on the first batch without the optimizer: the run that follows is to the last bit the one without them.
What they measure is how many CPU threads are fastest (`--threads auto`): on a busy machine fewer than it has cores,
since threads that wait for one that has no core are slower than none. Costs a few seconds, which are part of the time
of `--minutes`. All processes calibrate together, and the first one decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from gpt2_train.collectives import from_first_rank
from gpt2_train.prepare import Prepared

clock = time.monotonic
"""Seconds; tests put another one in its place."""

THREADS_SECONDS, ROUNDS = 0.3, 3
"""How long each number of threads is timed in each round (or one step), and rounds."""

THREADS_STATE = "threads"


def measured_state(run: Prepared) -> dict[str, Any]:
    """What a checkpoint stores of what was measured, for a run that resumes to keep to."""
    return {THREADS_STATE: torch.get_num_threads()} if run.settings.threads == "auto" else {}


def seconds_per_step(step: Callable[[], object], limit: float) -> tuple[float, int]:
    """The mean time of a step, and of how many: as many as begin within `limit` seconds, one at least.

    All processes take as many as the first one has time for.
    """
    begin, count = clock(), 0
    while True:
        step()
        count += 1
        elapsed = from_first_rank(lambda: clock() - begin)
        if elapsed >= limit:
            return elapsed / count, count


def choose_threads(run: Prepared, practice_step: Callable[[], object]) -> None:
    """Set the CPU threads of this process to the number that is fastest now, or that its checkpoint was trained with.

    A recorded number is not taken on a machine with fewer cores. `practice_step` takes a step that leaves no trace. All
    processes call this together.
    """
    most = torch.get_num_threads()
    recorded = run.resumed.state.get(THREADS_STATE) if run.resumed is not None else None
    if recorded is not None and from_first_rank(lambda: recorded <= most):
        torch.set_num_threads(recorded)
        return
    if from_first_rank(lambda: most) == 1:
        return

    run.world.say("threads: timing a step with each number of them")

    def measure(threads: int) -> float:
        torch.set_num_threads(threads)
        practice_step()
        return seconds_per_step(practice_step, THREADS_SECONDS)[0]

    best, seconds = fastest(thread_counts(from_first_rank(lambda: most)), measure)
    torch.set_num_threads(best)
    found = ", ".join(f"{threads}: {mean:.3f} s" for threads, mean in sorted(seconds.items()))
    run.world.say(f"threads: {best} (a step takes, by threads, {found})")


def thread_counts(most: int) -> list[int]:
    """The numbers of threads that are tried: all cores, half of them, a quarter, and so on."""
    counts = [most]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return counts


def fastest(counts: list[int], measure: Callable[[int], float]) -> tuple[int, dict[int, float]]:
    """The number of threads with the shortest step, and the mean seconds of each that was tried.

    They take turns, so that a load that comes and goes hits all alike; one that is twice as slow as another is left
    out from then on.
    """
    totals: dict[int, list[float]] = {}
    for _ in range(ROUNDS):
        means = {threads: sum(times) / len(times) for threads, times in totals.items()}
        for threads in counts:
            if not means or means[threads] < 2 * min(means.values()):
                totals.setdefault(threads, []).append(measure(threads))
    means = {threads: sum(times) / len(times) for threads, times in totals.items()}
    return min(means, key=lambda threads: means[threads]), means
