"""The learning rate of a step.

It is a pure function of the settings, the step, and the steps of the run, which a run by time plans as it goes on and
records (`training/plan.py`): a run that resumes has the rates that an uninterrupted one would have had.
"""

from __future__ import annotations

import math

from gpt2_train.config.settings import TrainSettings

FIRST_SHARE = 0.1
"""The share of the peak that is the learning rate of a run by time in its first steps, before any are planned."""


def warmup_steps(settings: TrainSettings, steps: int) -> int:
    """Steps of warm-up in a run of `steps`: `warmup` itself if it is 1 or more, else that fraction of the run."""
    return round(settings.warmup if settings.warmup >= 1 else settings.warmup * steps)


def learning_rate(step: int, steps: int | None, settings: TrainSettings) -> float:
    """The learning rate of step `step`, the first of which is 1, in a run of `steps`.

    It rises in equal parts to `lr`, reached at the last step of the warm-up, and is above 0 from the first step on.
    From there it falls to `min_lr` at the last step: along half a cosine, a line, not at all (constant), or along a
    line over the last `cooldown` of the run (wsd). After the last step it stays. Before steps are
    known, it is a tenth of `lr`.
    """
    if steps is None:
        return settings.lr * FIRST_SHARE
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


def _decayed(done: float, settings: TrainSettings) -> float:
    """The learning rate where `done` of the decay is over."""
    share = 0.5 * (1 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1 - done
    return settings.min_lr + (settings.lr - settings.min_lr) * share
