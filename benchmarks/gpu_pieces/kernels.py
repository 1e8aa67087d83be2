"""Pieces that look into a step: output matrix and loss, attention, and the kernels that take most."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpt2_train.model.attention_kernels import KERNELS, AttentionShape, attend, attention_input, preferred
from gpu_pieces.bench import Bench, Mode, attempt, cleared
from gpu_pieces.training import Parts, run_of
from output_losses import steps


def loss(*, smoke: bool) -> Parts:
    """Time and memory of the output matrix with its loss, ours and torch's, on a micro-batch; and each one's loss."""
    bench = Bench(smoke=smoke)
    case = bench.case("124M", 32)
    with cleared():
        ways = steps(case.config, case.batch, bench.device, case.precision)

    def measure(step: Callable[[], torch.Tensor]) -> dict[str, Any]:
        total = float(step())
        if bench.on_gpu:
            torch.cuda.reset_peak_memory_stats()  # without what compiling took
        row = {"ms": round(1000 * bench.seconds(step), 2), "peak_memory_GiB": bench.peak_memory()}
        return row | {"loss": total / (case.batch * case.config.sequence_length)}

    for name, step in ways.items():
        if "compiled" not in name or bench.on_gpu:  # on a CPU it is seconds of C++ for nothing
            yield name, attempt(lambda step=step: measure(step))  # type: ignore[misc]


def attention(*, smoke: bool) -> Parts:
    """Milliseconds of each kernel of attention for one block, forward and backward, without dropout and with it."""
    bench = Bench(smoke=smoke)
    if not bench.on_gpu:
        return
    for name, batch in (("124M", 32), ("345M", 32), ("1.5B", 16)):
        case = bench.case(name, batch)
        config = case.config
        for dropout in (0.0, 0.1):
            shape = AttentionShape(
                case.batch, config.heads, config.sequence_length, config.head_dim, case.precision, dropout, masked=False
            )

            def measure(shape: AttentionShape = shape) -> dict[str, Any]:
                fused, found = attention_input(torch.device(bench.device), shape), {}
                for kernel in KERNELS[:-1]:
                    with (
                        contextlib.suppress(RuntimeError),
                        warnings.catch_warnings(action="ignore"),
                        preferred(kernel, others=False),
                    ):
                        found[kernel] = round(1000 * bench.seconds(lambda: attend(fused, shape)), 4)
                return found

            yield f"{name}, dropout {dropout}" if dropout else name, attempt(measure)


def profile(*, smoke: bool) -> Parts:
    """All kernels (on a CPU the operations) of three of our steps of 124M, as shares of the whole, and in groups."""
    bench = Bench(smoke=smoke)
    case = bench.case("124M", 32)
    compiled: Mode = "blocks" if bench.on_gpu and not bench.smoke else None
    kind = torch.profiler.ProfilerActivity.CUDA if bench.on_gpu else torch.profiler.ProfilerActivity.CPU
    with cleared(), run_of(bench, case, bench.warmup + 4, compile=compiled or False) as (run, _):
        for _ in range(bench.warmup):
            run.train_step()
        with torch.profiler.profile(activities=[kind]) as found:
            for _ in range(3):
                run.train_step()
            bench.wait()

    def time_of(event: Any) -> float:
        return float(event.self_device_time_total if bench.on_gpu else event.self_cpu_time_total)

    events = sorted(found.key_averages(), key=time_of, reverse=True)
    whole = sum(map(time_of, events)) or 1.0

    def row(these: Sequence[Any]) -> dict[str, Any]:
        spent = sum(map(time_of, these))
        calls = sum(event.count for event in these) // 3
        return {"ms": round(spent / 3000, 3), "share": round(spent / whole, 4), "calls": calls}

    groups: dict[str, list[Any]] = {}
    for event in events:
        groups.setdefault(group_of(event.key), []).append(event)
    for name, members in groups.items():
        yield name, row(members)
    for number, event in enumerate(events, 1):
        yield f"{number}", {"kernel": event.key[:120]} | row([event])


GROUPS = {
    "attention": "cudnn|flash|fmha|sdpa|attention",
    "products": "nvjet|gemm|cutlass|cublas|splitk|aten::(add|b)?mm",
    "norms": "layer_norm",
    "GELU": "gelu",
    "loss": "exp_log|softmax|one_pass",
    "optimizer": "adam|multi_tensor|foreach|lpnorm",
    "copies and fills": "memcpy|memset|copy|fill|cat",
}
"""Patterns in a kernel's name: the first that is found names its group."""


def group_of(kernel: str) -> str:
    """The group of a kernel by its name."""
    found = (group for group, pattern in GROUPS.items() if re.search(pattern, kernel, re.IGNORECASE))
    return next(found, "all others")
