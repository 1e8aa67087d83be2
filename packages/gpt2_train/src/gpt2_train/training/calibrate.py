"""Dry-run steps before the first one, for `--threads auto`, and advice on a model size that fits the machine.

They compute the gradient of the first batch and drop it, so that the run is to the last bit the one without them. They
measure which number of CPU threads is fastest: on a busy machine fewer than it has cores. Costs a few seconds, which
are part of the time of `--minutes`. All processes calibrate together, and the first one decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from command_kit import duration
from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.collectives import from_first_rank

clock = time.monotonic
"""Seconds; tests put another one in its place."""

THREADS_SECONDS, ROUNDS = 0.3, 3
"""How long each number of threads is timed in each round (or one step), and rounds."""

THREADS_STATE = "threads"


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


def choose_threads(recorded: int | None, dry_run: Callable[[], object], say: Callable[[str], object]) -> None:
    """Set the CPU threads of this process to the number that is fastest now, or that its checkpoint has `recorded`.

    A recorded number is not taken on a machine with fewer cores. `dry_run` takes a dry-run step, `say` gets what it
    finds. All processes call this together.
    """
    most = torch.get_num_threads()
    if recorded is not None and from_first_rank(lambda: recorded <= most):
        torch.set_num_threads(recorded)
        return
    if from_first_rank(lambda: most) == 1:
        return

    say("threads: timing a step with each number of them")

    def measure(threads: int) -> float:
        torch.set_num_threads(threads)
        dry_run()
        return seconds_per_step(dry_run, THREADS_SECONDS)[0]

    best, seconds = fastest(thread_counts(from_first_rank(lambda: most)), measure)
    torch.set_num_threads(best)
    found = ", ".join(f"{threads}: {mean:.3f} s" for threads, mean in sorted(seconds.items()))
    say(f"threads: {best} (a step takes, by threads, {found})")


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


SIZES = ((2, 128, 2), (4, 128, 4), (4, 256, 4), (6, 384, 6), (8, 512, 8), (12, 768, 12))
"""Layers, hidden, heads of models that fit machines from a busy laptop to a large server; the last is 124M."""

PATIENCE = 3600.0
"""Seconds within which a first run should be over."""


def size_advice(config: ModelConfig, tokens: int, flops_per_second: float) -> str | None:
    """A sentence on how long `config` takes for `tokens`, and the largest size that takes an hour at most.

    None if `config` itself takes no longer than that.
    """

    def seconds(shape: ModelConfig) -> float:
        return tokens * shape.flops_per_token / flops_per_second

    def in_words(shape: ModelConfig) -> str:
        days = seconds(shape) / 86400
        return f"{days:,.0f} days" if days >= 2 else duration(seconds(shape))

    if seconds(config) <= PATIENCE:
        return None
    shapes = [ModelConfig(*size, config.sequence_length, config.vocabulary_size) for size in SIZES]
    best = ([shape for shape in shapes if seconds(shape) <= PATIENCE] or shapes[:1])[-1]
    return (
        f"no model size given: GPT-2's smallest, 124M, would take roughly {in_words(config)} on this CPU; "
        f"--layers {best.layers} --hidden {best.hidden} --heads {best.heads} would take {in_words(best)}."
    )
