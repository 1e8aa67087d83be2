"""Where checkpoints are: the folders of their steps, and the one that a path given by the user means.

Only a folder with `checkpoint.json` is a checkpoint: that file is there only once all others are complete.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from gpt2_train.errors import Gpt2UsageError

FOLDER = "checkpoints"
INFO_FILE = "checkpoint.json"
LATEST_FILE = "latest"

_STEP_FOLDER = re.compile(r"step-(\d{7,})")


def step_folder(checkpoints: Path, step: int) -> Path:
    """`checkpoints/step-0000100` for step 100."""
    return checkpoints / f"step-{step:07d}"


def list_checkpoints(checkpoints: str | Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest step first."""
    found = {}
    for path in Path(checkpoints).glob("step-*"):
        match = _STEP_FOLDER.fullmatch(path.name)
        if match and (path / INFO_FILE).is_file():
            found[int(match[1])] = path
    return [found[step] for step in sorted(found)]


def latest_checkpoint(checkpoints: str | Path) -> Path | None:
    """The checkpoint that `latest` names, or the newest one if that is gone; None if there is none."""
    known = list_checkpoints(checkpoints)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        named = Path(checkpoints) / (Path(checkpoints) / LATEST_FILE).read_text(encoding="utf-8").strip()
        if named in known:
            return named
    return known[-1] if known else None


def holds_checkpoint(path: Path) -> bool:
    """Whether `path` is a checkpoint, or a folder in which `find_checkpoint` finds one."""
    return (path / INFO_FILE).is_file() or any(latest_checkpoint(folder) for folder in (path, path / FOLDER))


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint that `path` means: a run's folder, its `checkpoints` folder, or one `step-...` folder.

    Raises Gpt2UsageError if there is none, or `path` does not exist.
    """
    path = Path(path)
    if not path.exists():
        newer = latest_checkpoint(path.parent) if _STEP_FOLDER.fullmatch(path.name) else None
        if newer is not None:
            raise Gpt2UsageError(
                f"no checkpoint {path}, but {newer.name} is there: a run at work removes old ones "
                "(--keep-checkpoints); run the same command again, or give that one."
            )
        raise Gpt2UsageError(f"no checkpoint {path}: give the --output folder of a `gpt2 train`, or a step in it.")
    if (path / INFO_FILE).is_file():
        return path
    for folder in (path, path / FOLDER):
        found = latest_checkpoint(folder)
        if found is not None:
            return found
    raise Gpt2UsageError(
        f"{path} holds no checkpoint (no {INFO_FILE} in it, nor in {FOLDER}/step-...): "
        "give the --output folder of a `gpt2 train` that has saved one."
    )


class DamagedCheckpoint(Gpt2UsageError):
    """A checkpoint that can't be used as it is; `why` says what is wrong with it, in a few words."""

    why = ""


def damaged(folder: Path, why: str) -> DamagedCheckpoint:
    """The error for a checkpoint that can't be used, with what to do about it."""
    error = DamagedCheckpoint(
        f"the checkpoint {folder} is damaged ({why}): give an older one, or delete this folder to resume from the "
        "checkpoint before it."
    )
    error.why = why
    return error
