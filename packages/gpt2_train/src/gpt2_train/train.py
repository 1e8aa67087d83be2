"""`gpt2 train`: the loop, from settings to a trained model, as each process runs it.

A run is a folder: `config.toml` (the settings as resolved), `metrics.jsonl`, `checkpoints/`. What a step does is a
function of the settings, the step's number and the last checkpoint: batch, learning rate and dropout follow from the
step, so a run that is stopped, killed or made longer goes on as if nothing had happened, bit for bit on CPU with the
same number of threads and processes. Signals end the loop between two steps, after saving.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from command_kit import duration, write_text
from command_kit.settings import as_table, differences, to_toml
from gpt2_train.checkpoint import (
    FOLDER,
    CheckpointInfo,
    describe_tokenizer,
    latest_checkpoint,
    model_tensors,
    read_info,
)
from gpt2_train.checkpoint.restoring import load_tensors
from gpt2_train.checkpoint.saving import save_checkpoint
from gpt2_train.collectives import agreed, barrier
from gpt2_train.config import ModelConfig, TrainSettings, check_tensor_parallel, plan_batches
from gpt2_train.data import BatchReader, Blend, Corpus, blend_split, check_vocabulary, open_corpora
from gpt2_train.data.shared_cache import SharedIndexCache
from gpt2_train.device import autocast, default_precision, peak_memory
from gpt2_train.errors import Gpt2Error, Gpt2UsageError, explained_shortage
from gpt2_train.estimate import memory_per_rank, size_line
from gpt2_train.loss import token_losses
from gpt2_train.metrics import MetricsLog, StepClock, line_of, peak_flops
from gpt2_train.model import GPT2
from gpt2_train.optim import (
    LossScale,
    gradient_norm,
    learning_rate,
    make_optimizer,
    optimizer_tensors,
    scale_gradients,
    set_learning_rate,
    set_step,
)
from gpt2_train.parallel import (
    World,
    free_gathered_parameters,
    mixed_seed,
    parallelize,
    seed_micro_step,
    synchronize_gradients,
)
from indexed_tokens import Tokenizer

CONFIG_FILE = "config.toml"
LOCK_FILE = ".lock"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
CLIP_EPSILON = 1e-6


class StopRequest:
    """Remembers that a signal asked the run to stop; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.signal = 0

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGUSR1; only the main thread can."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._received)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


@dataclasses.dataclass(frozen=True)
class Plan:
    """What follows from settings, data and world before the first step.

    Attributes:
        steps: optimizer steps of the whole run.
        micro_batch: sequences that a process takes at once.
        accumulation: micro-batches of a process in one step.
        tokens_per_step: over all processes.
        precision: `fp32`, `bf16` or `fp16`.
    """

    steps: int
    micro_batch: int
    accumulation: int
    tokens_per_step: int
    precision: str


def plan_steps(settings: TrainSettings, epoch_samples: int) -> int:
    """Optimizer steps of the run, from its length in steps, tokens or epochs (one epoch if none is given)."""
    if settings.steps is not None:
        return settings.steps
    if settings.tokens is not None:
        return max(1, math.ceil(settings.tokens / (settings.global_batch_size * settings.sequence_length)))
    return max(1, math.ceil((settings.epochs or 1.0) * epoch_samples / settings.global_batch_size))


def open_tokenizer(settings: TrainSettings) -> Tokenizer:
    """The tokenizer that made the data. Raises IndexedTokensError if its files are missing or damaged."""
    if settings.tokenizer is None:
        return Tokenizer.gpt2()
    folder = Path(settings.tokenizer)
    return Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt")


@contextlib.contextmanager
def lock_folder(folder: Path, patience: float = 10.0) -> Iterator[None]:
    """Hold a run's folder for this process.

    Raises Gpt2UsageError if another run holds it, if it is no folder, or if it holds something else than a run.

    The kernel lets go of the lock when its holder dies; `patience` seconds are for one that is just about to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Gpt2UsageError(f"--output {folder} is a file, or lies below one: give a folder.") from None
    strangers = sorted(entry.name for entry in folder.iterdir() if entry.name != "cache")
    if strangers and not any((folder / name).exists() for name in (LOCK_FILE, CONFIG_FILE, FOLDER)):
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        raise Gpt2UsageError(f"--output {folder} holds other files ({shown}): give an empty or new folder.")
    with (folder / LOCK_FILE).open("wb") as file:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Gpt2UsageError(
                        f"another gpt2 train is running in {folder}: wait for it, or give another --output."
                    ) from None
                time.sleep(0.1)
        yield


def data_identity(corpora: Sequence[Corpus], weights: Sequence[float] | None) -> list[dict[str, Any]]:
    """What the training files are, as a checkpoint records it; their paths are not part of it."""
    return [
        {**corpus.identity(), **({"weight": weights[number]} if weights else {})}
        for number, corpus in enumerate(corpora)
    ]


def identity_settings(settings: TrainSettings, precision: str) -> dict[str, Any]:
    """The settings that decide the weights, the data aside, which is compared by what it holds."""
    table = settings.identity() | {"precision": precision}
    table.pop("data", None)
    return table


def check_same_run(
    info: CheckpointInfo,
    folder: Path,
    config: ModelConfig,
    settings: dict[str, Any],
    data: list[dict[str, Any]],
    tokenizer: dict[str, Any],
    prefixes: Sequence[str],
) -> None:
    """Raise Gpt2UsageError, naming what differs, if the run that `info` stands for is not the one asked for."""
    found = differences(info.config.as_table() | info.settings, config.as_table() | settings)
    if found:
        raise Gpt2UsageError(
            f"{folder} holds a run with other settings ({'; '.join(found)}): "
            "give the same settings to resume it, or another --output."
        )
    if info.tokenizer != tokenizer:
        raise Gpt2UsageError(f"{folder} holds a run with another tokenizer: give the same --tokenizer, or --output.")
    if len(info.data) != len(data):
        raise Gpt2UsageError(
            f"{folder} holds a run on {len(info.data)} token files, now there are {len(data)}: "
            "give the same --data to resume it, or another --output."
        )
    for old, new, prefix in zip(info.data, data, prefixes, strict=True):
        changed = differences(old, new)
        if changed:
            raise Gpt2UsageError(
                f"the data {prefix} has changed since the run in {folder} began ({'; '.join(changed)}): "
                "a run goes on with the data it began with; give another --output to train on the new data."
            )


@torch.no_grad()
def validation_loss(
    model: GPT2, world: World, blend: Blend, settings: TrainSettings, plan: Plan, vocabulary_size: int
) -> tuple[float, int]:
    """(mean loss in nats, tokens) over the first samples of a split, the same ones every time.

    The samples are `eval_batches` global batches, or one pass over the split if that is less.
    """
    count = min(settings.eval_batches * settings.global_batch_size, blend.epoch_samples)
    places = blend.prepare(0, count)
    share = math.ceil(count / world.dp_size / plan.micro_batch) * plan.micro_batch
    mine = places[world.dp_rank * share : (world.dp_rank + 1) * share]
    model.eval()
    total, tokens = 0.0, 0
    for begin in range(0, share, plan.micro_batch):
        part = mine[begin : begin + plan.micro_batch]
        # All processes must make the same calls: one that has no samples left repeats the first and counts nothing.
        samples = blend.read(part or places[:1])
        check_vocabulary(samples, vocabulary_size, "the validation data")
        batch = torch.from_numpy(samples).to(world.device)
        with autocast(world.device, plan.precision):
            logits = model(batch[:, :-1])
        losses = token_losses(logits, batch[:, 1:], world.tp_group)
        if part:
            total += float(losses.double().sum() if world.device.type != "mps" else losses.sum())
            tokens += losses.numel()
    free_gathered_parameters(model)
    model.train()
    total, tokens_everywhere = world.sum_over_processes([total, float(tokens)])
    return total / tokens_everywhere, round(tokens_everywhere / world.tp_size)


def build_model(config: ModelConfig, world: World, settings: TrainSettings, *, is_new: bool, compiled: bool) -> GPT2:
    """The model on its device, parallelised; with its initial weights if the run is new, else without values."""
    with torch.device("meta"):
        model = GPT2(config)
    model.materialise(world.device)
    if is_new:
        model.initialise(torch.Generator().manual_seed(mixed_seed(settings.seed)))
    return parallelize(
        model, world, activation_checkpointing=settings.activation_checkpointing, compile_blocks=compiled
    ).train()


def train(settings: TrainSettings, world: World, stop: StopRequest) -> dict[str, Any]:
    """Train, as one process of `world`; returns the run's summary.

    Raises Gpt2UsageError for settings, data or a folder that don't fit, Gpt2Error where the run fails.
    """
    if not settings.output:
        raise Gpt2UsageError("no --output: give a folder for the run.")
    folder = Path(settings.output)
    with contextlib.ExitStack() as held:

        def lock() -> None:
            if world.rank == 0:
                held.enter_context(lock_folder(folder))

        agreed(lock)
        try:
            with explained_shortage(
                "lower --micro-batch-size, or give --activation-checkpointing full or more --tensor-parallel; "
                "`gpt2 estimate` says what fits"
            ):
                return _train(settings, world, stop, folder)
        finally:
            # The last references to the model go before the process group does.
            gc.collect()


def _train(settings: TrainSettings, world: World, stop: StopRequest, folder: Path) -> dict[str, Any]:
    def say(line: str) -> None:
        if world.rank == 0:
            print(line, file=sys.stderr, flush=True)

    started = time.monotonic()
    checkpoints = folder / FOLDER
    tokenizer = open_tokenizer(settings)
    config = settings.model_config(tokenizer.vocabulary_size)
    check_tensor_parallel(config, world.tp_size)
    micro_batch, accumulation = plan_batches(
        settings.global_batch_size, settings.micro_batch_size, world.dp_size, on_cpu=world.device.type == "cpu"
    )

    corpora, weights = open_corpora(settings.corpora(), settings.split_weights())
    streams = {
        split: blend_split(
            corpora,
            weights,
            split,
            sequence_length=config.sequence_length,
            seed=settings.seed,
            cache=SharedIndexCache(folder / "cache"),
            say=say,
        )
        for split in ("train", "valid")
    }
    training, validation = streams["train"], streams["valid"]
    if training is None:
        raise Gpt2UsageError("the training split holds no tokens: change --split or give other --data.")

    found = latest_checkpoint(checkpoints)
    info = read_info(found) if found is not None else None
    precision = settings.precision or (info.settings.get("precision") if info else None)
    plan = Plan(
        steps=plan_steps(settings, training.epoch_samples),
        micro_batch=micro_batch,
        accumulation=accumulation,
        tokens_per_step=settings.global_batch_size * config.sequence_length,
        precision=precision or default_precision(world.device),
    )
    identity = identity_settings(settings, plan.precision)
    data = data_identity(corpora, weights)
    if info is not None:
        prefixes = [prefix for _, prefix in settings.corpora()]
        check_same_run(info, folder, config, identity, data, describe_tokenizer(tokenizer), prefixes)

    step = info.step if info else 0
    summary: dict[str, Any] = {
        "output": str(folder),
        "parameters": config.parameters,
        "steps": plan.steps,
        "step": step,
        "tokens": step * plan.tokens_per_step,
        "epochs": step * settings.global_batch_size / training.epoch_samples,
        "loss": info.state.get("loss") if info else None,
        "valid_loss": info.state.get("valid_loss") if info else None,
        "checkpoint": str(found) if found else None,
        "stopped_by": None,
    }
    if step >= plan.steps:
        say(f"{folder} is at step {step:,} of {plan.steps:,} already: nothing to do; ask for more --steps to go on.")
        return summary | {"seconds": time.monotonic() - started}

    memory = memory_per_rank(
        config,
        micro_batch=plan.micro_batch,
        tensor_parallel=world.tp_size,
        data_parallel=world.dp_size,
        accumulation=plan.accumulation,
        precision=plan.precision,
        activation_checkpointing=settings.activation_checkpointing,
        on_cpu=world.device.type == "cpu",
    )
    say(size_line(config, memory))
    say(
        f"data: {training.epoch_tokens:,} tokens to train on ({training.epoch_samples:,} sequences an epoch), "
        f"{validation.epoch_tokens if validation else 0:,} to validate"
    )
    say(
        f"run: {plan.steps:,} steps of {plan.tokens_per_step:,} tokens "
        f"({plan.steps * settings.global_batch_size / training.epoch_samples:.2f} epochs) on {world.size} "
        f"process{'es' if world.size > 1 else ''} ({world.device.type}, {plan.precision}): data parallel "
        f"{world.dp_size}, tensor parallel {world.tp_size}, {plan.micro_batch} × {plan.accumulation} sequences each"
    )

    compiled = settings.compile if settings.compile is not None else world.device.type == "cuda"
    model = build_model(config, world, settings, is_new=info is None, compiled=compiled)
    parameters: list[Tensor] = list(model.parameters())
    optimizer = make_optimizer(model, settings, world.device)
    tensors = model_tensors(model) | optimizer_tensors(model, optimizer)
    scale = LossScale.for_precision(plan.precision)
    clock = StepClock()
    if info is not None:
        load_tensors(info.folder, tensors)
        set_step(optimizer, step)
        scale.restore(info.state)
        clock = StepClock(info.state["loss_sum"], info.state["loss_steps"])
        say(f"resuming {folder} at step {step:,}")

    def write_config() -> None:
        if world.rank == 0:
            resolved = resolved_settings(settings, config, plan, world, compiled)
            write_text(folder / CONFIG_FILE, to_toml({"train": as_table(resolved)}))

    agreed(write_config)
    log = MetricsLog(folder, world.rank == 0, step)
    peak = peak_flops(world.device, plan.precision)
    loss, valid_loss = summary["loss"], summary["valid_loss"]
    saved_step = step if info else -1

    def save() -> None:
        nonlocal saved_step
        begin = time.monotonic()
        path = save_checkpoint(
            checkpoints,
            tensors,
            step=step,
            samples=step * settings.global_batch_size,
            config=config,
            tokenizer=tokenizer,
            settings=identity,
            data=data,
            state=scale.state()
            | {"loss_sum": clock.loss_sum, "loss_steps": clock.steps, "loss": loss, "valid_loss": valid_loss},
            keep=settings.keep_checkpoints,
        )
        saved_step = step
        summary["checkpoint"] = str(path)
        say(f"step {step:,}/{plan.steps:,}  saved {path} in {duration(time.monotonic() - begin)}")

    reader = BatchReader(
        training,
        global_batch=settings.global_batch_size,
        rank=world.dp_rank,
        size=world.dp_size,
        vocabulary_size=config.vocabulary_size,
    )
    stop_signal = 0
    try:
        while step < plan.steps and not stop_signal:
            begin = time.monotonic()
            samples, epochs_ended = reader.take(step + 1)
            waited = time.monotonic() - begin
            batch = torch.from_numpy(samples).to(world.device)  # (rows, sequence_length + 1)
            if step + 1 < plan.steps:
                # Asked for again, and read again, only if an overflow repeats this step.
                reader.request(step + 2)

            loss_here = torch.zeros((), device=world.device)
            for micro, rows in enumerate(batch.split(plan.micro_batch)):
                seed_micro_step(settings.seed, step, micro, world.dp_rank)
                synchronize_gradients(model, micro == plan.accumulation - 1)
                with autocast(world.device, plan.precision):
                    logits = model(rows[:, :-1])
                share = token_losses(logits, rows[:, 1:], world.tp_group).sum() / plan.tokens_per_step
                # Data parallelism averages gradients where the loss of the global batch is a sum.
                (share * (world.dp_size * scale.scale)).backward()
                loss_here += share.detach()
                del logits, share

            norm = gradient_norm(parameters) / scale.scale
            total, signals, waited = world.sum_over_processes([float(loss_here), float(stop.signal), waited])
            loss_now = total / world.tp_size
            # Signals need not reach all processes alike: any one of them stops all, at the same step.
            stop_signal = round(signals) and max(agreed(lambda: stop.signal))
            if not math.isfinite(norm):
                optimizer.zero_grad()
                if not scale.is_active:
                    raise Gpt2Error(
                        f"the gradient of step {step + 1:,} is not finite (loss {loss_now:g}): the run diverged; "
                        f"go on from the last checkpoint with a lower --lr in another --output."
                    )
                scale.after_overflow()
                continue
            factor = min(1.0, settings.clip / (norm + CLIP_EPSILON)) if settings.clip else 1.0
            scale_gradients(parameters, factor / scale.scale)
            rate = learning_rate(step + 1, plan.steps, settings)
            set_learning_rate(optimizer, rate)
            optimizer.step()
            optimizer.zero_grad()
            scale.after_step()
            step += 1
            loss = loss_now
            clock.add(loss_now, time.monotonic() - begin, waited / world.size)
            is_last = step == plan.steps

            for stream, epochs in epochs_ended:
                prefix = training.streams[stream].corpus.prefix
                say(f"step {step:,}/{plan.steps:,}  epoch {epochs} of {prefix} ended; the next one is shuffled anew")
            if step == 1 or step % settings.log_every == 0 or is_last:
                speed = plan.tokens_per_step * clock.timed_steps / clock.seconds
                row = {
                    "step": step,
                    "tokens": step * plan.tokens_per_step,
                    "epoch": step * settings.global_batch_size / training.epoch_samples,
                    "loss": clock.loss_sum / clock.steps,
                    "lr": rate,
                    "grad_norm": norm,
                    **({"loss_scale": scale.scale} if scale.is_active else {}),
                    "skipped": scale.skipped,
                    "tokens_per_second": speed,
                    "tokens_per_second_per_process": speed / world.size,
                    "mfu": speed * config.flops_per_token / (peak * world.size) if peak else None,
                    "peak_memory_bytes": peak_memory(world.device),
                    "data_wait_share": min(1.0, clock.waited / clock.seconds),
                    "seconds_left": clock.seconds_left(plan.steps - step),
                }
                log.write(row)
                say(line_of(row, plan.steps))
                clock.reset()
            if validation is not None and (is_last or (settings.eval_every and step % settings.eval_every == 0)):
                valid_loss, valid_tokens = validation_loss(
                    model, world, validation, settings, plan, config.vocabulary_size
                )
                row = {
                    "step": step,
                    "tokens": step * plan.tokens_per_step,
                    "valid_loss": valid_loss,
                    "valid_tokens": valid_tokens,
                }
                log.write(row)
                say(line_of(row, plan.steps))
            if settings.save_every and step % settings.save_every == 0:
                save()
        if saved_step != step and step:
            save()
    finally:
        reader.close()
    barrier()
    if stop_signal:
        say(
            f"stopped by {signal.Signals(stop_signal).name} at step {step:,} of {plan.steps:,}, "
            "all saved; the same command goes on from here."
        )
    return summary | {
        "step": step,
        "tokens": step * plan.tokens_per_step,
        "epochs": step * settings.global_batch_size / training.epoch_samples,
        "loss": loss,
        "valid_loss": valid_loss,
        "stopped_by": signal.Signals(stop_signal).name if stop_signal else None,
        "seconds": time.monotonic() - started,
    }


def resolved_settings(
    settings: TrainSettings, config: ModelConfig, plan: Plan, world: World, compiled: bool
) -> TrainSettings:
    """The settings with every default that depends on machine or data filled in."""
    length = {} if settings.steps or settings.tokens or settings.epochs else {"epochs": 1.0}
    changes: dict[str, Any] = {
        "model": None,
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "vocabulary_size": config.vocabulary_size,
        "micro_batch_size": plan.micro_batch,
        "data_parallel": world.dp_size,
        "precision": plan.precision,
        "compile": compiled,
        "device": world.device.type,
        "threads": torch.get_num_threads(),
        **length,
    }
    return dataclasses.replace(settings, **changes)


def use_compile_cache(settings: TrainSettings, environment: Callable[[str, str], Any] = os.environ.setdefault) -> None:
    """Give this run its own cache of compiled kernels: jobs that share one can read each other's half-written files."""
    if settings.output:
        environment("TORCHINDUCTOR_CACHE_DIR", str((Path(settings.output) / "cache" / "inductor").resolve()))
