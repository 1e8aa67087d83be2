"""From the losses of all runs to intervals and verdicts: what `ablation.json` holds.

Only the ends of runs are compared, each of a schedule that ended: curves that cross on the way say nothing. An arm is
"better" or "worse" than the baseline on a set of documents if the interval over seeds and that over documents both
exclude 0, at 95% for all arms together (Holm's correction), and the seeds at a tenth of the learning rate have the same
sign. A difference is bits per byte of the baseline less the arm's: above 0 the arm is better.

The baseline against itself: the same initial weights and documents, of which as much comes in other batches as the arms
do not share. (The same batches would give the same model bit for bit, and others altogether a noise that no comparison
has.) So that pair differs by what every pair here does but for a better corpus, and says what this ablation can see.
What no seed and no resampling covers: another crawl, filtered alike, is other text; a verdict is about these files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_run.ablation.arms import Arm
from webtext_run.ablation.held_out import HeldOut
from webtext_run.ablation.plan import AGAIN, FULL, HALF, LOW, Plan, PlannedRun, half_of
from webtext_run.ablation.statistics import CONFIDENCE, Interval, holm, over_documents, over_seeds, ratio

BETTER, WORSE, NO_DIFFERENCE, NO_VERDICT = "better", "worse", "no difference", "no verdict"

Measured = Mapping[str, Mapping[str, Any]]
"""What `held_out.json` of each run holds, by the run's name."""


class Losses:
    """The losses of all runs on one set of documents.

    Args:
        measured: of every run.
        held_out: the set.
    """

    def __init__(self, measured: Measured, held_out: HeldOut) -> None:
        self.measured, self.set = measured, held_out

    def bits(self, arm: str, seed: int, kind: str = FULL) -> npt.NDArray[np.float64]:
        """Of each document, summed over its tokens: float64 (documents,)."""
        nats = self.measured[PlannedRun(arm, seed, kind).name]["nats"][self.set.name]
        return np.asarray(nats, np.float64) / math.log(2)

    def per_byte(self, arm: str, seed: int, kind: str = FULL) -> float:
        """Bits per byte of the whole set."""
        return float(self.bits(arm, seed, kind).sum() / self.set.sizes.sum())

    def compared(self, base: str, arm: str, seeds: Sequence[int], kind: str = FULL) -> dict[str, Any]:
        """The differences of the seeds, their mean and median, and both intervals; of `arm` the runs of `kind`."""
        pairs = [self.bits(base, seed) - self.bits(arm, seed, kind) for seed in seeds]
        differences = [float(pair.sum() / self.set.sizes.sum()) for pair in pairs]
        documents = over_documents(np.mean(pairs, axis=0), self.set.sizes, seed=len(pairs[0]))
        return {
            "differences": differences,
            "mean": statistics.fmean(differences),
            "median": statistics.median(differences),
            "seeds_interval": over_seeds(differences)._asdict(),
            "documents_interval": documents._asdict(),
        }


def verdict_of(seeds: Interval, documents: Interval, low_rate: Sequence[float], p: float) -> str:
    """What may be said of a difference.

    Args:
        seeds, documents: its intervals.
        low_rate: the differences at a tenth of the learning rate.
        p: the larger of both probabilities, corrected for the number of arms.
    """
    if (
        not (seeds.excludes_zero and documents.excludes_zero)
        or p >= 1 - CONFIDENCE
        or seeds.value * documents.value < 0
    ):
        return NO_DIFFERENCE
    if statistics.fmean(low_rate) * seeds.value <= 0:
        return NO_VERDICT
    return BETTER if seeds.value > 0 else WORSE


def result_of(plan: Plan, arms: Sequence[Arm], sets: Sequence[HeldOut], measured: Measured) -> dict[str, Any]:
    """All that an ablation found, as plain values; the same runs give the same result."""
    base, others = arms[0], arms[1:]
    comparisons: list[dict[str, Any]] = []
    for held_out in sets:
        losses = Losses(measured, held_out)
        found = [_comparison(plan, losses, base.name, arm.name) for arm in others]
        corrected = holm([entry.pop("p") for entry in found])
        for entry, p in zip(found, corrected, strict=True):
            seeds, documents = (Interval(**entry[name]) for name in ("seeds_interval", "documents_interval"))
            verdict = verdict_of(seeds, documents, entry["low_rate_differences"], p)
            entry |= {"p": p, "verdict": verdict}
        comparisons += found
    deciding = Losses(measured, sets[0])
    some = half_of(plan.seeds)
    slopes = [deciding.per_byte(base.name, seed, HALF) - deciding.per_byte(base.name, seed) for seed in some]
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
        "can_see": Interval(**itself[0]["seeds_interval"]).half_width,
        "slope": {"bits_per_byte_of_twice_the_steps": statistics.fmean(slopes), "seeds": slopes},
        "worth": {arm.name: _worth(comparisons, arm.name, slopes) for arm in others},
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


def _comparison(plan: Plan, losses: Losses, base: str, arm: str) -> dict[str, Any]:
    found = losses.compared(base, arm, plan.seeds)
    low = [
        losses.per_byte(base, seed, LOW) - losses.per_byte(arm, seed, LOW) for seed in half_of(plan.seeds)
    ]  # fmt: skip
    p = max(found["seeds_interval"]["p"], found["documents_interval"]["p"])
    return {"arm": arm, "set": losses.set.name, **found, "low_rate_differences": low, "p": p}


def _worth(comparisons: Sequence[Mapping[str, Any]], arm: str, slopes: Sequence[float]) -> dict[str, float] | None:
    """How much more training of the baseline the difference on the deciding set is worth: 0.09 for 9% more steps.

    The slope is what the second half of a run gains, by runs of half the steps whose schedule ended, too: bits per byte
    for a doubling. None where a run of half the steps is as good, so that there is no slope.
    """
    if statistics.fmean(slopes) <= 0:
        return None
    found = next(entry for entry in comparisons if entry["arm"] == arm)
    doublings = ratio(Interval(**found["seeds_interval"]), found["differences"], slopes)
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
