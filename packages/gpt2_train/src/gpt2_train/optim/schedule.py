"""The learning rate of a step.

It is a pure function of the settings and the step, or, in a run by time, of how far the clock said that
the run was in this step, which is recorded (`training/plan.py`): a run that resumes has the rates that an uninterrupted
one would have had.
"""

from __future__ import annotations

import math

from gpt2_train.config.settings import TrainSettings

FIRST_SHARE = 0.1
"""Of the peak, the learning rate of a run by time in its first step, before there is a time to go by."""


def warmup_steps(settings: TrainSettings, steps: int) -> int:
    """Steps of warm-up in a run of `steps`: `warmup` itself if it is 1 or more, else that fraction of the run."""
    return round(settings.warmup if settings.warmup >= 1 else settings.warmup * steps)


def learning_rate(step: int, steps: int, settings: TrainSettings) -> float:
    """The learning rate of step `step`, the first of which is 1, in a run of `steps`.

    It rises in equal parts to `lr`, reached at the last step of the warm-up, and is above 0 from the first step on.
    From there it falls to `min_lr` at the last step: along half a cosine, a line, not at all (constant), or along a
    line over the last `cooldown` of the run (wsd). After the last step it stays.
    """
    step = min(step, steps)
    warm = warmup_steps(settings, steps)
    if step < warm:
        return settings.lr * step / warm
    start = max(1, warm)
    if settings.schedule == "wsd":
        start = max(start, steps - round(settings.cooldown * steps))
    if settings.schedule == "constant" or step <= start:
        return settings.lr
    return _decayed((step - start) / (steps - start), settings)


def learning_rate_by_time(step: int, progress: float, settings: TrainSettings) -> float:
    """The learning rate of step `step`, the first of which is 1, where `progress` of the run's time is over.

    `progress` is 0 in the first step and 1 in the last. A `warmup` below 1 is a fraction of the time, in which the rate
    rises from a tenth of `lr`; one of 1 or more are steps, in which the rate is reduced as with --steps. The decay goes
    by the time: from the warm-up's end, or over the last `cooldown` (wsd), to `min_lr` in the last step.
    """
    by_steps = settings.warmup >= 1
    warm = 0.0 if by_steps else settings.warmup
    share = min(1.0, step / round(settings.warmup)) if by_steps else 1.0
    if progress < warm:
        return settings.lr * (FIRST_SHARE + (1 - FIRST_SHARE) * progress / warm)
    start = max(warm, 1 - settings.cooldown) if settings.schedule == "wsd" else warm
    if settings.schedule == "constant" or progress <= start:
        return settings.lr * share
    return _decayed((progress - start) / (1 - start), settings) * share


def _decayed(done: float, settings: TrainSettings) -> float:
    """The learning rate where `done` of the decay is over."""
    share = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
    return settings.min_lr + (settings.lr - settings.min_lr) * share
