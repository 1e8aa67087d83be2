"""Checkpoints that any number of processes writes and any other number reads, one process without a group included.

A checkpoint is a folder `step-0000100/`: tensors in torch.distributed.checkpoint's format, each process writing only
its share, and `checkpoint.json`: step, samples seen, the model's shape, the tokenizer, what the data was, and size
and CRC-32 of each tensor file. It is written under a temporary name, flushed, renamed, and then named by the file
`latest`, so that a crash at any moment leaves the older ones whole. Before a tensor is used every file is checked
against its CRC (about a second for each gigabyte). Tensors are read with `weights_only`; the format's own index is a
pickle, so it is read by an unpickler that knows the dozen classes of that index and refuses everything else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import pickle
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from command_kit import write_json, write_text
from command_kit.atomic import remove_leftovers, sync_folder, temporary_name
from gpt2_train.collectives import agreed, rank_and_size
from gpt2_train.config import ModelConfig
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.model import GPT2
from indexed_tokens import Tokenizer

FORMAT = 1
"""Version of `checkpoint.json`; a higher one is refused."""

INFO_FILE = "checkpoint.json"
LATEST_FILE = "latest"
FOLDER = "checkpoints"
TOKENIZER_FOLDER = "tokenizer"
_STEP_FOLDER = re.compile(r"step-(\d{7,})")

_INDEX_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8"},
}
"""What the index of torch.distributed.checkpoint is made of: plain data classes and type names."""


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
        data: what the training files were, one entry a file.
        state: plain values that go on with the run (loss scale, steps skipped).
        folder: the checkpoint's folder.
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


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib" or module.startswith("pathlib."):
            # Where the checkpoint was first written, which may be another kind of machine: kept as plain text.
            return lambda *parts: "/".join(map(str, parts))
        if name in _INDEX_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint holds")


class _SafeReader(dcp.FileSystemReader):
    """torch.distributed.checkpoint's reader of folders, with an index that can't run code."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index. Raises Gpt2UsageError if it is damaged or holds anything else than tensors in this folder."""
        try:
            with (self.folder / ".metadata").open("rb") as file:
                metadata = _IndexUnpickler(io.BytesIO(file.read())).load()
            good = isinstance(metadata, Metadata) and all(
                isinstance(entry, TensorStorageMetadata) for entry in metadata.state_dict_metadata.values()
            )
            stored = metadata.storage_data.values() if good else ()
            good = good and all(Path(item.relative_path).name == item.relative_path for item in stored)
        except Exception as error:
            raise _broken(self.folder, f"its index can't be read: {error}") from error
        if not good:
            raise _broken(self.folder, "its index holds something else than tensors in this folder")
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


def _broken(folder: Path, why: str) -> Gpt2UsageError:
    return Gpt2UsageError(
        f"the checkpoint {folder} is damaged ({why}): give an older one, or delete this folder to go on from the "
        "checkpoint before it."
    )


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
        raise _broken(folder, f"{INFO_FILE} can't be read: {error}") from error
    if not isinstance(table, dict) or not isinstance(table.get("format"), int):
        raise _broken(folder, f"{INFO_FILE} names no format")
    if table["format"] > FORMAT:
        raise Gpt2UsageError(f"the checkpoint {folder} was written by a newer version of gpt2-train: update it.")
    return table


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
        )
    except (KeyError, TypeError, ValueError, Gpt2UsageError) as error:
        raise _broken(folder, f"{INFO_FILE} is incomplete: {error}") from error


def file_crc(path: Path) -> int:
    """CRC-32 of a file, read in pieces of 16 MB."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            crc = zlib.crc32(piece, crc)
    return crc


def check_files(folder: Path, files: Mapping[str, Mapping[str, int]]) -> None:
    """Compare the tensor files of a checkpoint with the sizes and CRCs in `files`; processes share the work.

    Raises Gpt2UsageError naming the first file that is missing, cut off or changed.
    """
    if not files:
        raise _broken(folder, "it lists no tensor files")
    rank, size = rank_and_size()
    for name in sorted(files)[rank::size]:
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise _broken(folder, f"{name} is missing")
        found = path.stat().st_size
        if found != files[name]["bytes"]:
            raise _broken(folder, f"{name} has {found:,} bytes where {files[name]['bytes']:,} were written")
        if file_crc(path) != files[name]["crc32"]:
            raise _broken(folder, f"{name} is not what was written")


def load_tensors(path: str | Path, tensors: dict[str, Tensor]) -> CheckpointInfo:
    """Fill `tensors` in place from the checkpoint that `path` means, and return what it says.

    Tensors may be plain or sharded in any way (DTensor); a name or a global shape that the checkpoint has otherwise
    is an error, and so is a damaged file: no tensor keeps the value that it had before. All processes call this
    together. Raises Gpt2UsageError.
    """

    def prepare() -> dict[str, Any]:
        folder = find_checkpoint(path)
        table = _read_json(folder)
        check_files(folder, table.get("files") or {})
        stored = _SafeReader(folder).read_metadata().state_dict_metadata
        for name, tensor in tensors.items():
            entry = stored.get(name)
            if not isinstance(entry, TensorStorageMetadata):
                raise Gpt2UsageError(f"the checkpoint {folder} has no {name}: it is of another kind of model.")
            if tuple(entry.size) != tuple(tensor.shape):
                raise Gpt2UsageError(
                    f"the checkpoint {folder} has {name} of shape {tuple(entry.size)}, where {tuple(tensor.shape)} is "
                    "needed: it is of another size of model."
                )
        return table

    table = agreed(prepare)[0]
    folder = find_checkpoint(path)
    try:
        with _quiet():
            dcp.load(dict(tensors), storage_reader=_SafeReader(folder), no_dist=rank_and_size()[1] == 1)
    except Gpt2Error:
        raise
    except (Exception, dcp.CheckpointException) as error:
        raise _broken(folder, _cause(error)) from error
    return _parse_info(folder, table)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's notices to developers (its storage classes, a missing process group)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save_checkpoint(
    checkpoints: Path,
    tensors: dict[str, Tensor],
    *,
    step: int,
    samples: int,
    config: ModelConfig,
    tokenizer: Tokenizer | None = None,
    settings: Mapping[str, Any] | None = None,
    data: list[dict[str, Any]] | None = None,
    state: Mapping[str, Any] | None = None,
    keep: int = 0,
) -> Path:
    """Write `checkpoints/step-...` and make it the latest; all processes call this together. Returns its folder.

    `tensors` may be plain (equal on all processes) or sharded. `settings`, `data` and `state` are plain values that
    JSON can hold. `keep` newest checkpoints stay, all of them if it is 0.
    Raises Gpt2Error if writing fails; earlier checkpoints are then as they were.
    """
    rank, size = rank_and_size()
    folder = step_folder(checkpoints, step)
    unfinished = temporary_name(folder)

    def begin() -> None:
        if rank == 0:
            checkpoints.mkdir(parents=True, exist_ok=True)
            remove_leftovers(checkpoints)
            unfinished.mkdir()

    def seal() -> dict[str, dict[str, int]]:
        # Each process reads back its own files, which are still in the page cache.
        mine = sorted(unfinished.glob(f"__{rank}_*")) if size > 1 else sorted(unfinished.glob("__*"))
        files = {path.name: {"bytes": path.stat().st_size, "crc32": file_crc(path)} for path in mine}
        if rank == 0:
            index = unfinished / ".metadata"
            files[index.name] = {"bytes": index.stat().st_size, "crc32": file_crc(index)}
        return files

    def publish() -> None:
        if rank != 0:
            return
        if tokenizer is not None:
            tokenizer.save(unfinished / TOKENIZER_FOLDER)
        table = {
            "format": FORMAT,
            "step": step,
            "samples": samples,
            "tokens": samples * config.sequence_length,
            "model": config.as_table(),
            "tokenizer": describe_tokenizer(tokenizer),
            "settings": dict(settings or {}),
            "data": list(data or []),
            "state": dict(state or {}),
            "files": files,
        }
        write_json(unfinished / INFO_FILE, table)
        sync_folder(unfinished)
        if folder.exists():
            set_aside_and_remove(folder)
        unfinished.replace(folder)
        sync_folder(checkpoints)
        write_text(checkpoints / LATEST_FILE, folder.name + "\n")
        remove_old(checkpoints, keep)

    try:
        agreed(begin)
        with _quiet():
            writer = dcp.FileSystemWriter(unfinished, single_file_per_rank=True, sync_files=True)
            dcp.save(dict(tensors), storage_writer=writer, no_dist=size == 1)
        files: dict[str, dict[str, int]] = {}
        for part in agreed(seal):
            files.update(part)
        agreed(publish)
    except (Exception, dcp.CheckpointException) as error:
        if rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise Gpt2Error(
            f"can't save the checkpoint {folder}: {_cause(error)}; earlier checkpoints are untouched, and the same "
            "command goes on from the last one."
        ) from error
    return folder


def _cause(error: BaseException) -> str:
    """What went wrong, without the names of the layers that it passed through."""
    inner = [error, *(failure for failure, _ in getattr(error, "failures", {}).values())]
    if any(isinstance(part, OSError) and part.errno in (errno.ENOSPC, errno.EDQUOT) for part in inner):
        return "the disk is full"
    # Where torch's writer meets a full disk inside its own file format, only a text is left of the cause.
    if any(sign in str(part) for part in inner for sign in ("No space left", "unexpected pos", "file write failed")):
        return "the disk is full"
    text = str(inner[-1]).strip()
    return text.splitlines()[-1] if text else type(inner[-1]).__name__


def set_aside_and_remove(folder: Path) -> None:
    """Remove a checkpoint; renamed first, so that a crash on the way leaves no half of one under its name."""
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

    Raises Gpt2UsageError if the checkpoint carries none, or one that is not what it was made with.
    """
    info = read_info(path)
    folder = info.folder / TOKENIZER_FOLDER
    if not folder.is_dir():
        raise Gpt2UsageError(f"the checkpoint {info.folder} carries no tokenizer: it can't be given text.")
    tokenizer = Tokenizer.from_files(folder / "vocab.json", folder / "merges.txt")
    if tokenizer.fingerprint != info.tokenizer.get("fingerprint"):
        raise _broken(info.folder, "its tokenizer is not the one that it was trained with")
    return tokenizer


def model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model under the names that checkpoints use, `model.<name>`; tied ones once."""
    return {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}


def load_model(
    checkpoint_dir: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> tuple[GPT2, ModelConfig, CheckpointInfo]:
    """The model of a checkpoint in one process, in evaluation mode, whatever layout trained it.

    Args:
        checkpoint_dir: a run's folder, its `checkpoints` folder, or one `step-...` folder.
        device: where to put the parameters.
        dtype: their type; float32 without it.

    No process group is needed. Raises Gpt2UsageError if there is no checkpoint or it is damaged.
    """
    info = read_info(checkpoint_dir)
    with torch.device("meta"):
        model = GPT2(info.config)
    if dtype is not None:
        model = model.to(dtype)
    model.tie()
    model.materialise(device)
    load_tensors(info.folder, model_tensors(model))
    return model.eval(), info.config, info
