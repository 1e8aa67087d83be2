"""Writing checkpoints, each process its own share, and loading them in all processes of a run together.

A checkpoint is complete under its final name or not there at all.

The order is what makes it safe: tensors under a temporary name, flushed; sizes and CRCs of all files; `checkpoint.json`
with them, flushed; the rename; `latest`; only then older ones are removed. A kill between any two of these leaves the
checkpoints before it as they were. In the foreground tensors are written as they are, which needs no more memory.

In the background training waits for a copy of its tensors, and a thread does the same in the same order; its
communication has a group of its own. One save runs at a time: the next one waits for it. All processes
start and finish saves together, and one that fails does so on all of them.

Training waits for the copy and not for the disk. There is one copy of a process's tensors in host memory, made room for
before the first step and used by one save after the other: 12 bytes for each parameter of the process's share (weights
and Adam's two moments). On a GPU the memory is page-locked (pinned), so that copying is queued like a kernel and even
the copy is waited for by nobody but the next kernels and the writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import mmap
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from command_kit import write_json, write_text
from command_kit.atomic import remove_folder, remove_leftovers, sync_folder, temporary_name
from gpt2_train.checkpoint.info import (
    FORMAT,
    CheckpointInfo,
    describe_tokenizer,
    list_checkpoints,
    read_info,
    step_folder,
    table_crc,
)
from gpt2_train.checkpoint.load import TensorReader, by_part, check_files, check_shapes, innermost, read_tensors
from gpt2_train.checkpoint.writer import COPY_AHEAD, CopyPlanner, Files, TensorWriter
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.config.files import CHECKPOINT_FILE, LATEST_FILE, TOKENIZER_FOLDER
from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.collectives import (
    SHARED,
    check_is_shared,
    from_first_rank,
    group_for_a_thread,
    on_all_ranks,
    rank_and_size,
)
from gpt2_train.distributed.mesh import local
from indexed_tokens import Tokenizer

# torch's notice to developers that a single process saves by itself. Hidden for good: hiding it while a save runs would
# change the filters of all threads.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclasses.dataclass
class Checkpointer:
    """Saves the checkpoints of one run; all processes make one and call it together.

    Args:
        checkpoints: the folder of the run's checkpoints; it is created when the first one is saved.
        config: the model's shape.
        tokenizer: copied into each checkpoint, if given.
        settings: the settings that decided the weights, as plain values that JSON can hold.
        data: what the training files are, one entry per file.
        keep: how many of the newest checkpoints stay; all of them if it is 0.
        group: all processes, in a group that is not used by anything else while a save runs; the default one if None.
    """

    checkpoints: Path
    _: dataclasses.KW_ONLY
    config: ModelConfig
    tokenizer: Tokenizer | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: Sequence[dict[str, Any]] = ()
    keep: int = 0
    group: dist.ProcessGroup | None = None
    _removed_leftovers: bool = dataclasses.field(default=False, init=False)

    def save(
        self,
        tensors: Mapping[str, Tensor],
        *,
        step: int,
        samples: int,
        state: Mapping[str, Any] | None = None,
        copies: Mapping[str, Tensor] | None = None,
    ) -> Path:
        """Write `step-...` and make it the latest; returns its folder.

        Args:
            tensors: `model.<name>` and `optimizer.<name>`, plain (equal on all processes) or sharded.
            step: optimizer steps taken.
            samples: training sequences seen.
            state: plain values that the run resumes with.
            copies: of `tensors`, this process's shares in host memory, which are written instead.

        Raises Gpt2Error if writing fails; earlier checkpoints are then as they were.
        """
        folder = step_folder(self.checkpoints, step)
        unfinished = temporary_name(folder)
        parts = by_part(tensors)
        try:
            on_all_ranks(lambda: self._begin(unfinished, list(parts)), self.group)
            check_is_shared(unfinished, self.group)
            files = self._write(unfinished, parts, copies)
            table = {
                "format": FORMAT,
                "step": step,
                "samples": samples,
                "tokens": samples * self.config.sequence_length,
                "model": self.config.as_table(),
                "tokenizer": describe_tokenizer(self.tokenizer),
                "settings": dict(self.settings),
                "data": list(self.data),
                "state": dict(state or {}),
                "files": files,
            }
            table["crc32"] = table_crc(table)
            on_all_ranks(lambda: self._publish(unfinished, folder, list(parts), table), self.group)
        except (Exception, dcp.CheckpointException) as error:
            if rank_and_size()[0] == 0:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise Gpt2Error(
                f"can't save the checkpoint {folder}: {_cause(error)}; earlier checkpoints are untouched, and the same "
                "command resumes from the last one."
            ) from error
        return folder

    def _begin(self, unfinished: Path, parts: list[str]) -> None:
        """Make the folder under its temporary name; once per run, remove what killed ones left behind."""
        if rank_and_size()[0] != 0:
            return
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        if not self._removed_leftovers:
            remove_leftovers(self.checkpoints)
            self._removed_leftovers = True
        shutil.rmtree(unfinished, ignore_errors=True)
        for part in parts:
            (unfinished / part).mkdir(parents=True)

    def _write(
        self, unfinished: Path, parts: Mapping[str, dict[str, Tensor]], copies: Mapping[str, Tensor] | None
    ) -> Files:
        """Write this process's share of the tensors, flushed to the disk; sizes and CRCs of the files of all."""
        own: Files = {}
        for part, tensors in parts.items():
            writer = TensorWriter(unfinished / part, copy_ahead=COPY_AHEAD if copies is None else 0)
            planner = None if copies is None else CopyPlanner(copies)
            dcp.save(
                tensors,
                storage_writer=writer,
                planner=planner,
                process_group=self.group,
                no_dist=rank_and_size()[1] == 1,
            )
            own |= {f"{part}/{name}": entry for name, entry in writer.counted.written.items()}
        return {name: entry for files in on_all_ranks(lambda: own, self.group) for name, entry in files.items()}

    def _publish(self, unfinished: Path, folder: Path, parts: list[str], table: dict[str, Any]) -> None:
        """Rename the checkpoint to its final name, make it the latest, and remove old ones."""
        if rank_and_size()[0] != 0:
            return
        if self.tokenizer is not None:
            self.tokenizer.save(unfinished / TOKENIZER_FOLDER)
        for part in parts:
            sync_folder(unfinished / part)
        write_json(unfinished / CHECKPOINT_FILE, table)
        sync_folder(unfinished)
        if folder.exists():
            remove_folder(folder, CHECKPOINT_FILE)
        unfinished.replace(folder)
        sync_folder(self.checkpoints)
        write_text(self.checkpoints / LATEST_FILE, folder.name + "\n")
        # The latest one always stays.
        for path in list_checkpoints(self.checkpoints)[: -self.keep if self.keep else 0]:
            if path != folder:
                remove_folder(path, CHECKPOINT_FILE)


def load_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> CheckpointInfo:
    """Fill `tensors` in place from the checkpoint that `path` means, and return what it says.

    Tensors may be plain or sharded in any way (DTensor); a name or a global shape that the checkpoint does not have
    is an error, and so is a damaged file: no tensor keeps the value that it had before. All processes call this
    together; the first one decides which checkpoint it is. Raises Gpt2UsageError, on all of them.
    """
    rank, size = rank_and_size()
    info = from_first_rank(lambda: read_info(path))
    check_is_shared(info.folder)
    parts = by_part(tensors)
    on_all_ranks(lambda: check_files(info, parts, rank=rank, size=size))
    on_all_ranks(lambda: check_shapes(info, parts))
    for part, group in parts.items():
        read_tensors(info, TensorReader(info.folder, part), group, in_one_process=size == 1)
    return info


def _cause(error: BaseException) -> str:
    """The cause of a failed save; a full disk by that name."""
    inner = [error, *(failure for failure, _ in getattr(error, "failures", {}).values())]
    if any(isinstance(part, OSError) and part.errno in (errno.ENOSPC, errno.EDQUOT) for part in inner):
        return "the disk is full"
    # Where torch's writer meets a full disk inside its own file format, only a text is left of the cause.
    if any(sign in str(part) for part in inner for sign in ("No space left", "unexpected pos", "file write failed")):
        return "the disk is full"
    return innermost(error).removesuffix(".")


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
        on_saved: called for each checkpoint once it is complete, from `save`, `poll` or `finish`.
        in_background: whether training may go on meanwhile.
        minutes: that an exchange in the background waits for other processes, as long as torch has it if None.
        warn: called with the reason why a save waits although it need not.

    Attributes:
        staging: the room for the copy; None until there is one.
        has_failed: whether the save that was started last has failed; processes may notice this at different moments.
    """

    checkpointer: Checkpointer
    tensors: Mapping[str, Tensor]
    on_saved: Callable[[Saved], object]
    in_background: bool = True
    minutes: float | None = None
    warn: Callable[[str], object] = print
    staging: StagingArea | None = dataclasses.field(default=None, init=False)
    has_failed: bool = dataclasses.field(default=False, init=False)
    _thread: threading.Thread | None = dataclasses.field(default=None, init=False)
    _outcome: Saved | BaseException | None = dataclasses.field(default=None, init=False)

    def prepare(self) -> None:
        """Make room for the copy. Raises Gpt2Error, on all processes, if there is no memory for it."""

        made: list[StagingArea] = []

        def make() -> bool:
            try:
                made.append(StagingArea(self.tensors))
            except (OSError, MemoryError) as error:
                raise Gpt2Error(
                    "no memory on this machine for the copy that checkpoints are written from, 12 bytes for each "
                    "parameter: give --no-async-checkpoint."
                ) from error
            return made[0].is_locked

        if self.checkpointer.group is None:
            self.checkpointer.group = group_for_a_thread(self.minutes)
        is_locked = all(on_all_ranks(make))
        self.staging = made[0]
        if not is_locked:
            self.warn(
                "warning: the system locks no memory (`ulimit -l`) for the copy that checkpoints are written from: "
                "training waits while it is made."
            )

    def save(self, *, goes_on: bool, step: int, samples: int, state: Mapping[str, Any]) -> None:
        """Save a checkpoint; arguments as in `Checkpointer.save`. Waits for it unless training `goes_on`.

        Then only for a copy of the tensors as they are now, and for the save before it. Raises Gpt2Error if it, or the
        one before it, can't be written.
        """
        if goes_on and self.in_background and self.staging is None:
            try:
                self.prepare()
            except Gpt2Error as error:  # No memory for it: what was learned so far is saved while training waits.
                self.warn(f"warning: {error}")
        save = functools.partial(self.checkpointer.save, self.tensors, step=step, samples=samples, state=state)
        staging, begin = self.staging, time.monotonic()
        self.finish()
        if not goes_on or staging is None:
            begin = time.monotonic()
            folder = save()
            seconds = time.monotonic() - begin
            self.on_saved(Saved(step, folder, seconds, seconds))
            return
        wait_for_copies = staging.copy()
        waited = time.monotonic() - begin

        def work() -> None:
            try:
                on_all_ranks(wait_for_copies, self.checkpointer.group)
                folder = save(copies=staging.copies)
                self._outcome = Saved(step, folder, time.monotonic() - begin, waited)
            except BaseException as error:
                self._outcome, self.has_failed = error, True

        # A daemon: a run that is interrupted ends at once, and a half-written checkpoint has no name yet.
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
        outcome, self._thread, self._outcome, self.has_failed = self._outcome, None, None, False
        if isinstance(outcome, BaseException):
            outcome.add_note(SHARED)
            raise outcome
        assert outcome is not None
        self.on_saved(outcome)

    def close(self) -> None:
        """Release the memory of the copy; no save may be running."""
        if self.staging is not None:
            self.staging.close()


ALIGNMENT = 64
"""Bytes of which each copy begins at a multiple."""


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

    @property
    def is_locked(self) -> bool:
        """Whether a GPU can write to it by itself; True without a GPU, which does not have to."""
        return self._pinned is not None or not self._is_on_gpu

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
