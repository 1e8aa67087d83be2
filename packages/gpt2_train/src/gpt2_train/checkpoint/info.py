"""`checkpoint.json`: what a checkpoint says about itself, and its tokenizer. Reads no tensors and needs no torch."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt2_train.checkpoint.folders import INFO_FILE, damaged, find_checkpoint
from gpt2_train.config import ModelConfig
from gpt2_train.errors import Gpt2UsageError
from indexed_tokens import Tokenizer

FORMAT = 2
"""Version of a checkpoint's layout; a higher one is refused. 1 had all tensors in one set of files."""

TOKENIZER_FOLDER = "tokenizer"


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """What `checkpoint.json` says.

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
        files: size (`bytes`) and CRC-32 (`crc32`) of each tensor file, by its path in the folder.
        format: version of the layout.
    """

    step: int
    samples: int
    tokens: int
    config: ModelConfig
    tokenizer: dict[str, Any]
    settings: dict[str, Any]
    data: list[dict[str, Any]]
    state: dict[str, Any]
    folder: Path
    files: dict[str, dict[str, int]]
    format: int

    def part(self, name: str) -> str:
        """The folder of the tensors whose names begin with `name` and a dot, relative to the checkpoint's."""
        return name if self.format > 1 else "."


def read_info(path: str | Path) -> CheckpointInfo:
    """What the checkpoint that `path` means holds, without its tensors.

    Raises Gpt2UsageError if there is none, or its `checkpoint.json` is damaged or of a newer version.
    """
    folder = find_checkpoint(path)
    return _parse_info(folder, _read_json(folder))


def _read_json(folder: Path) -> dict[str, Any]:
    try:
        table = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(folder, f"{INFO_FILE} can't be read: {error}") from error
    if not isinstance(table, dict) or not isinstance(table.get("format"), int):
        raise damaged(folder, f"{INFO_FILE} names no format")
    if table["format"] > FORMAT:
        raise Gpt2UsageError(f"the checkpoint {folder} was written by a newer version of gpt2-train: update it.")
    return table


def table_crc(table: Mapping[str, Any]) -> int:
    """CRC-32 of what `checkpoint.json` says, whatever its order and layout, under `crc32` aside."""
    rest = {name: value for name, value in table.items() if name != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def check_table(folder: Path) -> None:
    """Raise Gpt2UsageError if the `checkpoint.json` of a folder is not what was written; old ones can't be checked."""
    table = _read_json(folder)
    if "crc32" in table and table["crc32"] != table_crc(table):
        raise damaged(folder, f"{INFO_FILE} is not what was written")


def _parse_info(folder: Path, table: dict[str, Any]) -> CheckpointInfo:
    try:
        return CheckpointInfo(
            step=int(table["step"]),
            samples=int(table["samples"]),
            tokens=int(table["tokens"]),
            config=ModelConfig(**table["model"]),
            tokenizer=dict(table["tokenizer"]),
            settings=dict(table["settings"]),
            data=list(table["data"]),
            state=dict(table["state"]),
            folder=folder,
            files={
                str(name): {key: int(entry[key]) for key in ("bytes", "crc32")}
                for name, entry in dict(table["files"]).items()
            },
            format=int(table["format"]),
        )
    except (KeyError, TypeError, ValueError, Gpt2UsageError) as error:
        raise damaged(folder, f"{INFO_FILE} is incomplete: {error}") from error


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
    folder = info.folder / TOKENIZER_FOLDER
    if not folder.is_dir():
        raise Gpt2UsageError(f"the checkpoint {info.folder} has no tokenizer: it can't be given text.")
    tokenizer = Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt")
    if tokenizer.fingerprint != info.tokenizer.get("fingerprint"):
        raise damaged(info.folder, "its tokenizer is not the one that it was trained with")
    return tokenizer
