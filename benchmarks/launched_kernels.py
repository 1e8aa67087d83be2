"""What a GPU is asked to launch: bytes, FLOPs, and the time that these take by the data sheet; for `roofline.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SHORTEST = 2.5e-6
"""Seconds that the smallest kernel takes on the GPU."""


@dataclasses.dataclass(frozen=True)
class Card:
    """A GPU: the peaks of its data sheet, and the shares of them that kernels reach.

    Attributes:
        capability: compute capability, as 90 for 9.0.
        memory: GiB that a program gets.
        flops: dense products in bf16 with sums in float32, per second.
        bandwidth: bytes of memory per second.
        attention: the kernel that is the fastest there.
        shares: of the peak, by kind of kernel. None is measured by this project: `gpu.py` measures them.
    """

    capability: int
    memory: float
    flops: float
    bandwidth: float
    attention: str
    shares: dict[str, float]


def shares(product: float, memory: float, **attention: tuple[float, float]) -> dict[str, float]:
    """Shares of products and memory, and of attention's kernels forward and backward."""
    found = {"product": product, "memory": memory}
    for kernel, (forward, backward) in attention.items():
        found |= {f"{kernel} forward": forward, f"{kernel} backward": backward}
    return found


CARDS = {
    # Products of some thousand rows by cuBLAS at a power limit of 700 W; attention causal, head width 64, 1,024 tokens,
    # by cuDNN 9 and by FlashAttention-2, which has no instructions of Hopper's.
    "H100": Card(90, 79, 989e12, 3.35e12, "cudnn", shares(0.68, 0.85, cudnn=(0.45, 0.38), flash=(0.33, 0.27))),
    # 80 GB, SXM. cuBLAS comes nearer to the peak than on Hopper, and FlashAttention-2 was written for it.
    "A100": Card(80, 79, 312e12, 2.04e12, "flash", shares(0.78, 0.85, flash=(0.45, 0.37))),
    # Its cache of 72 MB is not counted. The kernels are those for 8.0, which also run on its 8.9.
    "RTX 4090": Card(80, 23.5, 165e12, 1.01e12, "flash", shares(0.85, 0.9, flash=(0.6, 0.5))),
}
Sums = dict[str, list[float]]
"""By name of a kernel: calls, bytes, FLOPs, seconds at the peak and expected."""


class Kernels(TorchDispatchMode):
    """Adds up what is launched while it is on: operations as they reach torch's dispatcher, and Inductor's kernels."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card, self.sums, self.is_on = card, Sums(), False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @contextlib.contextmanager
    def counting(self) -> Iterator[Sums]:
        """What is launched inside."""
        self.sums, self.is_on = {}, True
        yield self.sums
        self.is_on = False

    def add(self, kind: str, name: str, size: float, flops: float = 0.0) -> None:
        card = self.card
        peak = max(flops / card.flops, size / card.bandwidth)
        share = card.shares[kind if flops else "memory"]
        expected = max(flops / (card.flops * share), size / (card.bandwidth * card.shares["memory"]), SHORTEST)
        row = self.sums.setdefault(name, [0.0] * 5)
        row[:] = [a + b for a, b in zip(row, (1, size, flops, peak, expected), strict=True)]

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name, schema = function.overloadpacket.__name__, function._schema
        is_view = schema.returns and all(one.alias_info and not one.alias_info.is_write for one in schema.returns)
        if not self.is_on or is_view or re.match(r"(new_|_unsafe_)?(empty|view)|detach|is_|_local_scalar", name):
            return result
        given, made = tensors((args, kwargs)), tensors(result)
        if not any(one.is_cuda for one in (*given, *made)):
            return result
        size = sum({(one.data_ptr(), one.shape): bytes_of(one) for one in (*given, *made)}.values())
        if name in ("embedding", "index", "gather", "index_select"):  # of the table only what is taken is read
            size = 2 * sum(map(bytes_of, made))
        elif not re.match(r"_?(foreach_)?(copy|zero|fill)", name):
            written = [
                x for x, arg in zip(args, schema.arguments, strict=False) if arg.alias_info and arg.alias_info.is_write
            ]
            size += sum(map(bytes_of, tensors(written)))
        self.add(*operation(name, given, size))
        return result


def tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def bytes_of(tensor: Tensor) -> int:
    """What is read of a tensor, which may be one value that is expanded."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def operation(name: str, given: list[Tensor], size: float) -> tuple[str, str, float, float]:
    """Kind, name, bytes and FLOPs of an operation."""
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        left, right = given[1:3] if "add" in name else given[:2]  # what is added comes first
        shape = f"{left.shape[-2]:,} x {left.shape[-1]:,} by {right.shape[-1]:,}"
        return "product", f"product {shape}", size, 2.0 * left.numel() * right.shape[-1]
    if found := re.search(r"(cudnn|flash|efficient)_attention", name):
        batch, heads, length, width = next(one for one in given if one.dim() == 4).shape
        way, times = ("backward", 2.5) if "backward" in name else ("forward", 1.0)
        kind = f"{found[1]} {way}"
        return kind, f"attention {kind}", size, times * 4.0 * batch * heads * length**2 * width / 2
    return "memory", name, size, 0.0


@contextlib.contextmanager
def inductor_kernels(kernels: Kernels) -> Iterator[None]:
    """Let `kernels` see those that Inductor makes, which are neither compiled nor launched: nothing computes here."""
    from torch._inductor import config
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        if kernels.is_on:
            named = dict(zip(self.triton_meta.get("signature", {}), args, strict=False))
            sizes = {name: bytes_of(value) for name, value in named.items() if isinstance(value, Tensor)}
            name = re.sub(r"_\d+$", "", self.inductor_meta.get("kernel_name", self.fn.__name__))
            size = sum(times * sizes[of] for of in sizes for times in [2 if of.startswith("in_out") else 1])
            takes_rows = name.startswith("triton_poi_") and "gather" in name
            if takes_rows or ("embedding" in name and "backward" not in name):
                size = 2 * (sum(sizes.values()) - max(sizes.values()))
            kernels.add("memory", name, size)

    with contextlib.ExitStack() as stack:
        stack.enter_context(config.patch(compile_threads=1))
        stack.enter_context(mock.patch.object(CachingAutotuner, "precompile", lambda *_, **__: None))
        stack.enter_context(mock.patch.object(CachingAutotuner, "run", run))
        yield


def inductors(sums: Sums) -> float:
    """How many of the kernels are Inductor's, which the null device does not see."""
    return sum(row[0] for name, row in sums.items() if name.startswith("triton_"))
