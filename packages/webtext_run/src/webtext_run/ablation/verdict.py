"""Intervals and verdicts from the losses of all runs: what `ablation.json` holds.

Only the ends of runs are compared, each of a schedule that ended: curves that cross on the way say nothing. An arm is
"better" or "worse" than the baseline on a set of documents if the interval over seeds and documents excludes 0, at 95%
for all arms and sets together (Holm's correction), and the seeds at a tenth of the learning rate have the same sign. A
difference is bits per byte of the baseline less the arm's: above 0 the arm is better. What a comparison can see is the
true difference that it finds four times in five, were it one of as many comparisons.

The baseline against itself: the same initial weights and documents, of which as much comes in other batches as the arms
do not share. (The same batches would give the same model bit for bit, and others altogether a noise that no comparison
has.) So that pair differs by what every pair here does but for other documents, and shows how much that alone is.
What no seed and no document covers: another crawl, filtered alike, is other text; a verdict is about these files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from webtext_run.ablation.arms import Arm
from webtext_run.ablation.held_out import HeldOut
from webtext_run.ablation.plans import AGAIN, FULL, HALF, LOW, AblationPlan, PlannedRun, half_of
from webtext_run.ablation.statistics import CONFIDENCE, Values, estimate, holm, interval_of, over_seeds, ratio

BETTER, WORSE, NO_DIFFERENCE, NO_VERDICT = "better", "worse", "no difference", "no verdict"

MOST_DOUBLINGS = 10
"""A thousand times the training: no run says what that is worth."""

Measured = Mapping[str, Mapping[str, Any]]
"""The content of `held_out.json` of each run, by the run's name."""


class Losses:
    """The losses of all runs on one set of documents.

    Args:
        measured: of every run.
        held_out: the set.
    """

    def __init__(self, measured: Measured, held_out: HeldOut) -> None:
        self.measured, self.set = measured, held_out

    def bits(self, arm: str, seed: int, kind: str = FULL) -> Values:
        """Bits of each document, summed over its tokens: float64 (documents,)."""
        nats = self.measured[PlannedRun(arm, seed, kind).name]["nats"][self.set.name]
        return np.asarray(nats, np.float64) / math.log(2)

    def per_byte(self, arm: str, seed: int, kind: str = FULL) -> float:
        """Bits per byte of the whole set."""
        return float(self.bits(arm, seed, kind).sum() / self.set.sizes.sum())

    def pairs(self, base: str, arm: str, seeds: Sequence[int], kind: str = FULL) -> Values:
        """Bits by which `arm`, its runs of `kind`, is better than the baseline: float64 (seeds, documents)."""
        return np.array([self.bits(base, seed) - self.bits(arm, seed, kind) for seed in seeds])

    def compared(self, base: str, arm: str, seeds: Sequence[int], kind: str = FULL) -> dict[str, Any]:
        """The differences of the seeds in bits per byte, their mean and median, the interval and its parts."""
        found = estimate(self.pairs(base, arm, seeds, kind), self.set.sizes)
        differences = [self.per_byte(base, seed) - self.per_byte(arm, seed, kind) for seed in seeds]
        return {
            "differences": differences,
            "mean": found.value,
            "median": statistics.median(differences),
            "interval": interval_of(found)._asdict(),
            "standard_errors": {name: math.sqrt(getattr(found, name).value) for name in ("seeds", "documents")},
        }


def verdict_of(difference: float, p: float, low_rate: Sequence[float]) -> str:
    """The words that may be said of a difference.

    Args:
        difference: in bits per byte.
        p: its probability, corrected for the number of comparisons.
        low_rate: the differences at a tenth of the learning rate.
    """
    if p >= 1 - CONFIDENCE:
        return NO_DIFFERENCE
    if statistics.fmean(low_rate) * difference <= 0:
        return NO_VERDICT
    return BETTER if difference > 0 else WORSE


def result_of(plan: AblationPlan, arms: Sequence[Arm], sets: Sequence[HeldOut], measured: Measured) -> dict[str, Any]:
    """All that an ablation found, as plain values; the same runs give the same result."""
    base, others = arms[0], arms[1:]
    count = len(others) * len(sets)
    comparisons = [
        _comparison(plan, Losses(measured, entry), base.name, arm.name, count) for entry in sets for arm in others
    ]
    corrected = holm([entry["interval"]["p"] for entry in comparisons])
    for entry, p in zip(comparisons, corrected, strict=True):
        entry |= {"p": p, "verdict": verdict_of(entry["mean"], p, entry["low_rate_differences"])}
    deciding = Losses(measured, sets[0])
    slopes = [deciding.per_byte(base.name, seed, HALF) - deciding.per_byte(base.name, seed) for seed in plan.seeds]
    itself = [
        {"set": entry.name, **Losses(measured, entry).compared(base.name, base.name, plan.seeds, AGAIN)}
        for entry in sets
    ]
    return {
        "baseline": base.name,
        "decides": sets[0].name,
        "arms": [_described(arm, base, measured, plan.seeds[0]) for arm in arms],
        "sets": [
            {"name": entry.name, "documents": len(entry.documents), "bytes": int(entry.sizes.sum()),
             "left_out": entry.left_out}
            for entry in sets
        ],
        "seeds": plan.seeds,
        "steps": plan.steps,
        "recipe": plan.recipe,
        "bits_per_byte": {
            entry.name: {
                arm.name: [Losses(measured, entry).per_byte(arm.name, seed) for seed in plan.seeds] for arm in arms
            }
            for entry in sets
        },
        "comparisons": comparisons,
        "against_itself": itself,
        "slope": {"bits_per_byte_of_twice_the_steps": statistics.fmean(slopes), "seeds": slopes},
        "worth": {arm.name: _worth(deciding, plan, base.name, arm.name) for arm in others},
        "tasks": _tasks(measured, base.name, [arm.name for arm in others], plan.seeds),
    }  # fmt: skip


def _described(arm: Arm, base: Arm, measured: Measured, seed: int) -> dict[str, Any]:
    run = measured[PlannedRun(arm.name, seed).name]
    return {
        "name": arm.name,
        "data": arm.prefix,
        "documents": len(arm.hashes),
        "of_the_baseline": arm.shared_with(base),
        "unique_tokens": arm.tokens,
        "tokens_read": run["tokens"],
        "epochs": run["epochs"],
    }


def _comparison(plan: AblationPlan, losses: Losses, base: str, arm: str, comparisons: int) -> dict[str, Any]:
    found = losses.compared(base, arm, plan.seeds)
    of_all = estimate(losses.pairs(base, arm, plan.seeds), losses.set.sizes)
    low = [
        losses.per_byte(base, seed, LOW) - losses.per_byte(arm, seed, LOW) for seed in half_of(plan.seeds)
    ]  # fmt: skip
    sees = of_all.can_see((1 - CONFIDENCE) / comparisons)
    return {"arm": arm, "set": losses.set.name, **found, "can_see": sees, "low_rate_differences": low}


def _worth(deciding: Losses, plan: AblationPlan, base: str, arm: str) -> dict[str, float] | None:
    """The further training of the baseline that the difference on the deciding set is worth: 0.09 for 9% more steps.

    The slope is what the second half of a run gains, by runs of half the steps whose schedule ended, too: bits for a
    doubling, of each seed and document. None where that is not surely above 0, or the interval has no end to speak of.
    """
    slopes = -deciding.pairs(base, base, plan.seeds, HALF)
    doublings = ratio(deciding.pairs(base, arm, plan.seeds), slopes, deciding.set.sizes)
    if doublings is None or doublings.high > MOST_DOUBLINGS:
        return None
    return {name: 2.0 ** getattr(doublings, name) - 1 for name in ("value", "low", "high")}


def _tasks(measured: Measured, base: str, others: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The figures of each evaluation task, of the baseline and of each arm, with the interval over seeds."""
    rows = []
    for task, of_base in measured[PlannedRun(base, seeds[0]).name]["tasks"].items():
        for figure in (name for name, value in of_base.items() if isinstance(value, float)):

            def values(arm: str, task: str = task, figure: str = figure) -> list[float]:
                return [float(measured[PlannedRun(arm, seed).name]["tasks"][task][figure]) for seed in seeds]

            for arm in others:
                differences = [mine - theirs for mine, theirs in zip(values(arm), values(base), strict=True)]
                rows.append(
                    {"task": task, "figure": figure, "arm": arm, base: statistics.fmean(values(base)),
                     "mean": statistics.fmean(values(arm)), "differences": differences,
                     "seeds_interval": over_seeds(differences)._asdict()}
                )  # fmt: skip
    return rows
