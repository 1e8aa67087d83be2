"""Saving in the background: training waits for a copy of its tensors, a thread writes and seals the checkpoint.

The thread does what a save in the foreground does, in the same order, so that a crash at any moment leaves the same
checkpoints; its communication has a group of its own. One save runs at a time: the next one waits for it. All processes
start and finish saves together, and one that fails does so on all of them.

Training waits for the copy and not for the disk. There is one copy of a process's tensors in host memory, made room for
before the first step and used by one save after the other: 12 bytes for each parameter of the process's share (weights
and Adam's two moments). On a GPU the memory is page-locked (pinned), so that copying is queued like a kernel and even
the copy is waited for by nobody but the next kernels and the writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpt2_train.checkpoint.save import Checkpointer
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.distributed.collectives import SHARED, group_for_a_thread, keep_on_all_ranks, on_all_ranks
from gpt2_train.distributed.mesh import local


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete under its name.

    Attributes:
        step: optimizer steps taken.
        folder: where it is.
        seconds: from the beginning of the save to its end.
        waited: how many of them training waited.
    """

    step: int
    folder: Path
    seconds: float
    waited: float


@dataclasses.dataclass
class Saver:
    """Saves the same tensors again and again, in the background while training goes on.

    All processes make one and call it together.

    Args:
        checkpointer: writes the checkpoints; for saves in the background its `group` becomes one for a thread.
        tensors: `model.<name>` and `optimizer.<name>`, plain or sharded.
        on_saved: called for each checkpoint once it is complete, from `save`, `poll`, `start` or `finish`.
        in_background: whether training may go on meanwhile.
        minutes: that an exchange in the background waits for other processes, as long as torch has it if None.
        warn: is told why a save waits although it need not.

    Attributes:
        staging: the room for the copy; None until there is one.
    """

    checkpointer: Checkpointer
    tensors: Mapping[str, Tensor]
    on_saved: Callable[[Saved], object]
    in_background: bool = True
    minutes: float | None = None
    warn: Callable[[str], object] = print
    staging: StagingArea | None = dataclasses.field(default=None, init=False)
    _thread: threading.Thread | None = dataclasses.field(default=None, init=False)
    _outcome: Saved | BaseException | None = dataclasses.field(default=None, init=False)

    def prepare(self) -> StagingArea:
        """Make room for the copy. Raises Gpt2Error, on all processes, if there is no memory for it."""

        def make() -> StagingArea:
            try:
                return StagingArea(self.tensors)
            except (OSError, MemoryError) as error:
                raise Gpt2Error(
                    "no memory on this machine for the copy that checkpoints are written from, 12 bytes for each "
                    "parameter: give --no-async-checkpoint."
                ) from error

        if self.checkpointer.group is None:
            self.checkpointer.group = group_for_a_thread(self.minutes)
        self.staging = keep_on_all_ranks(make)
        return self.staging

    @property
    def has_failed(self) -> bool:
        """Whether the save that was started last has failed; processes may notice this at different moments."""
        return isinstance(self._outcome, BaseException)

    def save(self, *, goes_on: bool, **content: Any) -> None:
        """Save a checkpoint of `content`, the arguments of `Checkpointer.save`; wait for it unless training `goes_on`.

        Raises Gpt2Error if it, or the one before it, can't be written.
        """
        if goes_on and self.in_background and self.staging is None:
            try:
                self.prepare()
            except Gpt2Error as error:  # No memory for it: what was learned so far is saved while training waits.
                self.warn(f"warning: {error}")
        if goes_on and self.staging is not None:
            self.start(**content)
            return
        self.finish()
        begin = time.monotonic()
        folder = self.checkpointer.save(self.tensors, **content)
        seconds = time.monotonic() - begin
        self.on_saved(Saved(content["step"], folder, seconds, seconds))

    def start(self, *, step: int, samples: int, state: Mapping[str, Any]) -> None:
        """Copy the tensors as they are now and begin to save them; arguments as those of `Checkpointer.save`.

        Waits for the save before it. Raises what that one failed with, and as `prepare` does.
        """
        staging = self.staging or self.prepare()
        begin = time.monotonic()
        self.finish()
        wait_for_copies = staging.copy()
        waited = time.monotonic() - begin

        def work() -> None:
            try:
                on_all_ranks(wait_for_copies, self.checkpointer.group)
                folder = self.checkpointer.save(
                    self.tensors, step=step, samples=samples, state=state, copies=staging.copies
                )
                self._outcome = Saved(step, folder, time.monotonic() - begin, waited)
            except BaseException as error:
                self._outcome = error

        # A daemon: a run that is interrupted ends at once, and what is half written has no name yet.
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """Tell `on_saved` if a save has ended well. A failure is left for `finish`, which all processes call."""
        if self._thread is not None and not self._thread.is_alive() and not self.has_failed:
            self.finish()

    def finish(self) -> None:
        """Wait for the save that was started last, if it has not ended. Raises Gpt2Error if it failed."""
        if self._thread is None:
            return
        self._thread.join()
        outcome, self._thread, self._outcome = self._outcome, None, None
        if isinstance(outcome, BaseException):
            outcome.add_note(SHARED)
            raise outcome
        assert outcome is not None
        self.on_saved(outcome)

    def close(self) -> None:
        """Give the memory of the copy back; no save may be running."""
        if self.staging is not None:
            self.staging.close()


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
        shares = {name: local(tensor) for name, tensor in tensors.items()}
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
            self.copies[name].copy_(local(tensor), non_blocking=self._is_on_gpu)
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


def _pin(room: Any) -> int | None:
    """Lock memory into its place, so that a GPU can write to it by itself; None where the system does not allow it."""
    address: int = room.ctypes.data
    if not int(torch.cuda.cudart().cudaHostRegister(address, room.nbytes, 1)):
        return address
    # CUDA keeps the error for whoever looks next, which would be a kernel of the first step.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    return None
