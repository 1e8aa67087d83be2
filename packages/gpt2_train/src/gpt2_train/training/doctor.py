"""`gpt2 doctor`: what this machine has (cores, memory, GPUs, torch, a compiler), and what it can train.

How fast it would train is judged from matrix products of a fraction of a second, which reach what training reaches
within a factor of two or so; the memory of a run is worked out as `gpt2 estimate` does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from command_kit.machine import (
    GIB,
    Check,
    Machine,
    cores_check,
    disk_check,
    memory_check,
    packages_check,
    shown,
    values,
)
from command_kit.parsing import version_line

if TYPE_CHECKING:
    import torch


EXAMPLE = """\
example:
  gpt2 doctor
"""

NEEDED = 3 * GIB
"""What the quickstart's training takes of memory and disk, generously."""

EXTRAS = {
    "gguf": "convert to GGUF",
    "huggingface-hub": "models by their names on Hugging Face's hub",
    "resvg-py": "PNG of gpt2 plot",
    "tensorboard": "its event files",
    "wandb": "Weights & Biases",
    "trackio": "Trackio",
    "lm-eval": "lm-evaluation-harness",
}


@dataclasses.dataclass(frozen=True)
class DoctorSettings:
    """`gpt2 doctor` has none."""


SETTINGS = DoctorSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 doctor` to its parser."""
    parser.epilog = EXAMPLE
    parser.add_argument("--json", action="store_true", help="print what was found as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; return the exit code."""
    import torch

    from gpt2_train.distributed.device import choose_device

    machine, device = Machine(), choose_device()
    checks = [
        Check("version", version_line("gpt2", "webtext-gpt2-train", others=["torch"])),
        cores_check(),
        memory_check(machine, NEEDED, "the quickstart"),
        disk_check(machine, Path.cwd(), NEEDED, "the quickstart"),
        _device(device, torch.version.cuda),
        _precision(device),
        _compiler(device),
        _largest(machine, device),
        _speed(device),
        packages_check("extras", EXTRAS, how="install what you need with pip or uv"),
    ]
    print(json.dumps(values(checks)) if arguments.json else shown(checks))
    return 0


def _device(device: torch.device, cuda: str | None) -> Check:
    import torch

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
    from gpt2_train.distributed.device import default_precision, is_emulated

    chosen = default_precision(device)
    if device.type == "cpu":
        slow = [kind for kind in ("bf16", "fp16") if is_emulated(device, kind)]
        note = f"; this CPU only emulates {' and '.join(slow)}, many times slower" if slow else ""
        return Check("precision", f"{chosen} by default{note}")
    return Check("precision", f"{chosen} by default")


def _compiler(device: torch.device) -> Check:
    """What `--compile` needs: Triton on a GPU, a C++ compiler and its headers on a CPU."""
    from gpt2_train.distributed.parallelize import missing_for_compilation

    if device.type == "cuda":
        missing = missing_for_compilation(device)
        return Check("compiler", "none" if missing else "Triton", missing and f"models are not compiled: {missing}")
    name = os.environ.get("CXX") or next((one for one in ("g++", "clang++", "c++") if shutil.which(one)), None)
    return Check("compiler", f"{name}, for --compile" if name else "none: --compile needs g++ or clang++")


def _largest(machine: Machine, device: torch.device) -> Check:
    """The largest of GPT-2's sizes that a run with one sequence at a time has room for on one device."""
    import torch

    from gpt2_train.config.settings import PRESETS, ModelConfig
    from gpt2_train.distributed.device import default_precision
    from gpt2_train.training.estimate import RESERVE
    from gpt2_train.training.memory import memory_per_rank

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
    from gpt2_train.config.settings import ModelConfig
    from gpt2_train.distributed.device import cpu_flops

    if device.type != "cpu":
        return Check("speed", "measure it with benchmarks/gpu.py")
    flops = cpu_flops()
    rate = flops / ModelConfig.preset("124M").flops_per_token
    return Check("speed", f"{flops / 1e9:,.0f} GFLOP/s: 124M at some {rate:,.0f} tokens/s, fp32")
