"""Names, rows and their order as files have them, from and to those of `gpt2.py`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gpt2_train.config.settings import ModelConfig

EMBEDDING = "token_embedding.weight"
"""The matrix with a row for each token id, which is the output matrix, too."""

PREFIX = "transformer."
"""The beginning of each name in the files of transformers."""

_MODULES = {
    "token_embedding": "wte",
    "position_embedding": "wpe",
    "final_norm": "ln_f",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
_MATRICES = tuple(
    f"{name}.weight" for name in ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down")
)
"""Stored as [in, out] by transformers, [out, in] here."""


def renamed(name: str, names: Mapping[str, str], blocks: str) -> str:
    """`blocks.3.attention.qkv.weight` -> `h.3.attn.c_attn.weight`, with another format's `names` of modules.

    Args:
        name: as in `gpt2.py`.
        names: the other format's, by ours without number and `weight`.
        blocks: what it calls the list of blocks (`h`).
    """
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return f"{names[module]}.{kind}"
    _, block, inner = module.split(".", 2)
    return f"{blocks}.{block}.{names[inner]}.{kind}"


def gpt2_name(name: str) -> str:
    """GPT-2's own name of a parameter: `h.3.attn.c_attn.weight` for `blocks.3.attention.qkv.weight`."""
    return renamed(name, _MODULES, "h")


def gpt2_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in GPT-2's layout of a parameter of the given shape, and the other way round."""
    return shape[::-1] if name.endswith(_MATRICES) else shape


def to_gpt2(name: str, tensor: Tensor, heads: int) -> Tensor:
    """A parameter in GPT-2's layout: matrices [in, out], columns of qkv [3, heads, d]."""
    if ".attention.qkv." in name:
        tensor = parts_first(tensor, heads)
    return (tensor.t() if name.endswith(_MATRICES) else tensor).contiguous()


def from_gpt2(name: str, tensor: Tensor, heads: int) -> Tensor:
    """A parameter that lies in GPT-2's layout as `gpt2.py` has it, in the same memory where that can be."""
    tensor = tensor.t() if name.endswith(_MATRICES) else tensor
    return heads_first(tensor, heads) if ".attention.qkv." in name else tensor


def without_padding(name: str, shape: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
    """The shape of a parameter, or of its state in an optimizer, without rows of padding."""
    return (min(shape[0], config.vocabulary_size), *shape[1:]) if name == EMBEDDING else shape


def parts_first(rows: Tensor, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) from the order of `gpt2.py`, [heads, 3, d], to [3, heads, d]."""
    rest = rows.shape[1:]
    return rows.reshape(heads, 3, -1, *rest).transpose(0, 1).reshape(rows.shape)


def heads_first(rows: Tensor, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) from [3, heads, d] to the order of `gpt2.py`, [heads, 3, d]."""
    rest = rows.shape[1:]
    return rows.reshape(3, heads, -1, *rest).transpose(0, 1).reshape(rows.shape)
