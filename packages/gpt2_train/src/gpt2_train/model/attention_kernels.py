"""Which of torch's attention kernels a run on CUDA uses: the fastest for its shape, measured before the first step.

`scaled_dot_product_attention` has several: flash attention, cuDNN's, a memory-efficient one, and plain operations.
Which is fastest depends on GPU, shape, precision and dropout, and torch goes by a fixed order. Measuring takes a
fraction of a second, on the first process, which decides for all. The choice is a preference, not a restriction:
generation, whose shapes are others, goes on with the next that can. It holds for the whole process: compiled graphs
have the kernel in them, so it is made before anything is compiled.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.model.attention import PACKED, Context, Documents, attention_kind
from gpt2_train.model.gpt2 import DTYPES

Kernel = Literal["cudnn", "flash", "efficient", "math"]

_KERNELS: tuple[Kernel, ...] = ("flash", "cudnn", "efficient", "math")
"""In the order in which the others are tried."""

WARMUP, TURNS, CALLS = 2, 5, 4
"""Calls before measuring, measurements of which the median counts, and calls in each of them."""


class AttentionShape(NamedTuple):
    """What a kernel has to do.

    Attributes:
        batch: sequences in a micro-batch.
        heads: of this process.
        length: tokens in a sequence.
        head_dim: width of a head.
        precision: `fp32`, `bf16` or `fp16`.
        dropout: of attention weights.
        masked: whether a mask separates documents.
    """

    batch: int
    heads: int
    length: int
    head_dim: int
    precision: str
    dropout: float
    masked: bool

    def __str__(self) -> str:
        return (
            f"{self.batch} x {self.length:,} tokens, {self.heads} heads of {self.head_dim}, {self.precision}, "
            f"dropout {self.dropout:g}{', a mask' if self.masked else ''}"
        )


class AttentionChoice(NamedTuple):
    """The kernel of a run.

    Attributes:
        kernel: its name.
        gpu: the model of GPU that it was chosen for.
        milliseconds: what each kernel that works takes for one block, forward and backward; empty if not measured.
        without_dropout: what the fastest would take without dropout; None if there is none, or it was not measured.
    """

    kernel: Kernel
    gpu: str
    milliseconds: Mapping[Kernel, float] = {}
    without_dropout: float | None = None

    def __str__(self) -> str:
        times = dict(self.milliseconds)
        if self.kernel not in times:
            return f"attention: {self.kernel}"
        line = f"attention: {self.kernel}, {times.pop(self.kernel):.2f} ms per block and micro-batch"
        others = ", ".join(f"{name} {time:.2f}" for name, time in sorted(times.items(), key=lambda item: item[1]))
        dropout = f"; {self.without_dropout:.2f} with --dropout 0" if self.without_dropout is not None else ""
        return line + (f" ({others})" if others else "") + dropout

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores, so that a run that resumes on such a GPU computes with the same kernel."""
        return {"attention": {"kernel": self.kernel, "gpu": self.gpu}}


Timer = Callable[[AttentionShape, Kernel], float]
"""Milliseconds of attention forward and backward; raises RuntimeError where a kernel can't do it."""


def choose_attention(
    settings: TrainSettings,
    config: ModelConfig,
    device: torch.device,
    *,
    micro_batch: int,
    precision: str,
    state: Mapping[str, Any] | None = None,
    timer: Timer | None = None,
) -> AttentionChoice | None:
    """The kernel that was asked for; else that of the checkpoint with `state`, on such a GPU; else the fastest.

    None where there is nothing to choose: on other devices than CUDA, and where documents have a kernel of their own.
    Raises Gpt2UsageError if the one asked for does not work, or there is nothing to choose.
    """
    masked = settings.documents == "separate"
    has_own = masked and attention_kind(device, precision) == "varlen"
    if device.type != "cuda" or has_own:
        if settings.attention != "auto":
            where = "documents apart" if has_own else device.type
            raise Gpt2UsageError(f"--attention {settings.attention}: there is one kernel for {where}; leave it out.")
        return None
    heads = config.heads // settings.tensor_parallel
    shape = AttentionShape(
        micro_batch, heads, settings.sequence_length, config.head_dim, precision, config.dropout, masked
    )
    gpu = torch.cuda.get_device_name(device)
    timer = timer or functools.partial(gpu_milliseconds, device)
    if settings.attention != "auto":
        try:
            timer(shape, settings.attention)
        except RuntimeError as error:
            raise Gpt2UsageError(
                f"--attention {settings.attention} does not work on {gpu} for {shape} ({str(error).splitlines()[0]}): "
                "leave it out, or give another."
            ) from None
        return AttentionChoice(settings.attention, gpu)
    recorded = (state or {}).get("attention", {})
    if recorded.get("gpu") == gpu and measured(shape, timer, [recorded["kernel"]]):
        return AttentionChoice(recorded["kernel"], gpu)
    times = measured(shape, timer)
    without = measured(shape._replace(dropout=0.0), timer) if shape.dropout else {}
    return AttentionChoice(min(times, key=lambda name: times[name]), gpu, times, min(without.values(), default=None))


def measured(
    shape: AttentionShape, timer: Timer, kernels: tuple[Kernel, ...] | list[Kernel] = ("cudnn", "flash", "efficient")
) -> dict[Kernel, float]:
    """Milliseconds of each of `kernels` that works; of plain operations, which always do, if none of several does."""
    found: dict[Kernel, float] = {}
    for kernel in kernels:
        with contextlib.suppress(RuntimeError):
            found[kernel] = timer(shape, kernel)
    return found or ({"math": timer(shape, "math")} if len(kernels) > 1 else {})


def gpu_milliseconds(device: torch.device, shape: AttentionShape, kernel: Kernel) -> float:
    """See `Timer`; on a GPU."""
    # torch says in a warning each why a kernel can't be used.
    with warnings.catch_warnings(action="ignore"), _preferred(kernel, others=False):
        work = attention_work(shape, device)
        for _ in range(WARMUP):
            work()
        found = []
        for _ in range(TURNS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(CALLS):
                work()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) / CALLS)
    del work
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return statistics.median(found)


def _preferred(kernel: Kernel, *, others: bool) -> contextlib.AbstractContextManager[Any]:
    """Have attention use `kernel`, or, where it can't and `others` may, the next of them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [kernel, *(name for name in _KERNELS if others and name != kernel)]
    names = ["MATH" if name == "math" else f"{name.upper()}_ATTENTION" for name in order]
    return sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True)


def attention_work(shape: AttentionShape, device: torch.device) -> Callable[[], None]:
    """A forward and backward pass of the model's attention, on tensors that lie in memory as the model's do."""
    layer: Any = types.SimpleNamespace(dropout=shape.dropout, training=True)
    size = (shape.batch, shape.length, shape.heads, 3, shape.head_dim)
    fused = torch.randn(size, dtype=DTYPES[shape.precision], device=device, requires_grad=True)
    gradient = torch.randn_like(fused.detach()[:, :, :, 0])  # (B, T, heads, d)
    context: Context = PACKED
    if shape.masked:
        places = torch.arange(shape.length, device=device).expand(shape.batch, -1)
        context = Documents(places).with_mask()

    def work() -> None:
        context.attend(layer, *fused.unbind(3)).backward(gradient)
        fused.grad = None

    return work


@contextlib.contextmanager
def attention_by(choice: AttentionChoice | None) -> Iterator[None]:
    """Let attention prefer a kernel, in this process and in graphs compiled meanwhile; None changes nothing."""
    if choice is None:
        yield
        return
    config: Any = torch.compiler.config
    tag = config.cache_key_tag
    # torch's cache on disk goes by the code before attention is resolved to a kernel: a graph made with another one,
    # in an earlier run in the same folder, would pass for this one.
    config.cache_key_tag = f"{tag}attention={choice.kernel}"
    try:
        with _preferred(choice.kernel, others=True):
            yield
    finally:
        config.cache_key_tag = tag
