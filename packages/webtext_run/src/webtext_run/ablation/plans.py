"""The runs of an ablation, and their steps: decided once, before the first, and kept in `plan.json`.

For each seed every arm has a run, and the baseline two more: one in which as much comes in other batches as the arms do
not share, so that this pair differs by nothing else; and one with half of the steps, whose distance to the whole run is
the slope of the baseline's loss. In the first half of the seeds every arm also runs at a tenth of the learning rate, at
which small runs foretell better what large ones will find (Wang et al. 2025, arXiv 2512.24503).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from command_kit import parse_json, write_json
from command_kit.settings import as_table, changes, identity
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import TrainSettings
from webtext_run.ablation.arms import Arm
from webtext_run.ablation.held_out import HeldOut
from webtext_run.ablation.settings import AblateSettings

PLAN_FILE, RUNS_FOLDER = "plan.json", "runs"
LOW_RATE = 0.1
FEWEST_STEPS = 50
"""A run with fewer has not begun to learn."""
SAVE_SECONDS = 120.0
"""Seconds between checkpoints, about: the most that a kill costs each process, the calibration aside."""
OVERHEAD_SECONDS = 1.5
"""Seconds of a run, its steps and its scores aside: the order of the data, the checkpoint."""

SHAPES = ((3, 128, 4), (4, 256, 4), (6, 384, 6), (8, 512, 8), (12, 768, 12))
"""Layers, width, heads: the quickstart's model, and larger ones to 124M."""
TOKENS_PER_PARAMETER = 20
"""A larger shape is taken if each run reads this many tokens a parameter of its blocks (Hoffmann et al. 2022)."""

FULL, AGAIN, LOW, HALF = "full", "again", "low-rate", "half-length"


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run.

    Attributes:
        arm: its arm.
        seed: of initial weights and order.
        kind: `full`; `again`, the baseline partly in another order; `low-rate`; or `half-length`.
    """

    arm: str
    seed: int
    kind: str = FULL

    @property
    def name(self) -> str:
        """Its folder in `runs`."""
        return f"{self.arm}-seed{self.seed}" + ("" if self.kind == FULL else f"-{self.kind}")


def planned_runs(arms: Sequence[str], seeds: Sequence[int]) -> Iterator[PlannedRun]:
    """All runs in the order in which they are made: whole seeds first."""
    some = half_of(seeds)
    for seed in seeds:
        yield from (PlannedRun(arm, seed) for arm in arms)
        yield from (PlannedRun(arms[0], seed, kind) for kind in (AGAIN, HALF))
        if seed in some:
            yield from (PlannedRun(arm, seed, LOW) for arm in arms)


def half_of(seeds: Sequence[int]) -> Sequence[int]:
    """The first half of the seeds, at least one."""
    return seeds[: max(1, len(seeds) // 2)]


def rounds_of(arms: int, seeds: int, processes: int) -> int:
    """Whole runs that one process makes one after another, of as many in all as `planned_runs` has."""
    some = max(1, seeds // 2)
    return math.ceil((seeds * (arms + 1.5) + some * arms) / processes)


@dataclasses.dataclass(frozen=True)
class AblationPlan:
    """The plan of an ablation.

    Attributes:
        asked: what it was begun with: settings, and digests of the token files and of the held-out sets.
        recipe: settings of `gpt2 train` for every run.
        steps: of a run.
        save_every: steps between checkpoints, 0 for one at the end.
        seeds: all of them.
        reordered: share of the samples that the second runs of the baseline read in other batches.
    """

    asked: dict[str, Any]
    recipe: dict[str, Any]
    steps: int
    save_every: int
    seeds: list[int]
    reordered: float = 1.0

    def settings_of(self, run: PlannedRun, prefix: str, output: Path) -> TrainSettings:
        """The settings of one run."""
        changed = dict(self.recipe)
        if run.kind == LOW:
            changed |= {"lr": self.recipe["lr"] * LOW_RATE, "min_lr": self.recipe["min_lr"] * LOW_RATE}
        return TrainSettings(
            **changed,
            data=(prefix,),
            output=str(output / RUNS_FOLDER / run.name),
            seed=run.seed,
            order="hashed",
            reordered=self.reordered if run.kind == AGAIN else 0.0,
            steps=max(1, self.steps // 2) if run.kind == HALF else self.steps,
            save_every=self.save_every,
            log_every=max(1, self.steps // 50),
        )


def recipe_of(settings: AblateSettings, shape: tuple[int, int, int], device: str) -> dict[str, Any]:
    """The settings that every run has in common, as settings of `gpt2 train`."""
    own = {field.name for field in dataclasses.fields(TrainSettings)}
    mine = {name: value for name, value in as_table(settings).items() if name in own}
    for name in ("data", "output", "minutes", "steps", "seed", "eval_task"):
        mine.pop(name, None)
    layers, hidden, heads = shape
    threads = {"threads": 1} if device == "cpu" else {}
    fixed: dict[str, Any] = {
        "split": "1,0,0", "eval_every": 0, "compile": False, "async_checkpoint": False, "keep_checkpoints": 1,
    }  # fmt: skip
    return {**mine, "layers": layers, "hidden": hidden, "heads": heads, "device": device, **threads, **fixed}


def asked_for(settings: AblateSettings, arms: Sequence[Arm], sets: Sequence[HeldOut]) -> dict[str, Any]:
    """All that decides the result, as plain values; paths are not part of it, what they hold is."""
    table = identity(settings)
    for name in ("data", "held_out", "want"):
        table.pop(name, None)
    files = {f"data {arm.name}": arm.corpus.identity()["digest"] for arm in arms}
    return {**table, "arms": [arm.name for arm in arms], **files, **{entry.name: entry.digest() for entry in sets}}


def read_plan(folder: Path, asked: Mapping[str, Any]) -> AblationPlan | None:
    """The plan of an ablation that has begun; None if none has.

    Raises Gpt2UsageError if it was begun with something else, or the file is damaged.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        return None
    try:
        plan = AblationPlan(**parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise Gpt2UsageError(f"{path} can't be read ({error}): start again with --restart.") from error
    if found := changes(plan.asked, asked):
        raise Gpt2UsageError(
            f"{folder} holds an ablation of something else ({found}): give what it began with, --restart to start "
            "again, or another --output."
        )
    return plan


def write_plan(folder: Path, plan: AblationPlan) -> None:
    """Keep the plan; it appears complete or not at all."""
    write_json(folder / PLAN_FILE, dataclasses.asdict(plan))


def steps_in(seconds: float, step_seconds: float, scoring_seconds: float) -> int:
    """Steps of a run that has `seconds` for all."""
    return int((seconds - OVERHEAD_SECONDS - scoring_seconds) / step_seconds)


def shape_for(steps: int, tokens_per_step: int, flops: Mapping[tuple[int, int, int], float]) -> tuple[int, int, int]:
    """The largest shape whose runs read `TOKENS_PER_PARAMETER` tokens a parameter of its blocks, else the smallest.

    Args:
        steps: that the smallest shape has time for.
        tokens_per_step: in a step.
        flops: for a token, of each shape, the smallest first: so much slower are the larger ones.
    """
    best = smallest = next(iter(flops))
    for shape, needed in flops.items():
        layers, hidden, _ = shape
        tokens = steps * tokens_per_step * flops[smallest] / needed
        if tokens >= TOKENS_PER_PARAMETER * 12 * layers * hidden**2:
            best = shape
    return best
