"""The folder of a run: who may write to it, and whether it holds the run that is asked for.

It holds `config.toml` (the settings as resolved), `metrics.jsonl`, `checkpoints/`, and a `cache/` that can be deleted.
One process at a time owns it, by a lock that the kernel releases when its holder dies. A run resumes only with the
settings, data and tokenizer that decided its weights; anything else is an error that names the difference.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from command_kit import write_text
from command_kit.atomic import make_folder
from command_kit.settings import as_table, changes, flag_name, to_toml
from gpt2_train.checkpoint.info import CheckpointInfo
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CACHE_FOLDER, CHECKPOINTS_FOLDER, CONFIG_FILE, LOCK_FILE, OF_A_RUN
from gpt2_train.config.settings import GONE, ModelConfig, TrainSettings
from gpt2_train.data.corpus import Corpus
from gpt2_train.distributed.collectives import from_first_rank, on_all_ranks, rank_and_size

LOCK_PATIENCE = 10.0
"""Seconds to wait for a lock whose holder may be just about to end."""

SHARED_STORAGE_PATIENCE = 10.0
"""Seconds that network storage may take to show on one machine what another has written."""

_LOCKED_BY_ANOTHER = (errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def lock_folder(folder: Path, patience: float = LOCK_PATIENCE, say: Callable[[str], object] = print) -> Iterator[None]:
    """Hold a run's folder, created if need be, for this process.

    A run that fails before it has written anything leaves neither lock nor folder behind. Where the file system has
    no locks (Lustre or NFS without them), `say` gets a warning and the run continues without one.

    Raises Gpt2UsageError if another run holds it, if it is not a folder, or if it holds something else than a run.
    """
    is_new = not folder.exists()
    try:
        make_folder(folder)
    except (FileExistsError, NotADirectoryError):
        raise Gpt2UsageError(f"--output {folder} is a file, or lies below one: give a folder.") from None
    unexpected = sorted(entry.name for entry in folder.iterdir() if entry.name != CACHE_FOLDER)
    if unexpected and not any((folder / name).exists() for name in (LOCK_FILE, CONFIG_FILE, CHECKPOINTS_FOLDER)):
        shown = ", ".join(unexpected[:3]) + (", ..." if len(unexpected) > 3 else "")
        raise Gpt2UsageError(f"--output {folder} holds other files ({shown}): give an empty or new folder.")
    with _locked(folder / LOCK_FILE, patience, say):
        try:
            yield
        finally:
            _remove_if_unused(folder, is_new)


@contextlib.contextmanager
def _locked(path: Path, patience: float, say: Callable[[str], object]) -> Iterator[None]:
    deadline = time.monotonic() + patience
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            is_held = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                is_held = error.errno not in _LOCKED_BY_ANOTHER
                if is_held:
                    say(
                        f"warning: the file system of {path.parent} can't lock files ({error.strerror}): make sure "
                        "that no second run writes to this folder."
                    )
            # The one that held it before may have removed the file, on which a lock then means nothing.
            if is_held and path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield
                return
        if time.monotonic() > deadline:
            raise Gpt2UsageError(
                f"another gpt2 train is running in {path.parent}: wait for it, or give another --output."
            )
        time.sleep(0.1)


def discard_run(folder: Path, say: Callable[[str], object] = print) -> None:
    """Remove the run that `folder` holds, if it holds one, and no other files. Raises as `lock_folder` does."""
    if not folder.exists():
        return
    with lock_folder(folder, say=say):
        for entry in (folder / name for name in OF_A_RUN):
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)


def _remove_if_unused(folder: Path, is_new: bool) -> None:
    if any((folder / name).exists() for name in (CONFIG_FILE, CHECKPOINTS_FOLDER)):
        return
    with contextlib.suppress(OSError):
        (folder / LOCK_FILE).unlink(missing_ok=True)
        if is_new:
            folder.rmdir()


def check_shared(folder: Path) -> None:
    """Make sure that all processes see the same folder; they call this together, the first one holding its lock.

    Raises Gpt2UsageError if one of them, on another machine, sees another folder of this name, or none.
    """
    if rank_and_size()[1] == 1:
        return
    lock = folder / LOCK_FILE

    def write() -> str:
        token = secrets.token_hex(8)
        lock.write_text(token)
        return token

    token = from_first_rank(write)

    def read() -> None:
        deadline = time.monotonic() + SHARED_STORAGE_PATIENCE
        while not _holds(lock, token):
            if time.monotonic() > deadline:
                raise Gpt2UsageError(
                    f"--output {folder} is not the same folder on all machines (process {rank_and_size()[0]} on "
                    f"{os.uname().nodename} doesn't see what the first one wrote): give a folder on storage that all "
                    "of them share."
                )
            time.sleep(0.1)

    on_all_ranks(read)


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except OSError:
        return False


def data_identity(corpora: Sequence[Corpus], weights: Sequence[float] | None) -> list[dict[str, Any]]:
    """The identity of the training files, as a checkpoint records it; their paths are not part of it."""
    return [
        {**corpus.identity(), **({"weight": weights[number]} if weights else {})}
        for number, corpus in enumerate(corpora)
    ]


def identity_settings(settings: TrainSettings, precision: str) -> dict[str, Any]:
    """The settings that decide the weights, the data aside, which is compared by what it holds."""
    table = settings.identity() | {"precision": precision}
    table.pop("data", None)
    return table


def check_same_run(
    info: CheckpointInfo,
    folder: Path,
    config: ModelConfig,
    settings: dict[str, Any],
    data: list[dict[str, Any]],
    tokenizer: dict[str, Any],
    prefixes: Sequence[str],
) -> None:
    """Raise Gpt2UsageError, naming what differs, if the run that `info` describes is not the one asked for."""
    # A run whose tokenizer nothing named records none: it may be named later.
    if info.tokenizer not in ({}, tokenizer):
        raise Gpt2UsageError(
            f"{folder} holds a run with another tokenizer: give the --data and --tokenizer that it began with, or "
            "another --output."
        )
    check_same_settings(info, folder, config, settings)
    if len(info.data) != len(data):
        raise Gpt2UsageError(
            f"{folder} holds a run on {len(info.data)} token files, now there are {len(data)}: "
            "give the same --data to resume it, or another --output."
        )
    for old, new, prefix in zip(info.data, data, prefixes, strict=True):
        if found := changes(old, new):
            raise Gpt2UsageError(
                f"the data {prefix} has changed since the run in {folder} began ({found}): "
                "a run resumes with the data that it began with; give another --output to train on the new data."
            )


def check_same_settings(info: CheckpointInfo, folder: Path, config: ModelConfig, settings: dict[str, Any]) -> None:
    """Raise Gpt2UsageError, naming what differs, if the run that `info` describes has another model or settings."""
    for name in info.settings.keys() & GONE.keys():
        if info.settings[name] != GONE[name].unused:
            raise Gpt2UsageError(
                f"{folder} holds a run with {flag_name(name)}, which is gone ({GONE[name].instead}): go on from its "
                "weights with --init-from in another --output."
            )
    old = {name: value for name, value in info.settings.items() if name not in GONE}
    if found := changes(info.config.as_table() | old, config.as_table() | settings):
        raise Gpt2UsageError(
            f"{folder} holds a run with other settings ({found}): "
            "give the same settings to resume it, or another --output."
        )


def write_config(folder: Path, settings: TrainSettings) -> None:
    """Write `config.toml`; `gpt2 train --config` on it is the same run."""
    write_text(folder / CONFIG_FILE, to_toml({"train": as_table(settings)}))
