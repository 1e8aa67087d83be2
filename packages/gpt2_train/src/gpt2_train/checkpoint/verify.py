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
    problem_of_file,
    read_info,
)
from gpt2_train.checkpoint.load import check_model
from gpt2_train.checkpoint.optimizer_state import stored_boxes
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CHECKPOINT_FILE, CHECKPOINTS_FOLDER


@dataclasses.dataclass(frozen=True)
class Verified:
    """The findings on one checkpoint.

    Attributes:
        folder: the checkpoint.
        step: optimizer steps that it says it was trained for; None if it can't be read.
        files: how many files it has.
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
    try:
        if not problems:  # What is not as it was written would only be said once more.
            check_model(info)
            stored_boxes(info)
            if info.tokenizer:
                load_tokenizer(folder)
    except Exception as error:  # Any error that a damaged file makes its reader raise.
        problems.append(_why(error))
    return Verified(
        folder,
        info.step,
        len(info.files),
        sum(entry["bytes"] for entry in info.files.values()),
        bool(info.names(of_optimizer=True)),
        problems,
    )


def _why(error: Exception) -> str:
    return error.why if isinstance(error, DamagedCheckpoint) else str(error).rstrip(".")
