"""`gpt2 convert`: a model from one format into another, its values unchanged.

Every format is read into the same names, shapes and order of rows, and those that are written are written from them.
The target appears whole under its name or not at all; nothing of the source is changed, and none of its code is run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from command_kit import add_flags, setting, settings_from
from command_kit.atomic import atomic_file, atomic_folder
from command_kit.command import print_warning
from command_kit.settings import Removed
from gpt2_train.config.errors import ASSUMED_TOKENIZER, Gpt2Error, Gpt2UsageError
from gpt2_train.config.settings import TOKENIZER_HELP

if TYPE_CHECKING:
    from gpt2_train.conversion.formats import ModelWeights

EXAMPLE = """\
example:
  gpt2 convert runs/quickstart/model work/hf                        the newest checkpoint without its optimizer
  gpt2 convert runs/quickstart/model work/half --dtype bf16         the same, at half the size
  gpt2 convert runs/quickstart/model work/model.gguf --dtype fp16   a file for llama.cpp
"""

_NO_MEGATRON = "Megatron-LM's formats are read only: write hf"
_OUT, _IN = "what is written", "what the source may not tell"


@dataclasses.dataclass(frozen=True)
class ConvertSettings:
    """The settings of `gpt2 convert`. Raises Gpt2UsageError where one is out of range."""

    REMOVED: ClassVar[Mapping[str, Removed]] = {
        "megatron": Removed(_NO_MEGATRON, "core"),
        "to megatron": Removed(_NO_MEGATRON),
        "tensor_parallel": Removed(_NO_MEGATRON, 1),
        "to checkpoint": Removed("a checkpoint is a Hugging Face folder: leave it out, or give hf"),
    }

    source: str = setting(
        "", "a model in any known format, or its name on Hugging Face's hub", metavar="FROM", positional=True
    )
    target: str = setting("", "the folder or file to write; it must not be there yet", metavar="TO", positional=True)
    to: Literal["hf", "megatron", "gguf"] | None = setting(
        None, "format to write; without it GGUF for a name that ends in .gguf, else hf", group=_OUT
    )
    dtype: Literal["fp32", "bf16", "fp16"] | None = setting(
        None, "type of the values; the source's without it", group=_OUT
    )
    shard_gb: float = setting(5.0, "largest file of tensors in GB (hf)", group=_OUT, gt=0)
    card: bool = setting(
        False, "also write a model card, README.md, with the shape and the settings of the training", group=_OUT
    )
    heads: int | None = setting(None, "attention heads (megatron without settings)", group=_IN, ge=1)
    vocabulary_size: int | None = setting(None, "token ids; further rows are padding (megatron)", group=_IN, ge=1)
    tokenizer: str | None = setting(None, TOKENIZER_HELP, metavar="DIR|FILE", group=_IN)

    def __post_init__(self) -> None:
        if not self.source or not self.target:
            raise Gpt2UsageError(
                "gpt2 convert needs FROM and TO: give the model to read and the folder or file to write."
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpt2 convert`."""
    parser.add_argument(
        "--config", metavar="FILE.toml", help="a TOML file with settings in its table [convert]; flags win"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as one JSON object on stdout")
    add_flags(parser, ConvertSettings)


def run(arguments: argparse.Namespace) -> int:
    """Convert as the arguments say; returns the exit code. Raises Gpt2UsageError."""
    settings = settings_from(ConvertSettings, arguments, command="convert", config=arguments.config)
    found = convert(settings)
    if arguments.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print(
            f"{found['target']}: {found['to']} from {found['from']}, {found['parameters']:,} parameters, "
            f"{found['layers']} layers, width {found['hidden']}, {found['heads']} heads, "
            f"{found['sequence_length']} positions, vocabulary {found['vocabulary_size']:,}"
        )
    return 0


FILE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".safetensors")
"""Suffixes of files of weights elsewhere."""


def convert(settings: ConvertSettings) -> dict[str, Any]:
    """Write the model that `settings` name in another format; returns what it is.

    Raises Gpt2UsageError if the source can't be used or the target is there already, Gpt2Error if writing fails.
    """
    from gpt2_train.conversion.formats import ReadOptions, WriteOptions, format_of, known_formats, located
    from gpt2_train.conversion.old_checkpoint import old_checkpoint_in
    from gpt2_train.model.gpt2 import DTYPES

    source = located(settings.source)
    if (old := old_checkpoint_in(source)) is not None:
        return _renewed(old, settings)
    source_format = format_of(source)
    name = settings.to or ("gguf" if settings.target.endswith(".gguf") else "hf")
    target_format = known_formats()[name]
    read = ReadOptions(settings.heads, settings.vocabulary_size, settings.tokenizer)
    weights = source_format.open(source, read)
    _check_tokenizer(weights, settings)
    write = WriteOptions(
        DTYPES[settings.dtype] if settings.dtype else None,
        round(settings.shard_gb * 10**9),
    )
    if not target_format.is_file and Path(settings.target).suffix in FILE_SUFFIXES:
        raise Gpt2UsageError(
            f"{settings.target} is named as a file, and {name} is a folder: give the name of a folder, or NAME.gguf."
        )
    if settings.card and target_format.is_file:
        raise Gpt2UsageError(f"a {name} file can hold no model card: leave out --card, or convert to hf.")
    with _appearing(Path(settings.target), is_file=target_format.is_file) as unfinished:
        target_format.write(weights, unfinished, write)
        if settings.card:
            from gpt2_train.conversion.card import write_card

            write_card(weights, unfinished / "README.md")
    return _described(weights, weights.format, name, settings)


def _renewed(old: Path, settings: ConvertSettings) -> dict[str, Any]:
    """Turn a checkpoint of format 2 into today's, its optimizer included; raises and returns as `convert`."""
    from gpt2_train.conversion.formats import open_weights
    from gpt2_train.conversion.old_checkpoint import renew_checkpoint

    target = Path(settings.target)
    if settings.to not in (None, "hf") or settings.dtype or settings.card or target.suffix == ".gguf":
        raise Gpt2UsageError(
            f"the checkpoint {old} has the format of earlier versions: turn it into today's first, by `gpt2 convert "
            f"{old} NEW` alone, and then convert NEW."
        )
    with _appearing(target, is_file=False) as unfinished:
        renew_checkpoint(old, unfinished)
    return _described(open_weights(target), "a checkpoint of format 2", "checkpoint", settings)


def _described(weights: ModelWeights, origin: str, name: str, settings: ConvertSettings) -> dict[str, Any]:
    """What was written, for `--json`."""
    return {
        "from": origin,
        "to": name,
        "target": settings.target,
        "parameters": weights.config.parameters,
        **weights.config.as_table(),
        "step": weights.step,
        "tokenizer": weights.tokenizer.fingerprint if weights.tokenizer else None,
    }


def _check_tokenizer(weights: ModelWeights, settings: ConvertSettings) -> None:
    """Say on standard error if the model has no tokenizer, an assumed one, or one with ids that it lacks.

    Other programs fail at such ids, or read rows of padding. Raises Gpt2UsageError where --tokenizer or
    --vocabulary-size asks for them.
    """
    tokenizer, size, source = weights.tokenizer, weights.config.vocabulary_size, settings.source
    if weights.assumes_tokenizer:
        print(f"gpt2: {ASSUMED_TOKENIZER.format(source)}", file=sys.stderr)
    elif tokenizer is None:
        told = f"{source} has no tokenizer, and so what is written has none: give the one of its training by"
        print(f"gpt2: {told} --tokenizer.", file=sys.stderr)
    elif tokenizer.vocabulary_size > size:
        told = f"the tokenizer {tokenizer.name} has {tokenizer.vocabulary_size:,} token ids, and the model {size:,}"
        if settings.tokenizer is None and settings.vocabulary_size is None:
            print_warning("gpt2", f"{told}: other programs fail at a text with one of the others.")
            return
        raise Gpt2UsageError(
            f"{told}: give the --tokenizer that it was trained with, or the --vocabulary-size that belongs to it."
        )


@contextlib.contextmanager
def _appearing(target: Path, *, is_file: bool) -> Iterator[Path]:
    """A place to write to, which becomes `target` when the block ends well, and is removed when it does not.

    Raises Gpt2UsageError if something is there, Gpt2Error if writing fails.
    """
    if target.exists() and not (target.is_dir() and not is_file and not any(target.iterdir())):
        raise Gpt2UsageError(f"{target} is there already: give a name that is free, or remove it.")
    try:
        if is_file:
            with atomic_file(target) as file:
                yield Path(file.name)
        else:
            with atomic_folder(target) as folder:
                yield folder
    except OSError as error:
        raise Gpt2Error(f"can't write {target} ({error.strerror or error}); nothing was left there.") from error
