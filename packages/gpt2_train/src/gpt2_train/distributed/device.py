"""The device of a process, and its precision: shared by training, evaluation and generation.

Nothing here knows of runs or settings; every function takes plain values. What a device can and cannot do (fused
kernels, half precision, 64-bit floats) is asked here and nowhere else, so that a new kind of device means one file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from typing import Any, Literal

import torch

from command_kit.machine import available_cores, physical_cores
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.model.gpt2 import DTYPES

DeviceKind = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["fp32", "bf16", "fp16"]

_HALF_PRECISION_INSTRUCTIONS = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "fp16_arith"),
}
"""CPU capabilities that multiply matrices in half precision, as `torch.cpu.get_capabilities` names them."""


def choose_device(
    kind: DeviceKind = "auto", *, local_rank: int = 0, local_size: int = 1, sees_own_only: bool = False
) -> torch.device:
    """The device of a process: its own GPU, or the CPU; MPS for a process that is alone.

    Args:
        kind: what was asked for; `auto` takes a GPU if there is one.
        local_rank, local_size: this process's number on its machine.
        sees_own_only: whether a launcher may show each process its own GPU alone (Slurm's --gpus-per-task=1), so
            that fewer are seen than there are processes.

    Raises Gpt2UsageError if the device asked for is not there, or has too little room for all processes.
    """
    if kind == "auto":
        mps = torch.backends.mps.is_available() and local_size == 1
        kind = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise Gpt2UsageError("--device cuda: torch sees no GPU here; give --device cpu, or install a CUDA build.")
        count = torch.cuda.device_count()
        if local_size > count and not sees_own_only:
            raise Gpt2UsageError(
                f"{local_size} processes asked of {count} GPUs: lower --tensor-parallel or --data-parallel."
            )
        torch.cuda.set_device(local_rank % count)
        return torch.device("cuda", local_rank % count)
    if kind == "mps":
        if not torch.backends.mps.is_available():
            raise Gpt2UsageError("--device mps: torch sees no Apple GPU here; give --device cpu.")
        if local_size > 1:
            raise Gpt2UsageError("--device mps runs one process: leave out --tensor-parallel and --data-parallel.")
    return torch.device(kind)


def use_threads(threads: int | None = None, local_size: int = 1) -> None:
    """Limit this process's CPU threads: as asked, or the machine's cores shared among its `local_size` processes.

    So are the processes in which torch compiles kernels: by itself each of 8 processes starts up to 32 of them.
    """
    torch.set_num_threads(threads or max(1, physical_cores() // local_size))
    # Read when torch's compiler is loaded, by the first model that is compiled.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(min(32, max(1, available_cores() // local_size))))


def is_fast_in_bf16(device: torch.device) -> bool:
    """Whether matrix products are faster in bf16 than in fp32; False where that was not tried, as on ARM.

    Intel's cores have AVX-512 BF16 also where AMX is missing or a virtual machine hides it; there products in bf16 are
    half as fast as in fp32 (160 and 310 GFLOP/s on two cores of a Xeon). AMD's are faster in it: a step of 124M takes
    5.9 s instead of 9.2 on two cores of an EPYC.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    is_intel = "intel" in str(capabilities.get("cpu_name", "")).lower()
    return bool(capabilities.get("amx_bf16") or (capabilities.get("avx512_bf16") and not is_intel))


def default_precision(device: torch.device) -> Precision:
    """bf16 on GPUs that compute in it, fp32 elsewhere.

    GPUs older than Ampere only emulate bf16, more slowly than they compute in fp32.
    """
    return "bf16" if device.type == "cuda" and is_fast_in_bf16(device) else "fp32"


def choose_precision(
    asked: Precision | Literal["auto"] | None, recorded: Precision | None, device: torch.device
) -> Precision:
    """The precision of a training run: what was asked for, else that of its checkpoint, else what suits the device.

    `auto` is bf16 also on CPUs that are fast in it; without it a CPU computes in fp32, as all CPUs can.
    """
    if asked is not None and asked != "auto":
        return asked
    if recorded is not None:
        return recorded
    return "bf16" if asked == "auto" and is_fast_in_bf16(device) else default_precision(device)


def autocast(
    device: torch.device, precision: str, *, keeps_copies: bool = True
) -> contextlib.AbstractContextManager[Any]:
    """Matrix products in `precision`, with norms and softmax in float32.

    Copies of parameters in `precision` are kept to its end, for other uses of them, or else made for each use.
    """
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, DTYPES[precision], cache_enabled=keeps_copies)


def is_emulated(device: torch.device, precision: str) -> bool:
    """Whether a CPU lacks instructions for `precision`, which makes it many times slower than fp32.

    False where that is not known.
    """
    if device.type != "cpu" or precision not in _HALF_PRECISION_INSTRUCTIONS:
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities) and not any(capabilities.get(name) for name in _HALF_PRECISION_INSTRUCTIONS[precision])


def note_emulated(device: torch.device, precision: str) -> str | None:
    """A sentence for the user if the CPU lacks instructions for `precision`, else None."""
    if not is_emulated(device, precision):
        return None
    return f"this CPU has no instructions for {precision}, which makes it many times slower than --precision fp32."


def widest_float(device: torch.device) -> torch.dtype:
    """The widest floating-point type of the device: float64, but float32 on MPS."""
    return torch.float32 if device.type == "mps" else torch.float64


def works_by_itself(device: torch.device) -> bool:
    """Whether the host can give the device its next work before the last is done, and skip a step without asking."""
    return device.type == "cuda"


def has_fused_adamw(device: torch.device) -> bool:
    """Whether torch's fused AdamW runs on the device."""
    return device.type in ("cuda", "cpu")


def unkept_random_state(device: torch.device) -> Any:
    """The module that gets and sets the state of a device's generator where `torch.utils.checkpoint` does not keep it.

    None where it does (CPU, CUDA).
    """
    return torch.mps if device.type == "mps" else None


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process held: allocated on the GPU, or resident on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_memory(device: torch.device) -> int | None:
    """Bytes of a GPU that are still free; None on a device whose memory is the machine's."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


EFFICIENCY = 0.6
"""Share of the speed of large matrix products that training on a CPU reaches, all told."""


def cpu_flops(seconds: float = 0.2, size: int = 768) -> float:
    """FLOPs per second of training on this process's threads, judged from matrix products for some `seconds`."""
    matrix = torch.ones(size, size)
    count, start = 0, time.monotonic()
    while count < 2 or time.monotonic() - start < seconds:
        matrix @ matrix
        count += 1
    return EFFICIENCY * 2 * size**3 * count / (time.monotonic() - start)
