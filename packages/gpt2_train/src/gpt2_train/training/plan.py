"""The plan of a run: its steps and batches, or, by `--minutes`, its length in time.

Such a length the clock of the first process keeps while the run goes on. In each step that process says how far the run
is, from 0 at the end of its first step to 1 in its last one, and all processes follow: the learning rate is a function
of this number. Validation and the last save have their time set aside. What was said is a row of `schedule.jsonl`
before the step moves the weights, and a checkpoint holds the time used by then. So a run that resumes repeats the steps
that it had taken since its checkpoint to the last bit, without their time being counted twice, and goes by the clock
from there.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from command_kit import atomic_file
from gpt2_train.checkpoint.info import CheckpointInfo
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CONFIG_FILE, SCHEDULE_FILE, read_records
from gpt2_train.config.layout import plan_batches
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.distributed.collectives import from_first_rank, on_all_ranks
from gpt2_train.distributed.device import choose_precision, free_memory
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import is_compiled
from gpt2_train.model.attention_kernels import AttentionChoice, choose_attention
from gpt2_train.training.memory import choose_micro_batch

clock = time.monotonic
"""Seconds; tests put another one in its place."""

STATE_KEY = "time_budget"

EVALUATION_SHARE = 1 / 3
"""What a sequence costs in an evaluation, a forward pass, as a share of what it costs in training."""

STATE_BYTES, SAVED_PER_SECOND = 12, 5e8
"""Bytes of a checkpoint for each parameter, and how many are written in a second, until a save was timed."""


STEPS_KEPT = 8
"""How many steps back it is known how far the run was: a run may have millions."""

STEPS_TIMED = 5
"""Steps whose median the next one is expected to take: a load that comes counts soon, an evaluation not at all."""


@dataclasses.dataclass(frozen=True)
class UsedTime:
    """How far a run by time had come at a checkpoint, and in the steps that it took after it.

    Attributes:
        minutes: the length that was asked for by then.
        seconds: used by then.
        begin: the seconds used when the first step of the run ended.
        progress: of the last step.
        since: progress, and seconds used when it was decided, of each later step by its number.
    """

    minutes: float
    seconds: float
    begin: float
    progress: float
    since: Mapping[int, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def last_step(self, step: int, minutes: float) -> int | None:
        """The last step of a run of `minutes` that resumes after `step`, None where the clock has yet to say."""
        if self.progress == 1 and minutes <= self.minutes:
            return step
        return next((later for later, (progress, _) in self.since.items() if progress == 1), None)

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {STATE_KEY: {name: getattr(self, name) for name in ("minutes", "seconds", "begin", "progress")}}


def recorded_time(settings: TrainSettings, resumed: CheckpointInfo | None, folder: Path) -> UsedTime | None:
    """The time used by the run that is resumed, None if it went by steps or is new.

    Raises Gpt2UsageError if the settings ask for minutes and it went by steps: its checkpoint does not tell its time.
    """
    found: Mapping[str, Any] | None = resumed.state.get(STATE_KEY) if resumed is not None else None
    if resumed is not None and isinstance(found, dict) and "progress" in found:
        since = {
            step: (row["progress"], row["seconds"])
            for step, row in _rows(folder / SCHEDULE_FILE).items()
            if step > resumed.step and row["minutes"] == settings.minutes
        }
        return UsedTime(found["minutes"], found["seconds"], found["begin"], found["progress"], since)
    if resumed is not None and settings.minutes is not None:
        raise Gpt2UsageError(
            f"{settings.output} holds a run that did not begin with --minutes: give its length as --steps, --epochs or "
            "--tokens, or another --output."
        )
    return None


def _rows(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of a schedule by their step, without one that was never finished."""
    return {row["step"]: row for row in read_records(path)} if path.is_file() else {}


class TimeSchedule:
    """The progress of a run by time in each of its steps. All processes have one; that of the first decides.

    The clock starts when it is made, at the time that a resumed run has used before.

    Args:
        minutes: the length of the run.
        used: what the run that is resumed has used of it, None for a new one.
        step: the last step of that run, 0 for a new one.
        folder: the run's, where the first process writes down decisions; None on the others.
        ahead: which step's progress a step decides: 0 for its own, 1 for the next one's, and so on.
        evaluation: the cost of a validation, in steps, as long as none was timed; 0 if there is none.
        evaluate_every: steps between validations; 0 for none but the last.
        parameters: of the model that is saved at the end; 0 if none is.
    """

    def __init__(
        self,
        minutes: float,
        used: UsedTime | None,
        step: int,
        *,
        folder: Path | None,
        ahead: int = 0,
        evaluation: float = 0.0,
        evaluate_every: int = 0,
        parameters: int = 0,
    ) -> None:
        self.minutes, self.ahead = minutes, ahead
        self._evaluation, self._evaluate_every = evaluation, evaluate_every
        self._known = dict(used.since) if used is not None else {}
        self._latest = used.progress if used is not None else 0.0
        self._begin = used.begin if used is not None else None
        self._decided: dict[int, float] = {}
        self._ends: collections.deque[float] = collections.deque(maxlen=STEPS_TIMED + 1)
        self._evaluation_seconds: float | None = None
        self.saving_seconds = STATE_BYTES * parameters / SAVED_PER_SECOND
        """Of the last save; as expected before the first."""
        self._file = _continued(folder / SCHEDULE_FILE, step, self._known) if folder is not None else None
        self._zero = clock() - (used.seconds if used is not None else 0.0)

    @property
    def seconds(self) -> float:
        """Used so far."""
        return clock() - self._zero

    @property
    def seconds_left(self) -> float:
        """Not used yet."""
        return max(0.0, self.minutes * 60 - self.seconds)

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

    def decide(self, step: int) -> float:
        """The progress of the step that is `ahead` of `step`, decided by the first process; 1 for the last step.

        For a step that was taken before the run was interrupted it is what was recorded, and the clock is set to the
        time then. On other processes it is 0.
        """
        target = step + self.ahead
        if self._file is None:
            return 0.0
        if target in self._known:
            progress, seconds = self._known[target]
            self._zero = clock() - seconds
            self._ends.append(seconds)
            return progress
        now = self._decided[target] = self.seconds
        self._ends.append(now)
        if self._begin is None:
            self._begin = now
        each = statistics.median([later - one for one, later in itertools.pairwise(self._ends)] or [0.0])
        evaluation = self._evaluation * each if self._evaluation_seconds is None else self._evaluation_seconds
        between = evaluation if self._evaluate_every and target % self._evaluate_every == 0 else 0.0
        end = self.minutes * 60 - evaluation - self.saving_seconds
        then = now + self.ahead * each
        if then + each + between >= end:
            return 1.0
        return max(0.0, (then - self._begin) / (end - self._begin))

    def follow(self, step: int, progress: float) -> None:
        """Record the progress that was decided in `step`, before the step that it belongs to."""
        target = step + self.ahead
        if target in self._known:
            return
        self._known[target] = progress, 0.0
        self._known.pop(target - STEPS_KEPT, None)
        if self._file is not None:
            row = {"step": target, "minutes": self.minutes, "progress": progress, "seconds": self._decided.pop(target)}
            self._file.write(json.dumps(row) + "\n")

    def progress(self, step: int) -> float:
        """The progress of `step`, one of the last few or next; that of the checkpoint for the first ones."""
        return self._known[step][0] if step in self._known else self._latest

    def used(self, step: int) -> UsedTime:
        """The time used by now, after `step`, as the first process has it."""
        return UsedTime(self.minutes, self.seconds, self._begin or 0.0, self.progress(step))

    def close(self) -> None:
        """Close the record."""
        if self._file is not None:
            self._file.close()


def _continued(path: Path, step: int, since: Mapping[int, Any]) -> TextIO:
    """The record of a run that resumes at `step`, open for more rows; of later steps it keeps the rows `since`."""
    kept = [row for at, row in _rows(path).items() if step and (at <= step or at in since)]
    with atomic_file(path) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in kept)
    return path.open("a", encoding="utf-8", buffering=1)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What follows from settings, data and world before the first step.

    Attributes:
        steps: optimizer steps of the whole run; None where its clock has yet to say which is the last.
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
        compiled = is_compiled(settings.compile, world.device)
        asked, kind = settings.micro_batch_size, world.device.type
        by_memory = asked == "auto" and free is not None and settings.global_batch_size >= world.dp_size
        if by_memory and free is not None:
            layout: dict[str, Any] = {"tensor_parallel": world.tp_size, "data_parallel": world.dp_size}
            layout |= {"precision": precision, "compiled": compiled}
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
            steps = used.last_step(resumed.step, settings.minutes)
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
