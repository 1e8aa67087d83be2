"""Dry-run steps before the first one, for `--threads auto`, and what a machine can train (`gpt2 doctor`, size advice).

Dry-run steps compute the gradient of the first batch and drop it, so that the run is to the last bit the one without
them. They measure which number of CPU threads is fastest: on a busy machine fewer than it has cores. Costs a few
seconds, which are part of the time of `--minutes`. All processes calibrate together, and the first one decides.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

from command_kit import duration
from command_kit.machine import GIB, Check, Machine, cores_check, disk_check, memory_check
from gpt2_train.config.settings import PRESETS, ModelConfig
from gpt2_train.distributed.collectives import from_first_rank
from gpt2_train.distributed.device import choose_device, cpu_flops, default_precision, is_emulated
from gpt2_train.distributed.parallelize import missing_for_compilation
from gpt2_train.training.memory import RESERVE, memory_per_rank

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


def machine_checks(machine: Machine, needed: int) -> list[Check]:
    """What `machine` has and can train; `needed` bytes of memory and disk are what the quickstart takes."""
    device = choose_device()
    return [
        cores_check(),
        memory_check(machine, needed, "the quickstart"),
        disk_check(machine, Path.cwd(), needed, "the quickstart"),
        _device(device, torch.version.cuda),
        _precision(device),
        _compiler(device),
        _largest(machine, device),
        _speed(device),
    ]


def _device(device: torch.device, cuda: str | None) -> Check:
    if device.type == "cuda":
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        names = ", ".join(f"{gpu.name} ({gpu.total_memory / GIB:.0f} GiB)" for gpu in gpus)
        return Check("device", f"{len(gpus)} × CUDA: {names}")
    if device.type == "mps":
        return Check("device", "Apple's GPU")
    if shutil.which("nvidia-smi"):
        what = "is a build without CUDA: install one with it" if cuda is None else "can't use it: update the driver"
        return Check("device", "CPU", f"there is an NVIDIA driver, but this torch {what}")
    return Check("device", "CPU (no GPU was found)")


def _precision(device: torch.device) -> Check:
    slow = [kind for kind in ("bf16", "fp16") if is_emulated(device, kind)]
    note = f"; this CPU only emulates {' and '.join(slow)}, many times slower" if slow else ""
    return Check("precision", f"{default_precision(device)} by default{note}")


def _compiler(device: torch.device) -> Check:
    """What `--compile` needs: Triton on a GPU, a C++ compiler and its headers on a CPU."""
    if device.type == "cuda":
        missing = missing_for_compilation(device)
        return Check("compiler", "none" if missing else "Triton", missing and f"models are not compiled: {missing}")
    name = os.environ.get("CXX") or next((one for one in ("g++", "clang++", "c++") if shutil.which(one)), None)
    return Check("compiler", f"{name}, for --compile" if name else "none: --compile needs g++ or clang++")


def _largest(machine: Machine, device: torch.device) -> Check:
    """The largest of GPT-2's sizes that a run with one sequence at a time has room for on one device."""
    on_cpu = device.type != "cuda"
    room = machine.available_memory() if on_cpu else torch.cuda.get_device_properties(device).total_memory - RESERVE
    if room is None:
        return Check("trains", "the system does not say how much memory is free")
    precision = default_precision(device)
    peaks = {
        size: memory_per_rank(
            ModelConfig.preset(size),
            micro_batch=1,
            precision=precision,
            activation_checkpointing="full",
            on_cpu=on_cpu,
        ).peak
        for size in PRESETS
    }
    fitting = [size for size, peak in peaks.items() if peak <= room]
    if not fitting:
        return Check("trains", "models smaller than GPT-2's 124M: memory is short for that")
    return Check("trains", f"up to {fitting[-1]} ({peaks[fitting[-1]] / GIB:.1f} GiB, one sequence at a time)")


def _speed(device: torch.device) -> Check:
    if device.type != "cpu":
        return Check("speed", "measure it with benchmarks/gpu.py")
    flops = cpu_flops()
    rate = flops / ModelConfig.preset("124M").flops_per_token
    return Check("speed", f"{flops / 1e9:,.0f} GFLOP/s: 124M at some {rate:,.0f} tokens/s, fp32")
