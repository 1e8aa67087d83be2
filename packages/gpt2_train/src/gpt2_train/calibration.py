"""Calibration: a few timed steps before the first one, which leave no trace in the training.

They are done on the first batch with a learning rate of 0, and the optimizer's state is cleared behind them: the run
that follows is to the last bit the one without them. What they measure is how many steps fit into `--minutes`, and how
many CPU threads are fastest (`--threads auto`): on a busy machine fewer than it has cores, since threads that wait for
one that has no core are slower than none. Costs a few seconds, which count as part of the time budget. All processes
calibrate together, and the first one decides.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from gpt2_train.collectives import from_first_rank
from gpt2_train.prepare import Prepared
from gpt2_train.time_budget import EVALUATION_SHARE, UNSETTLED, TimeBudget, steps_that_fit

clock = time.monotonic
"""Seconds; tests put another one in its place."""

BUDGET_SHARE, LONGEST_SECONDS = 0.04, 10.0
"""Of a time budget, what timing its steps may take: a share, and at most so many seconds (or two steps)."""

THREADS_SECONDS, ROUNDS = 0.3, 3
"""How long each number of threads is timed in each round (or one step), and rounds."""

THREADS_STATE = "threads"


class Practice(Protocol):
    """What takes practice steps: the trainer."""

    def practice_step(self, *, moves: bool) -> float:
        """Take a step on the first batch with a learning rate of 0, and wait for it; with the optimizer if `moves`."""

    def forget_practice(self) -> None:
        """Clear what practice steps with the optimizer have left in it."""


def calibrated(run: Prepared, practice: Practice) -> Prepared:
    """`run` with its number of steps settled; the threads of all its processes are chosen by then, too.

    All processes call this together, before the first step.
    """
    begin = clock()
    if run.settings.threads == "auto" and run.world.device.type == "cpu":
        choose_threads(run, practice)
    if run.plan.steps != UNSETTLED or run.settings.minutes is None:
        return run
    minutes = run.settings.minutes
    run.world.say(f"timing a few steps, to see how many {minutes:g} minutes hold")
    practice.practice_step(moves=True)  # pays for compiling, and for memory that is taken for the first time
    limit = min(BUDGET_SHARE * minutes * 60, LONGEST_SECONDS)
    seconds, count = seconds_per_step(lambda: practice.practice_step(moves=True), limit)
    practice.forget_practice()
    left = from_first_rank(lambda: minutes * 60 - (clock() - begin))
    steps = steps_that_fit(left, seconds, evaluation_steps(run), run.settings.eval_every)
    run.world.say(
        f"{minutes:g} minutes hold {steps:,} steps ({run.epochs(steps):.2f} epochs) of {seconds:.3f} s, the mean of "
        f"{count:,} that were tried"
    )
    return dataclasses.replace(run, plan=dataclasses.replace(run.plan, steps=steps, budget=TimeBudget(minutes, steps)))


def measured_state(run: Prepared) -> dict[str, Any]:
    """What a checkpoint stores of what was measured, for a run that resumes to keep to."""
    budget = run.plan.budget.state() if run.plan.budget is not None else {}
    threads = {THREADS_STATE: torch.get_num_threads()} if run.settings.threads == "auto" else {}
    return budget | threads


def evaluation_steps(run: Prepared) -> float:
    """What one evaluation costs, in training steps."""
    if run.validation is None:
        return 0.0
    batches = run.validation.epoch_samples / run.settings.global_batch_size
    return min(batches, run.settings.eval_batches) * EVALUATION_SHARE


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


def choose_threads(run: Prepared, practice: Practice) -> None:
    """Set the CPU threads of this process to the number that is fastest now, or that its checkpoint was trained with.

    A recorded number is not taken on a machine with fewer cores.
    """
    most = torch.get_num_threads()
    recorded = run.resumed.state.get(THREADS_STATE) if run.resumed is not None else None
    if recorded is not None and from_first_rank(lambda: recorded <= most):
        torch.set_num_threads(recorded)
        return
    if from_first_rank(lambda: most) == 1:
        return

    def measure(threads: int) -> float:
        torch.set_num_threads(threads)
        practice.practice_step(moves=False)
        return seconds_per_step(lambda: practice.practice_step(moves=False), THREADS_SECONDS)[0]

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
