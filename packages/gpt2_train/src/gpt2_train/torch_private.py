"""Parts of torch that this package uses and torch does not promise to keep: each private name here and nowhere else.

A version of torch that lacks one of them is refused in a sentence, most where it is imported. Their tests run with the
pinned version and with `NEWEST`, above which pyproject.toml takes none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gpt2_train.config.errors import Gpt2Error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor


NEWEST = "2.15"
"""The newest version of torch that this was tested with."""


def required(owner: Any, name: str) -> Any:
    """The attribute `name` of `owner`. Raises Gpt2Error if this version of torch has none."""
    found = getattr(owner, name, None)
    if found is None:
        raise Gpt2Error(
            f"torch {torch.__version__} has no {name}, which this program needs: install torch {NEWEST}, or another "
            "version of this program."
        )
    return found


foreach_norm = required(torch, "_foreach_norm")
"""(tensors): the norm of each."""
foreach_mul_, foreach_sub_ = required(torch, "_foreach_mul_"), required(torch, "_foreach_sub_")
"""(tensors, a scalar or a tensor for each): the products or differences, in place."""

_ISOLATES = "isolate_recompiles" in inspect.signature(torch.compile).parameters
"""From torch 2.13 on; the type stubs do not know of it."""


def compiled_whole(function: Any, *, isolated: bool) -> Any:
    """`function` compiled without breaks, for each shape apart; isolated, its graphs don't count with others' of it.

    Where torch can't isolate them, it is allowed more graphs of each function than the 8 it allows by default.
    """
    if _ISOLATES:
        return torch.compile(function, dynamic=False, fullgraph=True, isolate_recompiles=isolated)  # type: ignore[call-overload]
    config = required(torch, "_dynamo").config
    config.recompile_limit = max(64, config.recompile_limit)
    return torch.compile(function, dynamic=False, fullgraph=True)


_collectives = required(torch.ops, "_c10d_functional")
all_reduce = required(_collectives, "all_reduce")
wait = required(_collectives, "wait_tensor")
"""Collectives that a compiled graph may hold; what they return is there after `wait`."""

ATTENTION_OPERATORS = frozenset(
    required(torch.ops.aten, f"_scaled_dot_product_{kind}").default
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
"""The operators that `scaled_dot_product_attention` becomes."""

CHECKPOINT_LOG = "torch._higher_order_ops.wrap"
"""The log in which compiled checkpointing warns."""

VARLEN_ATTENTION = "torch_attn._varlen_attn.default"
"""Attention inside documents, by its name: loading it takes seconds, and few runs need it."""


def local_tensor(tensor: DTensor) -> Tensor:
    """This process's part of `tensor`, outside of autograd; `to_local` takes a tenth of a millisecond."""
    part: Tensor = required(tensor, "_local_tensor")
    return part


def as_part_of(part: Tensor, whole: DTensor) -> DTensor:
    """`part`, laid out as this process's part of `whole`, as a DTensor like it."""
    from torch.distributed.tensor import DTensor

    return DTensor(part, required(whole, "_spec"), requires_grad=False)


def own_piece(tensor: DTensor) -> tuple[Sequence[int], Sequence[int]]:
    """(offsets, sizes) of this process's part of `tensor`, as torch.distributed.checkpoint asks for it."""
    (piece,) = required(tensor, "__create_chunk_list__")()
    return piece.offsets, piece.sizes


def backend_on_gpus(group: ProcessGroup) -> Any:
    """The backend that sends the tensors of GPUs in `group`."""
    return required(group, "_get_backend")(torch.device("cuda"))


def give_memory(module: nn.Module, device: torch.device | str) -> None:
    """Allocate memory on `device`, without values, for what of `module` is on the meta device."""
    # `empty_like` of what has no memory is Python in torch 2.13, and loads sympy for it: 0.7 s of a core.
    required(module, "_apply")(lambda old: old.new_empty(old.shape, device=device) if old.is_meta else old)


def packs_weights() -> bool:
    """Whether this build has oneDNN's order of weights."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def packed_linear(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    """The linear layer of `weight`, laid out in the order that oneDNN chooses for products of `rows` rows with it."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    options = {"attr": "none", "scalars": [], "algorithm": ""}
    return functools.partial(torch.ops.mkldnn._linear_pointwise, W=packed, B=bias, **options)
