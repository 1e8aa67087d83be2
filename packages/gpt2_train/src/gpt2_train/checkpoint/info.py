"""The places of checkpoints, what `checkpoint.json` says of one, and whether its files are what was written.

Only a folder with `checkpoint.json` is a checkpoint: that file is there only once all others are complete. The model's
shape is said by `config.json`, the tokenizer by its own files. Needs no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from command_kit import parse_json
from gpt2_train.checkpoint.hugging_face import CONFIG, read_config, read_tokenizer
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CHECKPOINT_FILE, CHECKPOINTS_FOLDER, LATEST_FILE
from gpt2_train.config.settings import ModelConfig
from indexed_tokens import IndexedTokensError, Tokenizer
from indexed_tokens.checksums import checksum_of_file

FORMAT, OLD_FORMAT = 3, 2
"""Versions of a checkpoint's layout: the one that is written and used, and the one that `gpt2 convert` turns into it.
"""

OPTIMIZER = "optimizer-"
"""The beginning of the names of files with the optimizer's state."""


Count = Annotated[int, msgspec.Meta(ge=0)]


class StoredFile(TypedDict):
    """Size and CRC-32 of a file."""

    bytes: Count
    crc32: Count


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """The content of `checkpoint.json`.

    Attributes:
        step: optimizer steps taken.
        samples: training sequences seen.
        tokens: training tokens seen.
        config: the model's shape.
        tokenizer: `name`, `vocabulary_size` and `fingerprint` of the tokenizer; empty if it was not recorded.
        settings: the settings that decided the weights.
        data: what the training files were, one entry per file.
        state: plain values that a run resumes with (loss scale, steps skipped).
        folder: the checkpoint's folder.
        files: size (`bytes`) and CRC-32 (`crc32`) of each other file in the folder, by its name.
    """

    step: Count
    samples: Count
    tokens: Count
    config: ModelConfig
    tokenizer: dict[str, Any]
    settings: dict[str, Any]
    data: list[dict[str, Any]]
    state: dict[str, Any]
    folder: Path
    files: dict[str, StoredFile]

    def names(self, *, of_optimizer: bool) -> list[str]:
        """The files with the optimizer's state, or all others, which are the model."""
        return sorted(name for name in self.files if name.startswith(OPTIMIZER) == of_optimizer)


def read_info(path: str | Path) -> CheckpointInfo:
    """The record of the checkpoint that `path` means, without its tensors.

    Raises Gpt2UsageError if there is none, or its `checkpoint.json` is damaged or of a newer version.
    """
    folder = find_checkpoint(path)
    table = read_description(folder)
    if table["format"] > FORMAT:
        raise Gpt2UsageError(f"the checkpoint {folder} was written by a newer version: update webtext-gpt2-train.")
    if table["format"] == OLD_FORMAT:
        raise Gpt2UsageError(
            f"the checkpoint {folder} has the format {OLD_FORMAT} of earlier versions: `gpt2 convert {folder} NEW` "
            "turns it into today's, once; then give NEW."
        )
    if table["format"] < FORMAT:
        raise Gpt2UsageError(f"the checkpoint {folder} has the old format {table['format']}: train the model again.")
    try:
        known = {"folder": folder, "config": read_config(folder)}
        # Of Path and ModelConfig, as they are.
        info = msgspec.convert(table | known, CheckpointInfo, dec_hook=lambda kind, value: value)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise damaged(folder, f"{CHECKPOINT_FILE} is incomplete: {error}") from error
    except Gpt2UsageError as error:
        raise damaged(folder, str(error).rstrip(".")) from error
    if problem := problem_of_file(info, CONFIG):
        raise damaged(folder, problem)
    return info


def read_description(folder: Path) -> dict[str, Any]:
    """What `checkpoint.json` says, of any format. Raises Gpt2UsageError if it is damaged."""
    try:
        table = parse_json((folder / CHECKPOINT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(folder, f"{CHECKPOINT_FILE} can't be read: {error}") from error
    if not isinstance(table, dict) or type(table.get("format")) is not int:
        raise damaged(folder, f"{CHECKPOINT_FILE} names no format")
    if table["format"] in (OLD_FORMAT, FORMAT) and table.get("crc32") != table_crc(table):
        raise damaged(folder, f"{CHECKPOINT_FILE} is not what was written")
    return table


def check_files(info: CheckpointInfo, names: list[str], *, rank: int = 0, size: int = 1) -> None:
    """Compare some files of a checkpoint with their sizes and CRCs; processes share the work.

    Raises Gpt2UsageError naming the first file that is missing, cut off or changed.
    """
    for name in names[rank::size]:
        if problem := problem_of_file(info, name):
            raise damaged(info.folder, problem)


def problem_of_file(info: CheckpointInfo, name: str, count: Callable[[int], object] = lambda _: None) -> str:
    """The damage of a file of a checkpoint, in a few words; nothing if it is as it was written.

    `count` is called with the bytes read since the last call.
    """
    if problem := problem_of_size(info, name):
        return problem
    try:
        crc = checksum_of_file(info.folder / name, count).crc32
    except OSError as error:
        return f"{name} can't be read: {error.strerror or error}"
    return "" if crc == info.files[name]["crc32"] else f"{name} is not what was written"


def problem_of_size(info: CheckpointInfo, name: str) -> str:
    """What is wrong with a file, in a few words, as far as its name and size tell; nothing if nothing is."""
    if name not in info.files:
        return f"{CHECKPOINT_FILE} does not list {name}"
    if Path(name).name != name:
        return f"{CHECKPOINT_FILE} lists {name!r}, which is no file in it"
    written = info.files[name]["bytes"]
    try:
        found = (info.folder / name).stat().st_size
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError) as error:
        return f"{name} can't be read: {error}"
    return "" if found == written else f"{name} has {found:,} bytes where {written:,} were written"


def table_crc(table: Mapping[str, Any]) -> int:
    """CRC-32 of what `checkpoint.json` says, but for `crc32`, in any order and layout."""
    rest = {name: value for name, value in table.items() if name != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def describe_tokenizer(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Name, size and fingerprint of a tokenizer, as a checkpoint records them."""
    if tokenizer is None:
        return {}
    return {
        "name": "gpt2" if tokenizer.name == "gpt2" else "custom",
        "vocabulary_size": tokenizer.vocabulary_size,
        "fingerprint": tokenizer.fingerprint,
    }


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of the checkpoint that `path` means.

    Raises Gpt2UsageError if the checkpoint has none, or one that is not what it was made with.
    """
    info = read_info(path)
    try:
        tokenizer = read_tokenizer(info.folder)
    except IndexedTokensError as error:
        raise damaged(info.folder, f"its tokenizer can't be read: {error}".rstrip(".")) from error
    if tokenizer is None:
        raise Gpt2UsageError(f"the checkpoint {info.folder} has no tokenizer: it can't be given text.")
    if tokenizer.fingerprint != info.tokenizer.get("fingerprint"):
        raise damaged(info.folder, "its tokenizer is not the one that it was trained with")
    return tokenizer


_STEP_FOLDER = re.compile(r"step-(\d{7,})")


def step_folder(checkpoints: Path, step: int) -> Path:
    """`checkpoints/step-0000100` for step 100."""
    return checkpoints / f"step-{step:07d}"


def list_checkpoints(checkpoints: str | Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest step first."""
    found = {}
    for path in Path(checkpoints).glob("step-*"):
        match = _STEP_FOLDER.fullmatch(path.name)
        if match and (path / CHECKPOINT_FILE).is_file():
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


def checkpoint_in(path: Path) -> Path | None:
    """`path` if it is a checkpoint, or the one that `find_checkpoint` finds in it; None if there is none."""
    if (path / CHECKPOINT_FILE).is_file():
        return path
    return latest_checkpoint(path) or latest_checkpoint(path / CHECKPOINTS_FOLDER)


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
        raise Gpt2UsageError(
            f"no checkpoint {path}: give the --output folder of a `gpt2 train`, a step in it, or another model."
        )
    if (found := checkpoint_in(path)) is not None:
        return found
    raise Gpt2UsageError(
        f"{path} holds no checkpoint (no {CHECKPOINT_FILE} in it, nor in {CHECKPOINTS_FOLDER}/step-...): "
        "give the --output folder of a `gpt2 train` that has saved one."
    )


class DamagedCheckpoint(Gpt2UsageError):
    """A checkpoint that can't be used as it is; `why` says what is wrong with it, in a few words."""

    why = ""


def damaged(folder: Path, why: str) -> DamagedCheckpoint:
    """The error for a checkpoint that can't be used, with what to do about it."""
    advice = "give an older one, or delete this folder to resume from the checkpoint before it"
    if not _STEP_FOLDER.fullmatch(folder.name):
        advice = f"make it again; if you changed it yourself, delete its {CHECKPOINT_FILE}, and it is read as it is"
    error = DamagedCheckpoint(f"the checkpoint {folder} is damaged ({why}): {advice}.")
    error.why = why
    return error
