"""The choice among torch's attention kernels for a run on CUDA: the first that can, in an order for each kind of GPU.

`scaled_dot_product_attention` has several: flash attention, cuDNN's, a memory-efficient one, and plain operations. The
first process tries them on the run's own shape before the first step, compares what the kernel gives with plain
operations in float32, and decides for all. The choice is a preference, not a restriction: generation, whose shapes are
others, goes on with the next that can. It holds for the whole process: compiled graphs have the kernel in them, so it
is made before anything is compiled.
"""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.model.attention import PACKED, Context, Documents, attention_kind
from gpt2_train.model.gpt2 import DTYPES

Kernel = Literal["cudnn", "flash", "efficient", "math"]

KERNELS: tuple[Kernel, ...] = ("flash", "cudnn", "efficient", "math")
"""All kernels, in torch's own order, which is that of trials."""

CUDNN_FIRST = (9, 10)
"""Major numbers of the compute capability of Hopper and Blackwell, on which cuDNN's is tried first: torch's flash
attention has no instructions of theirs."""

LARGEST_DIFFERENCE = 0.05
"""The largest difference of a kernel's values from plain ones, as a share of the largest: bf16 rounds to 0.004 of each,
a wrong kernel's differ by as much as they are."""


class AttentionShape(NamedTuple):
    """The work of a kernel.

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
        difference: as `attention_difference` gives it.
    """

    kernel: Kernel
    gpu: str
    difference: float

    def __str__(self) -> str:
        return f"attention: {self.kernel}, at most {self.difference:.1%} of the largest value from plain operations"

    def state(self) -> dict[str, Any]:
        """Values for a checkpoint, so that a run that resumes on such a GPU computes with the same kernel."""
        return {"attention": {"kernel": self.kernel, "gpu": self.gpu}}


def choose_attention(
    settings: TrainSettings,
    config: ModelConfig,
    device: torch.device,
    *,
    micro_batch: int,
    precision: str,
    state: Mapping[str, Any] | None = None,
) -> AttentionChoice | None:
    """The kernel that was asked for; else that of the checkpoint with `state`, on such a GPU; else the first that can.

    None where there is nothing to choose: on other devices than CUDA, and where documents have a kernel of their own.
    Raises Gpt2UsageError if the one asked for does not work, or there is nothing to choose, and Gpt2Error if what it
    computes is wrong.
    """
    masked = settings.documents == "separate"
    has_own = masked and attention_kind(device, precision) == "varlen"
    if device.type != "cuda" or has_own:
        if settings.attention != "auto":
            where = "document masking" if has_own else device.type
            raise Gpt2UsageError(f"--attention {settings.attention}: there is one kernel for {where}; leave it out.")
        return None
    heads = config.heads // settings.tensor_parallel
    shape = AttentionShape(
        micro_batch, heads, settings.sequence_length, config.head_dim, precision, config.dropout, masked
    )
    gpu = torch.cuda.get_device_name(device)
    recorded = (state or {}).get("attention", {})
    is_new = torch.cuda.get_device_capability(device)[0] in CUDNN_FIRST
    order: Sequence[Kernel] = ("cudnn", *KERNELS) if is_new else KERNELS
    if settings.attention != "auto":
        order = [settings.attention]
    elif recorded.get("gpu") == gpu:
        order = [recorded["kernel"], *order]
    reason = ""
    for kernel in order:
        try:
            found = AttentionChoice(kernel, gpu, gpu_trial(device, shape, kernel))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            continue
        if not found.difference <= LARGEST_DIFFERENCE:  # NaN included
            raise Gpt2Error(
                f"attention by {kernel} is wrong on {gpu} for {shape}: its values differ from plain operations by "
                f"{found.difference:.0%} of the largest; give another by --attention, and update driver and torch."
            )
        return found
    raise Gpt2UsageError(
        f"--attention {order[0]} does not work on {gpu} for {shape} ({reason}): leave it out, or give another."
    )


def gpu_trial(device: torch.device, shape: AttentionShape, kernel: Kernel) -> float:
    """`attention_difference` on a GPU, whose peak of memory is forgotten."""
    # torch says in a warning each why a kernel can't be used.
    with warnings.catch_warnings(action="ignore"):
        found = attention_difference(device, shape, kernel)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return found


def attention_difference(device: torch.device, shape: AttentionShape, kernel: Kernel) -> float:
    """The largest difference of a kernel's output and gradient from plain operations in float32, as a share of the
    largest value; without dropout, of the first and last head of the first and last sequence.

    Raises RuntimeError where the kernel can't do it.
    """
    fused = attention_input(device, shape)
    with preferred(kernel, others=False):
        if shape.dropout:
            attend(fused, shape)  # must work, and can't be compared
        ours = attend(fused, shape._replace(dropout=0.0))
    places = torch.tensor([0, -1])
    picked = fused.detach()[places][:, :, places].float().requires_grad_()
    with preferred("math", others=False):
        plain = attend(picked, shape._replace(batch=2, dropout=0.0))
    pairs = zip((part[places][:, :, places].float() for part in ours), plain, strict=True)
    return max(float((one - other).abs().max() / other.abs().max().clamp(min=1e-6)) for one, other in pairs)


def attention_input(device: torch.device, shape: AttentionShape) -> Tensor:
    """Random queries, keys and values, (B, T, heads, 3, d), that lie in memory as the model's do."""
    size = (shape.batch, shape.length, shape.heads, 3, shape.head_dim)
    random = torch.Generator(device).manual_seed(0)
    return torch.randn(size, dtype=DTYPES[shape.precision], device=device, generator=random).requires_grad_()


def attend(fused: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor]:
    """The model's attention forward and backward: its output, (B, T, heads, d), and the gradient of `fused`."""
    layer: Any = types.SimpleNamespace(dropout=shape.dropout, training=True)
    context: Context = PACKED
    if shape.masked:
        places = torch.arange(shape.length, device=fused.device).expand(shape.batch, -1)
        context = Documents(places).with_mask()
    mixed = context.attend(layer, *fused.unbind(3))
    (gradient,) = torch.autograd.grad(mixed, fused, mixed.detach())
    return mixed.detach(), gradient


def preferred(kernel: Kernel, *, others: bool) -> contextlib.AbstractContextManager[Any]:
    """Use `kernel` for attention, or, where it can't and `others` may, the next of them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [kernel, *(name for name in KERNELS if others and name != kernel)]
    names = ["MATH" if name == "math" else f"{name.upper()}_ATTENTION" for name in order]
    return sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True)


@contextlib.contextmanager
def attention_by(choice: AttentionChoice | None) -> Iterator[None]:
    """Prefer a kernel for attention, in this process and in graphs compiled meanwhile; None changes nothing."""
    if choice is None:
        yield
        return
    config: Any = torch.compiler.config
    tag = config.cache_key_tag
    # torch's cache on disk goes by the code before attention is resolved to a kernel: a graph made with another one,
    # in an earlier run, would pass for this one.
    config.cache_key_tag = f"{tag}attention={choice.kernel}"
    try:
        with preferred(choice.kernel, others=True):
            yield
    finally:
        config.cache_key_tag = tag
