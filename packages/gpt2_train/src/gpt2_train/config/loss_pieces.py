"""How many logits the loss turns into float32 at a time: the loss works by it and `estimate` counts with it.

Apart from `loss.py` because an estimate is made without importing torch.
"""

from __future__ import annotations

PIECE_ELEMENTS = {"cpu": 1 << 21}
"""Logits at a time by kind of device: on CPU what stays in its cache (three times as fast there as passes over all
logits at once), elsewhere enough to keep a GPU busy."""
DEFAULT_PIECE_ELEMENTS = 1 << 26


def piece_elements(device: str) -> int:
    """Logits at a time on a kind of device (`cpu`, `cuda`, `mps`)."""
    return PIECE_ELEMENTS.get(device, DEFAULT_PIECE_ELEMENTS)


def rows_at_a_time(device: str, width: int) -> int:
    """Whole rows of `width` logits in one piece, at least one."""
    return max(1, piece_elements(device) // width)
