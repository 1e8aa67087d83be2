"""Names and order of rows as other programs have them, from and to those of `gpt2.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gpt2_train.checkpoint.load import is_usable
from gpt2_train.config.errors import Gpt2UsageError


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


def parts_first(rows: Tensor, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) from the order of `gpt2.py`, [heads, 3, d], to [3, heads, d]."""
    rest = rows.shape[1:]
    return rows.reshape(heads, 3, -1, *rest).transpose(0, 1).reshape(rows.shape)


def heads_first(rows: Tensor, heads: int) -> Tensor:
    """qkv rows (3·heads·d, ...) from [3, heads, d] to the order of `gpt2.py`, [heads, 3, d]."""
    rest = rows.shape[1:]
    return rows.reshape(3, heads, -1, *rest).transpose(0, 1).reshape(rows.shape)


def check_is_tied(origin: Path, output: Tensor, embedding: Tensor) -> None:
    """Raise Gpt2UsageError if a stored output matrix is not the token embedding, to the type and the last bit."""
    are_usable = is_usable(output) and is_usable(embedding)
    if not (are_usable and output.dtype == embedding.dtype and torch.equal(output, embedding)):
        raise Gpt2UsageError(
            f"{origin} has an output matrix of its own, where a GPT-2 uses its token embedding: it can't be converted."
        )
