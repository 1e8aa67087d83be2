"""Checking whole checkpoints: every file is read and compared with what was recorded."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from gpt2_train.checkpoint.info import (
    DamagedCheckpoint,
    find_checkpoint,
    list_checkpoints,
    load_tokenizer,
    read_info,
)
from gpt2_train.checkpoint.load import TensorReader, check_model, part_of, problem_of_file
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CHECKPOINT_FILE, CHECKPOINTS_FOLDER


@dataclasses.dataclass(frozen=True)
class Verified:
    """The findings on one checkpoint.

    Attributes:
        folder: the checkpoint.
        step: optimizer steps that it says it was trained for; None if it can't be read.
        files: how many files with tensors it has.
        bytes: their size.
        has_optimizer: whether a run can resume from it.
        problems: a sentence for each; empty if there is none.
    """

    folder: Path
    step: int | None
    files: int
    bytes: int
    has_optimizer: bool
    problems: list[str]


def checkpoints_at(path: str | Path) -> list[Path]:
    """The checkpoint that `path` is, or all of a run or its `checkpoints` folder, oldest first.

    Raises Gpt2UsageError if there is none.
    """
    path = Path(path)
    if (path / CHECKPOINT_FILE).is_file():
        return [path]
    return list_checkpoints(path) or list_checkpoints(path / CHECKPOINTS_FOLDER) or [find_checkpoint(path)]


def bytes_to_read(folder: Path) -> int:
    """Bytes that `verify_checkpoint` will read of a checkpoint, about."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a run at work removes old checkpoints
            size += path.stat().st_size if path.is_file() else 0
    return size


def verify_checkpoint(folder: Path, count: Callable[[int], object]) -> Verified:
    """Read every file of a checkpoint and compare it with what was recorded; `count` gets the bytes read."""
    try:
        info = read_info(folder)
    except Gpt2UsageError as error:
        return Verified(folder, None, 0, 0, False, [_why(error)])
    problems = [problem for name in sorted(info.files) if (problem := problem_of_file(info, name, count))]

    def check_indices() -> None:
        check_model(info)
        for part in sorted({part_of(name) for name in info.files} - {"model"}):
            TensorReader(info.folder, part).read_metadata()

    # An index that was not read back would only say so once more.
    for is_due, check in ((not problems, check_indices), (info.tokenizer, lambda: load_tokenizer(folder))):
        try:
            if is_due:
                check()
        except Exception as error:  # Any error that a damaged file makes its reader raise.
            problems.append(_why(error))
    return Verified(
        folder,
        info.step,
        len(info.files),
        sum(entry["bytes"] for entry in info.files.values()),
        any(name.startswith("optimizer/") for name in info.files),
        problems,
    )


def _why(error: Exception) -> str:
    return error.why if isinstance(error, DamagedCheckpoint) else str(error).rstrip(".")
