"""Writing checkpoints: a model's folder, and each process's own share of the optimizer's state beside it.

A checkpoint is complete under its final name or not there at all.

The order is what makes it safe: all files under a temporary name, flushed; `checkpoint.json` with their sizes and CRCs,
flushed; the rename; `latest`; only then older ones are removed. A kill between any two of these leaves the checkpoints
before it as they were.

Every process writes its boxes of the optimizer's state, at the same time; what several have alike one of them writes.
Then the first one writes the model, as transformers reads it: it assembles one parameter at a time from what the others
send, so that nobody holds a second model. Rows of padding are not stored: they have no gradient, and nothing depends on
them.

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
import math
import mmap
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from command_kit import write_json, write_text
from command_kit.atomic import make_folder, remove_folder, remove_leftovers, sync_folder, temporary_name
from gpt2_train.checkpoint.hugging_face import write_config
from gpt2_train.checkpoint.info import (
    FORMAT,
    OPTIMIZER,
    describe_tokenizer,
    list_checkpoints,
    step_folder,
    table_crc,
)
from gpt2_train.checkpoint.load import shapes_of
from gpt2_train.checkpoint.names import PREFIX, gpt2_name, gpt2_shape, to_gpt2, without_padding
from gpt2_train.checkpoint.optimizer_state import box_name, box_of
from gpt2_train.checkpoint.tensor_files import SUFFIX, Box, Files, write_tensors
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.config.files import CHECKPOINT_FILE, LATEST_FILE
from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.collectives import (
    SHARED,
    group_for_a_thread,
    on_all_ranks,
    rank_and_size,
)
from gpt2_train.distributed.mesh import local
from indexed_tokens import Tokenizer
from indexed_tokens.checksums import checksum_of_file

FILE_BYTES = 5 * 10**9
"""The most bytes of tensors in one file of a model, as transformers has it; more are several files."""


def write_model(
    folder: Path,
    config: ModelConfig,
    tensors: Iterable[Tensor],
    dtype: torch.dtype = torch.float32,
    file_bytes: int = FILE_BYTES,
) -> Files:
    """Write `model.safetensors`, or several files of at most `file_bytes`, and their index; their sizes and CRCs.

    `tensors` are the parameters in the model's order, as `gpt2.py` has them, on the CPU, without rows of padding, of
    type `dtype`. One of them is in memory at a time. Raises OSError.
    """
    groups: list[dict[str, tuple[int, ...]]] = [{}]
    room = file_bytes
    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in shapes_of(config).items()}
    for name, shape in shapes_of(config).items():
        if groups[-1] and sizes[name] > room:
            groups.append({})
            room = file_bytes
        groups[-1][PREFIX + gpt2_name(name)] = gpt2_shape(name, shape)
        room -= sizes[name]
    stored = (to_gpt2(name, tensor, config.heads) for name, tensor in zip(shapes_of(config), tensors, strict=False))
    files: Files = {}
    for number, shapes in enumerate(groups, 1):
        part = f"-{number:05}-of-{len(groups):05}" if len(groups) > 1 else ""
        files |= write_tensors(folder / f"model{part}{SUFFIX}", shapes, stored, dtype)
    # Also of one file: vLLM takes every .safetensors of a folder for the model's that no index leaves out.
    where = {name: file for file, group in zip(files, groups, strict=True) for name in group}
    table = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(where.items()))}
    write_json(folder / f"model{SUFFIX}.index.json", table)
    return files


def seal(
    folder: Path,
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    files: Files,
    dtype: torch.dtype = torch.float32,
    **record: Any,
) -> None:
    """Write what a folder with tensors lacks to be a checkpoint: the model's description, and `checkpoint.json` last.

    `record` is what the latter says besides; `files` are the sizes and CRCs of the files with tensors.
    """
    write_config(folder, config, tokenizer, str(dtype).removeprefix("torch."))
    for path in sorted(folder.iterdir()):
        if path.name not in files:
            files[path.name] = checksum_of_file(path)._asdict()
    table = {
        "format": FORMAT,
        "step": 0,
        "samples": 0,
        "tokenizer": describe_tokenizer(tokenizer),
        "settings": {},
        "data": [],
        "state": {},
        **record,
        "files": files,
    }
    table["tokens"] = table["samples"] * config.sequence_length
    table["crc32"] = table_crc(table)
    write_json(folder / CHECKPOINT_FILE, table)
    sync_folder(folder)


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model under the names that savers know, `model.<name>`; tied ones once."""
    return {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}


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
        record = {
            "step": step,
            "samples": samples,
            "settings": dict(self.settings),
            "data": list(self.data),
            "state": dict(state or {}),
        }
        try:
            on_all_ranks(lambda: self._begin(unfinished), self.group)
            files = self._write(unfinished, _Shares(tensors, copies, self.config, self.group))
            on_all_ranks(lambda: self._publish(unfinished, folder, files, record), self.group)
        except Exception as error:
            if rank_and_size()[0] == 0:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise Gpt2Error(
                f"can't save the checkpoint {folder}: {_cause(error)}; earlier checkpoints are untouched, and the same "
                "command resumes from the last one."
            ) from error
        return folder

    def _begin(self, unfinished: Path) -> None:
        """Make the folder under its temporary name; once per run, remove what killed ones left behind."""
        if rank_and_size()[0] != 0:
            return
        make_folder(self.checkpoints)
        if not self._removed_leftovers:
            remove_leftovers(self.checkpoints)
            self._removed_leftovers = True
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()

    def _write(self, unfinished: Path, shares: _Shares) -> Files:
        """Write this process's share of the tensors, flushed to the disk; sizes and CRCs of the files of all."""
        rank, size = rank_and_size()

        def write_optimizer() -> Files:
            return write_optimizer_boxes(unfinished, shares.of_optimizer(rank), rank, size)

        def write_weights() -> Files:
            weights = shares.parameters()
            try:
                return write_model(unfinished, self.config, weights) if rank == 0 else {}
            finally:
                # Where writing has failed the others still send theirs.
                for _ in weights:
                    pass

        work = [write_optimizer, write_weights] if shares.has_optimizer else [write_weights]
        return {name: entry for part in work for own in on_all_ranks(part, self.group) for name, entry in own.items()}

    def _publish(self, unfinished: Path, folder: Path, files: Files, record: dict[str, Any]) -> None:
        """Rename the checkpoint to its final name, make it the latest, and remove old ones."""
        if rank_and_size()[0] != 0:
            return
        seal(unfinished, self.config, self.tokenizer, files, **record)
        if folder.exists():
            remove_folder(folder, CHECKPOINT_FILE)
        unfinished.replace(folder)
        sync_folder(self.checkpoints)
        write_text(self.checkpoints / LATEST_FILE, folder.name + "\n")
        # The latest one always stays.
        for path in list_checkpoints(self.checkpoints)[: -self.keep if self.keep else 0]:
            if path != folder:
                remove_folder(path, CHECKPOINT_FILE)


def write_optimizer_boxes(folder: Path, boxes: Mapping[str, Tensor], rank: int = 0, size: int = 1) -> Files:
    """Write the boxes of an optimizer's tensors that one of several processes has; size and CRC of the file."""
    shapes = {name: tuple(tensor.shape) for name, tensor in boxes.items()}
    return write_tensors(folder / f"{OPTIMIZER}{rank:05}-of-{size:05}{SUFFIX}", shapes, map(_on_host, boxes.values()))


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().float().contiguous()


class _Shares:
    """The tensors of a run as its processes have them, each its boxes, and who writes which; all make one together.

    Args:
        tensors: `model.<name>` and `optimizer.<name>`, plain (equal on all processes) or sharded.
        copies: this process's shares of them in host memory, to be used instead.
        config: the model's shape.
        group: of all processes.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        copies: Mapping[str, Tensor] | None,
        config: ModelConfig,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.tensors, self.copies, self.config, self.group = tensors, copies, config, group
        self.has_optimizer = any(name.startswith("optimizer.") for name in tensors)
        held = on_all_ranks(lambda: {name: self._box(name) for name in shapes_of(config)}, group)
        self.holders: dict[str, dict[Box, list[int]]] = {}
        """By parameter, then by box: the processes that have it. Its state in the optimizer is divided alike."""
        for rank, boxes in enumerate(held):
            for name, (offsets, sizes) in boxes.items():
                if 0 not in sizes:
                    self.holders.setdefault(name, {}).setdefault((offsets, sizes), []).append(rank)

    def _box(self, name: str) -> Box:
        """This process's box of a parameter, without rows of padding."""
        offsets, sizes = box_of(self.tensors[f"model.{name}"])
        end, *_ = without_padding(name, (offsets[0] + sizes[0],), self.config)
        return offsets, (max(0, end - offsets[0]), *sizes[1:])

    def _share(self, name: str, sizes: tuple[int, ...]) -> Tensor:
        share = self.copies[name] if self.copies is not None else local(self.tensors[name])
        return share[: sizes[0]]

    def of_optimizer(self, rank: int) -> dict[str, Tensor]:
        """The boxes of the optimizer's tensors that this process is to write, by their names in the file."""
        found = {}
        for number, name in enumerate(sorted(name for name in self.tensors if name.startswith("optimizer."))):
            parameter = name.removeprefix("optimizer.").rpartition(".")[0]
            for (offsets, sizes), ranks in self.holders[parameter].items():
                if ranks[number % len(ranks)] == rank:  # Who have the same take turns.
                    found[box_name(name.removeprefix("optimizer."), offsets)] = self._share(name, sizes)
        return found

    def parameters(self) -> Iterator[Tensor]:
        """The whole parameters one after another, on the first process; on the others, which send theirs, nothing."""
        rank, _ = rank_and_size()
        for name, shape in shapes_of(self.config).items():
            boxes = self.holders[name]
            own = next((sizes for (_, sizes), ranks in boxes.items() if rank == ranks[0]), None)
            share = _on_host(self._share(f"model.{name}", own)) if own is not None else torch.empty(0)
            if rank != 0:
                if own is not None:
                    dist.send(share, 0, group=self.group)
                continue
            if own == shape:
                yield share
                continue
            whole = torch.empty(shape)
            for (offsets, sizes), ranks in boxes.items():
                part = share
                if ranks[0] != 0:
                    part = torch.empty(sizes)
                    dist.recv(part, ranks[0], group=self.group)
                whole[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))] = part
            yield whole


def _cause(error: BaseException) -> str:
    """The cause of a failed save; a full disk by that name."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    text = str(error).strip()
    return (text.splitlines()[-1] if text else type(error).__name__).removesuffix(".")


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
