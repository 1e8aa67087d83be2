"""Host memory for one copy of a process's tensors, so that they can be saved while training changes them.

Training waits for the copy and not for the disk. There is one such copy, made room for before the first step and used
by one save after the other: 12 bytes for each parameter of the process's share (weights and Adam's two moments). On a
GPU the memory is page-locked (pinned), so that copying is queued like a kernel and even the copy is waited for by
nobody but the next kernels and the writer.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Each copy begins at a multiple of so many bytes."""


class StagingArea:
    """Room in host memory for one copy of this process's share of some tensors.

    Args:
        tensors: plain or sharded; the same objects are copied each time.

    Attributes:
        copies: by their names, this process's shares as they were at the last `copy`.
        bytes: size of the room.

    Raises OSError or MemoryError if there is not so much memory.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        shares = {name: _share(tensor) for name, tensor in tensors.items()}
        ends = np.cumsum([-(-share.nbytes // ALIGNMENT) * ALIGNMENT for share in shares.values()], dtype=np.int64)
        self.bytes = int(ends[-1]) if len(ends) else 0
        # Of one mapping each copy is a tensor with a storage of its own, which is what torch.save writes as it is.
        room: Any = np.frombuffer(mmap.mmap(-1, max(self.bytes, 1)), dtype=np.uint8)
        room.fill(0)  # Taken now, so that what a run needs is known before it begins.
        self._is_on_gpu = any(share.is_cuda for share in shares.values())
        self._pinned = _pin(room) if self._is_on_gpu else None
        begins = [0, *ends[:-1].tolist()]
        self.copies = {
            name: torch.from_numpy(room[begin : begin + share.nbytes]).view(share.dtype).view(share.shape)
            for begin, (name, share) in zip(begins, shares.items(), strict=True)
        }

    def copy(self) -> Callable[[], None]:
        """Copy the tensors as they are now; returns what waits until the copies are there.

        On a GPU they are only queued: kernels that come later on its current stream find the tensors copied.
        """
        for name, tensor in self._tensors.items():
            self.copies[name].copy_(_share(tensor), non_blocking=self._is_on_gpu)
        if not self._is_on_gpu:
            return lambda: None
        copied, device = torch.cuda.Event(), torch.cuda.current_device()
        copied.record()

        def wait() -> None:
            # Without it a thread of its own would make a context on GPU 0 in each process, half a gigabyte of it each.
            torch.cuda.set_device(device)
            copied.synchronize()

        return wait

    def close(self) -> None:
        """Unlock the memory; the copies must no longer be in use."""
        if self._pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = None


def _share(tensor: Any) -> Tensor:
    """This process's share of a tensor, in its memory."""
    share: Tensor = tensor.detach()
    return share.to_local() if hasattr(share, "to_local") else share


def _pin(room: Any) -> int | None:
    """Lock memory into its place, so that a GPU can write to it by itself; None where the system does not allow it."""
    address: int = room.ctypes.data
    if not int(torch.cuda.cudart().cudaHostRegister(address, room.nbytes, 1)):
        return address
    # CUDA keeps the error for whoever looks next, which would be a kernel of the first step.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    return None
