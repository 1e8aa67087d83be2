"""Writing checkpoints, each process its own share, and loading them in all processes of a run together.

A checkpoint is complete under its final name or not there at all.

The order is what makes it safe: tensors under a temporary name, flushed; sizes and CRCs of all files; `checkpoint.json`
with them, flushed; the rename; `latest`; only then older ones are removed. A kill between any two of these leaves the
checkpoints before it as they were. `async_save` does all of this in a thread, from a copy of the tensors; by itself it
writes the tensors as they are, and needs no memory to speak of.
"""

from __future__ import annotations

import dataclasses
import errno
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from command_kit import write_json, write_text
from command_kit.atomic import remove_leftovers, sync_folder, temporary_name
from gpt2_train.checkpoint.info import (
    FORMAT,
    CheckpointInfo,
    describe_tokenizer,
    latest_checkpoint,
    list_checkpoints,
    read_info,
    step_folder,
    table_crc,
)
from gpt2_train.checkpoint.load import by_part, check_files, check_shapes, innermost, read_tensors
from gpt2_train.checkpoint.storage import COPY_AHEAD, CopyPlanner, Files, TensorReader, TensorWriter
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.config.files import CHECKPOINT_FILE, LATEST_FILE, TOKENIZER_FOLDER
from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.collectives import check_is_shared, from_first_rank, on_all_ranks, rank_and_size
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
        """Give the checkpoint its name, make it the latest, and remove old ones."""
        if rank_and_size()[0] != 0:
            return
        if self.tokenizer is not None:
            self.tokenizer.save(unfinished / TOKENIZER_FOLDER)
        for part in parts:
            sync_folder(unfinished / part)
        write_json(unfinished / CHECKPOINT_FILE, table)
        sync_folder(unfinished)
        if folder.exists():
            set_aside_and_remove(folder)
        unfinished.replace(folder)
        sync_folder(self.checkpoints)
        write_text(self.checkpoints / LATEST_FILE, folder.name + "\n")
        remove_old(self.checkpoints, self.keep)


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
    """What went wrong; a full disk by that name."""
    inner = [error, *(failure for failure, _ in getattr(error, "failures", {}).values())]
    if any(isinstance(part, OSError) and part.errno in (errno.ENOSPC, errno.EDQUOT) for part in inner):
        return "the disk is full"
    # Where torch's writer meets a full disk inside its own file format, only a text is left of the cause.
    if any(sign in str(part) for part in inner for sign in ("No space left", "unexpected pos", "file write failed")):
        return "the disk is full"
    return innermost(error).removesuffix(".")


def set_aside_and_remove(folder: Path) -> None:
    """Remove a checkpoint; renamed first, so that a crash in between leaves no half of one under its name."""
    doomed = temporary_name(folder.with_name(f"{folder.name}.removed"))
    folder.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_old(checkpoints: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints (none if it is 0); the latest one always stays."""
    known = list_checkpoints(checkpoints)
    latest = latest_checkpoint(checkpoints)
    for path in known[: -keep if keep else 0]:
        if path != latest:
            set_aside_and_remove(path)
