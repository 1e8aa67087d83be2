"""The plan of a run: its steps and batches, or, by `--minutes`, its length in time.

Such a length becomes steps as the run goes on: every few steps the first process plans how many there will be, by the
time that is left and what a step takes now, and all processes learn it in the sum that they exchange in each step. What
follows from the number of steps is as in any other run. Validation and the last save have their time set aside. Each
row of `metrics.jsonl` has the steps that are planned by then, and a new plan makes a row. So a run that resumes repeats
the steps up to the last row as they were planned, without their time being counted twice, and plans anew from
there.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpt2_train.checkpoint.info import CheckpointInfo
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CONFIG_FILE, METRICS_FILE, is_number, read_records
from gpt2_train.config.layout import plan_batches
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.distributed.collectives import from_first_rank, on_all_ranks
from gpt2_train.distributed.device import choose_precision, free_memory
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import is_compiled
from gpt2_train.model.attention_kernels import AttentionChoice, choose_attention
from gpt2_train.training.memory import choose_micro_batch, layout_of

clock = time.monotonic
"""Seconds; tests put another one in its place."""

STATE_KEY = "time_budget"

EVALUATION_SHARE = 1 / 3
"""The cost of a sequence in an evaluation, a forward pass, as a share of that in training."""

STATE_BYTES, SAVED_PER_SECOND = 12, 5e8
"""Bytes of a checkpoint for each parameter, and how many are written in a second, until a save was timed."""


PLANNED_EVERY = 8
"""Steps between plans; a plan that ends sooner is made again in each step."""

STEPS_TIMED = 5
"""Steps whose median the next ones are expected to take: a load that comes counts soon, an evaluation not at all."""


@dataclasses.dataclass(frozen=True)
class UsedTime:
    """The time of a run by time at a checkpoint, and the plans of the steps that it took after it.

    Attributes:
        minutes: the length that was asked for by then.
        seconds: used by then.
        steps: planned by then.
        since: steps planned, and seconds used, by the rows of later steps.
    """

    minutes: float
    seconds: float
    steps: int
    since: Mapping[int, tuple[int, float]] = dataclasses.field(default_factory=dict)

    def planned(self, step: int, minutes: float) -> int:
        """The steps of a run of `minutes` that goes on after `step`, until it plans them again."""
        if step >= self.steps and minutes <= self.minutes:
            return step
        return max(step + 1, round(self.steps * minutes / self.minutes))

    def state(self) -> dict[str, Any]:
        """The values that a checkpoint stores."""
        return {STATE_KEY: {name: getattr(self, name) for name in ("minutes", "seconds", "steps")}}


def recorded_time(settings: TrainSettings, resumed: CheckpointInfo | None, folder: Path) -> UsedTime | None:
    """The time used by the run that is resumed, None if it went by steps or is new.

    Raises Gpt2UsageError if the settings ask for minutes and it went by steps: its checkpoint does not tell its time.
    """
    found: Mapping[str, Any] | None = resumed.state.get(STATE_KEY) if resumed is not None else None
    if resumed is not None and isinstance(found, dict) and "steps" in found:
        log, since = folder / METRICS_FILE, dict[int, tuple[int, float]]()
        for row in read_records(log) if log.is_file() and found["minutes"] == settings.minutes else ():
            if row["step"] > resumed.step and row.get("steps") and is_number(row.get("used_seconds")):
                since[row["step"]] = row["steps"], row["used_seconds"]
        return UsedTime(found["minutes"], found["seconds"], found["steps"], since)
    if resumed is not None and settings.minutes is not None:
        raise Gpt2UsageError(
            f"{settings.output} holds a run that did not begin with --minutes: give its length as --steps, --epochs or "
            "--tokens, or another --output."
        )
    return None


class TimePlan:
    """The steps of a run by time. All processes have one; that of the first decides.

    The clock starts when it is made, at the time that a resumed run has used before.

    Args:
        minutes: the length of the run.
        used: what the run that is resumed has used of it, None for a new one.
        decides: whether this is the first process.
        late: steps after which a plan is known everywhere: 0 for the step in which it is made.
        evaluation: the cost of a validation, in steps, as long as none was timed; 0 if there is none.
        evaluate_every: steps between validations; 0 for none but the last.
        parameters: of the model that is saved at the end; 0 if none is.
    """

    def __init__(
        self,
        minutes: float,
        used: UsedTime | None,
        *,
        decides: bool = True,
        late: int = 0,
        evaluation: float = 0.0,
        evaluate_every: int = 0,
        parameters: int = 0,
    ) -> None:
        self.minutes, self._decides, self._late = minutes, decides, late
        self._evaluation, self._evaluate_every = evaluation, evaluate_every
        self.since = dict(used.since) if used is not None else {}
        self._repeated = max(self.since, default=0)
        self._planned: int | None = None
        self._ends: collections.deque[float] = collections.deque(maxlen=STEPS_TIMED + 1)
        self._evaluation_seconds: float | None = None
        self.saving_seconds = STATE_BYTES * parameters / SAVED_PER_SECOND
        """The duration of the last save; as expected before the first."""
        self._zero = clock() - (used.seconds if used is not None else 0.0)

    @property
    def seconds(self) -> float:
        """Seconds used so far."""
        return clock() - self._zero

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of this block out."""
        begin = clock()
        yield
        self._zero += clock() - begin

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time this block, as an estimate of the next validation."""
        begin = clock()
        yield
        self._evaluation_seconds = clock() - begin

    def plan(self, step: int) -> int:
        """The steps of the run as the first process plans them in `step`; 0 for no new plan, and on all others.

        Steps that were taken before the run was interrupted have the plans of then, and their time is not counted.
        """
        if step in self.since:
            self._planned, seconds = self.since[step]
            self._zero = clock() - seconds
        now = self.seconds
        self._ends.append(now)
        if not self._decides or step <= self._repeated or (self._planned is not None and step >= self._planned):
            return 0
        if self._planned is not None and step % PLANNED_EVERY and self._planned - step > PLANNED_EVERY:
            return 0
        times = [later - one for one, later in itertools.pairwise(self._ends)]
        each = statistics.median(times or [0.0])
        evaluation = self._evaluation * each if self._evaluation_seconds is None else self._evaluation_seconds
        left = self.minutes * 60 - evaluation - self.saving_seconds - now
        if not times and left > 0:
            return 0
        each += evaluation / self._evaluate_every if self._evaluate_every else 0.0
        self._planned = step + max(self._late, int(left / each) if each else 0)
        return self._planned

    def used(self, steps: int) -> UsedTime:
        """The time used by now, as the first process has it."""
        return UsedTime(self.minutes, self.seconds, steps)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan that follows from settings, data and world before the first step.

    Attributes:
        steps: optimizer steps of the whole run; None for a run by time that is not over.
        used: the time used by the run that is resumed; None for a run that did not go by time, or a new one.
        micro_batch: sequences that a process takes at once.
        accumulation: micro-batches of a process in one step.
        chosen_by_memory: whether the micro-batch is what fits a GPU, and not what was asked for.
        tokens_per_step: over all processes.
        precision: `fp32`, `bf16` or `fp16`.
        compiled: whether torch.compile compiles the blocks and the loss.
        attention: the kernel of attention; None where there is one only.
    """

    steps: int | None
    used: UsedTime | None
    micro_batch: int
    accumulation: int
    chosen_by_memory: bool
    tokens_per_step: int
    precision: str
    compiled: bool
    attention: AttentionChoice | None


def plan_steps(settings: TrainSettings, epoch_samples: int) -> int:
    """Optimizer steps of the run, from its length in steps, tokens or epochs (one epoch if none is given)."""
    if settings.steps is not None:
        return settings.steps
    if settings.tokens is not None:
        return max(1, math.ceil(settings.tokens / (settings.global_batch_size * settings.sequence_length)))
    return max(1, math.ceil((settings.epochs or 1.0) * epoch_samples / settings.global_batch_size))


def make_plan(
    settings: TrainSettings,
    world: World,
    config: ModelConfig,
    epoch_samples: int,
    resumed: CheckpointInfo | None,
    folder: Path,
) -> Plan:
    """Steps, batches, precision and kernels of the run, as the first process decides; all call this together.

    A resumed one keeps its precision. The GPU with the least free memory decides the micro-batch, unless that was asked
    for. Raises as `plan_batches`, `is_compiled` and `choose_attention` do.
    """
    found = on_all_ranks(lambda: free_memory(world.device))
    free = min((each for each in found if each is not None), default=None)

    def decide() -> Plan:
        recorded = resumed.settings.get("precision") if resumed else None
        precision = choose_precision(settings.precision, recorded, world.device)
        if settings.residual == "bf16" and precision != "bf16":
            raise Gpt2UsageError(f"--residual bf16 in a run in {precision}: give --precision bf16, too.")
        compiled = is_compiled(settings.compile, world.device)
        asked, kind = settings.micro_batch_size, world.device.type
        by_memory = asked == "auto" and free is not None and settings.global_batch_size >= world.dp_size
        if by_memory and free is not None:
            layout = layout_of(settings, world.dp_size, world.tp_size, precision, compiled=compiled)
            asked = choose_micro_batch(settings, config, free, folder / CONFIG_FILE, kind, **layout)
        micro_batch, accumulation = plan_batches(
            settings.global_batch_size,
            asked,
            world.dp_size,
            on_cpu=kind == "cpu",
            sequence_length=config.sequence_length,
        )
        used = recorded_time(settings, resumed, folder)
        steps = plan_steps(settings, epoch_samples) if settings.minutes is None else None
        if settings.minutes is not None and used is not None and resumed is not None:
            planned = used.planned(resumed.step, settings.minutes)
            steps = planned if planned <= resumed.step else None
        state = resumed.state if resumed else None
        return Plan(
            steps,
            used,
            micro_batch,
            accumulation,
            by_memory,
            tokens_per_step=settings.global_batch_size * config.sequence_length,
            precision=precision,
            compiled=compiled,
            attention=choose_attention(
                settings, config, world.device, micro_batch=micro_batch, precision=precision, state=state
            ),
        )

    return from_first_rank(decide)
