"""Names and orders of Megatron-LM's tensors, from the scripts of 2019 to Megatron Core.

Three layouts: 2019 (one flat dictionary), `language_model` (nested; checkpoint versions 1 to 3), and Megatron Core
(flat again, other names; layer norms may be fused into the matrix behind them). Splits over tensor-parallel ranks are
the same in all of them; the order of the fused rows of query, key and value is not.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from gpt2_train.conversion.weights import heads_first, parts_first

LAYOUTS = ("2019", "language_model", "core")

_BLOCK = {
    "attention_norm": ("input_layernorm", "input_layernorm", "input_layernorm"),
    "attention.qkv": ("attention.query_key_value", "self_attention.query_key_value", "self_attention.linear_qkv"),
    "attention.out": ("attention.dense", "self_attention.dense", "self_attention.linear_proj"),
    "feed_forward_norm": ("post_attention_layernorm", "post_attention_layernorm", "pre_mlp_layernorm"),
    "feed_forward.up": ("mlp.dense_h_to_4h", "mlp.dense_h_to_4h", "mlp.linear_fc1"),
    "feed_forward.down": ("mlp.dense_4h_to_h", "mlp.dense_4h_to_h", "mlp.linear_fc2"),
}
_WHOLE = {
    "token_embedding.weight": (
        "word_embeddings.weight",
        "embedding.word_embeddings.weight",
        "embedding.word_embeddings.weight",
    ),
    "position_embedding.weight": (
        "position_embeddings.weight",
        "embedding.position_embeddings.weight",
        "embedding.position_embeddings.weight",
    ),
}
_STACK = ("transformer", "encoder", "decoder")
"""What the layouts call the stack of blocks."""
_FINAL_NORM = "final_layernorm"
_FUSED_NORMS = {
    "self_attention.linear_qkv.layer_norm_": "attention_norm.",
    "mlp.linear_fc1.layer_norm_": "feed_forward_norm.",
}

_IGNORED = re.compile(
    r"_extra_state$|\.inv_freq$|attention\.(bias|masked_bias)$|word_embeddings_for_head|rotary|\.attn_mask$"
)
"""Entries that hold no weight of a GPT-2: buffers, states of libraries, a second copy of the embedding."""
_OUTPUT = re.compile(r"(^|\.)(output_layer|lm_head|final_linear)\.weight$")


def name_in(layout: str, name: str) -> str:
    """`blocks.3.attention.qkv.weight` -> `transformer.layers.3.attention.query_key_value.weight`, for 2019."""
    number = LAYOUTS.index(layout)
    if name in _WHOLE:
        return _WHOLE[name][number]
    if name.startswith("final_norm."):
        return f"{_STACK[number]}.{_FINAL_NORM}.{name.removeprefix('final_norm.')}"
    _, block, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"{_STACK[number]}.layers.{block}.{_BLOCK[module][number]}.{kind}"


def canonical_name(name: str) -> str | None:
    """The name in `gpt2.py` of an entry of any layout, its prefixes left out or not; None for what is no weight.

    The output matrix, where it is stored, is `output.weight`. Raises KeyError for what no GPT-2 has.
    """
    if _IGNORED.search(name):
        return None
    if _OUTPUT.search(name):
        return "output.weight"
    name = re.sub(r"^((module|model|language_model|transformer\.embedding)\.)+", "", name)
    for canonical, names in _WHOLE.items():
        if name in names:
            return canonical
    stack, _, rest = name.partition(".")
    if stack not in _STACK:
        # The stack itself may be left out: `language_model.transformer` holds `layers...` in some versions.
        rest = name
    if rest.startswith(f"{_FINAL_NORM}."):
        return f"final_norm.{rest.removeprefix(f'{_FINAL_NORM}.')}"
    found = re.fullmatch(r"layers\.(0|[1-9][0-9]{0,8})\.(.+)", rest)
    if found is None:
        raise KeyError(name)
    block, inner = found.groups()
    for fused, norm in _FUSED_NORMS.items():
        if inner.startswith(fused):
            return f"blocks.{block}.{norm}{inner.removeprefix(fused)}"
    module, _, kind = inner.rpartition(".")
    for canonical, names in _BLOCK.items():
        if module in names and kind in ("weight", "bias"):
            return f"blocks.{block}.{canonical}.{kind}"
    raise KeyError(name)


def split_dimension(name: str) -> int | None:
    """The dimension along which tensor-parallel ranks share a parameter; None for one that each has whole."""
    if name == "token_embedding.weight" or ".attention.qkv." in name or ".feed_forward.up." in name:
        return 0
    return 1 if name.endswith((".attention.out.weight", ".feed_forward.down.weight")) else None


def join(name: str, shares: list[Tensor], *, version: float, heads: int) -> Tensor:
    """A whole parameter from the shares of all ranks, in order; qkv rows as `gpt2.py` has them.

    Args:
        name: as in `gpt2.py`.
        shares: one tensor a rank.
        version: the checkpoint's version, which decides the order of the qkv rows.
        heads: of the whole model.
    """
    if ".attention.qkv." in name:
        shares = [_from_version(share, version, heads // len(shares)) for share in shares]
    dimension = split_dimension(name)
    if dimension is None or len(shares) == 1:
        return shares[0]
    return torch.cat(shares, dim=dimension)


def share_of(name: str, whole: Tensor, *, rank: int, size: int, version: float, heads: int) -> Tensor:
    """The share of a parameter that rank `rank` of `size` has, its qkv rows in the order of `version`."""
    dimension = split_dimension(name)
    share = whole if dimension is None else whole.chunk(size, dim=dimension)[rank]
    if ".attention.qkv." in name:
        share = _to_version(share, version, heads // size)
    return share.contiguous()


def _from_version(rows: Tensor, version: float, heads: int) -> Tensor:
    """Rows (3·heads·d, ...) of one rank to [heads, 3, d]: version 0 has [3, heads, d], 1 [heads, d, 3]."""
    rest = rows.shape[1:]
    if version >= 2:
        return rows
    if version >= 1:
        return rows.view(heads, -1, 3, *rest).transpose(1, 2).reshape(rows.shape)
    return heads_first(rows, heads)


def _to_version(rows: Tensor, version: float, heads: int) -> Tensor:
    rest = rows.shape[1:]
    if version >= 2:
        return rows
    if version >= 1:
        return rows.view(heads, 3, -1, *rest).transpose(1, 2).reshape(rows.shape)
    return parts_first(rows, heads)
