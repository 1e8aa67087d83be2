"""Checks of what this machine has and how fast it trains, for `gpt2 doctor`; with torch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from command_kit.machine import GIB, Check, Machine, cores_check, disk_check, memory_check
from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.device import choose_device, cpu_flops, default_precision, is_emulated
from gpt2_train.distributed.parallelize import CPP_COMPILERS, missing_for_compilation


def machine_checks(machine: Machine, needed: int) -> list[Check]:
    """`machine`, and what torch makes of it; `needed` bytes of memory and disk are what the quickstart takes."""
    device = choose_device()
    return [
        cores_check(),
        memory_check(machine, needed, "the quickstart"),
        disk_check(machine, Path.cwd(), needed, "the quickstart"),
        _device(device, torch.version.cuda),
        _precision(device),
        _compiler(device),
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
    """The needs of `--compile`: Triton on a GPU, a C++ compiler and its headers on a CPU."""
    missing = missing_for_compilation(device, is_asked=True)
    if device.type == "cuda":
        return Check("compiler", "none" if missing else "Triton", missing and f"models are not compiled: {missing}")
    name = os.environ.get("CXX") or CPP_COMPILERS[0]
    return Check("compiler", f"none for --compile: {missing}" if missing else f"{name}, for --compile")


def _speed(device: torch.device) -> Check:
    if device.type != "cpu":
        return Check("speed", "measure it with benchmarks/gpu.py")
    flops = cpu_flops()
    rate = flops / ModelConfig.preset("124M").flops_per_token
    return Check("speed", f"{flops / 1e9:,.0f} GFLOP/s: 124M at some {rate:,.0f} tokens/s, fp32")
