"""The formats of models, one file of this folder and one class below `ModelFormat` each, and which one a path is of.

A path may also be the name of a model on Hugging Face's hub: `gpt2`, or `openai-community/gpt2-medium`. What lies in a
folder wins: only a name under which nothing is here is looked for there, and never one that begins with a folder of
this place, which is a path with a slip in it. huggingface_hub, an optional package, fetches into its own cache, and
follows the variables of the environment that it knows (HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN). Weights are
fetched as safetensors only, never as pickles, and only a GPT-2's.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import re
import sys
from pathlib import Path
from typing import ClassVar

import torch

from command_kit.plugins import find_plugins
from gpt2_train.checkpoint.info import find_checkpoint
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.conversion.weights import ModelWeights
from indexed_tokens import Tokenizer

UNOWNED = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
"""Names without an owner that the hub has for GPT-2."""
FILES = (
    "config.json", "generation_config.json",
    "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt",
)  # fmt: skip
SECONDS = 10
"""How long the hub may take to say what it has."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILE = re.compile(r".*\.(bin|gguf|json|pt|pth|safetensors)")


def located(path: str | Path) -> Path:
    """Where the model at `path` lies; if `path` is a name of the hub, where it lies once it has been fetched.

    Raises Gpt2UsageError, Gpt2Error for a name of the hub whose model can't be had.
    """
    name = hub_name(str(path))
    return Path(path) if name is None else fetch(name)


def find_model(path: str | Path) -> Path:
    """As `located`, for a model that is to be used. Raises Gpt2UsageError, too, if nothing is there."""
    place = located(path)
    if not place.exists():
        find_checkpoint(place)  # raises the sentence, with the step that is there where another is meant
    return place


def hub_name(path: str) -> str | None:
    """`path` if it can be meant for a name of the hub only, else None.

    >>> hub_name("gpt2"), hub_name("openai-community/gpt2-xl"), hub_name("runs/first/model"), hub_name("./gpt2")
    ('gpt2', 'openai-community/gpt2-xl', None, None)
    """
    owner = path.partition("/")[0]
    is_name = path in UNOWNED or bool(_NAME.fullmatch(path) and not _FILE.fullmatch(path))
    return path if is_name and not Path(path).exists() and not (owner != path and Path(owner).exists()) else None


def fetch(name: str) -> Path:
    """The folder of the hub's model `name`, fetched if it is not in the cache.

    Raises Gpt2UsageError for a name that the hub does not have, that is closed to this user, or no GPT-2; Gpt2Error
    if it can't be fetched.
    """
    try:
        from huggingface_hub import constants, errors
    except ImportError:
        raise Gpt2UsageError(
            f"there is no folder {name} here, and huggingface_hub, which would fetch a GPT-2 of that name from Hugging "
            'Face\'s hub, is not installed: pip install "webtext-gpt2[hub]"; or download it elsewhere by '
            f"{_command(name)}."
        ) from None
    hub = constants.ENDPOINT
    print(f"gpt2: {name}: no folder here, so the model of that name at {hub}", file=sys.stderr, flush=True)
    try:
        return _fetched(name, hub)
    except Gpt2Error:
        raise
    except errors.GatedRepoError as error:
        raise Gpt2UsageError(
            f"{name} is open only to people who ask for access: do that at {hub}/{name}, log in with `hf auth login`, "
            "and start the command again."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise Gpt2UsageError(
            f"no model {name}: there is no such folder here, and {hub} has none of that name, or none that you may see "
            "without `hf auth login`: check the path or the name."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{hub} can't be reached"
        raise Gpt2Error(
            f"{name} can't be fetched: {why}, and the cache does not have it; check the connection, or give a folder."
        ) from error
    except Exception as error:  # Of the hub, of the connection to it, of the disk.
        reason = str(error).strip().partition("\n")[0]
        raise Gpt2Error(f"{name} can't be fetched from {hub} ({reason}): try again later, or give a folder.") from error


def _fetched(name: str, hub: str) -> Path:
    """The folder; raises Gpt2UsageError, and huggingface_hub's errors."""
    from huggingface_hub import HfApi, errors, snapshot_download

    try:
        known = HfApi(endpoint=hub).model_info(name, timeout=SECONDS)
    except errors.RepositoryNotFoundError:
        raise
    except Exception:  # Offline, or the hub is: what the cache has will do.
        return Path(snapshot_download(name, allow_patterns=[*FILES], local_files_only=True))
    kind = (known.config or {}).get("model_type", "gpt2")
    if kind != "gpt2":
        raise Gpt2UsageError(f"{name} is a model of type {kind}: only GPT-2 can be read.")
    if not any(file.rfilename.endswith(".safetensors") for file in known.siblings or ()):
        raise Gpt2UsageError(
            f"{name} at {hub} has no safetensors, and weights of another kind are not fetched: download it by "
            f"{_command(name)}."
        )
    return Path(snapshot_download(name, allow_patterns=[*FILES]))


def _command(name: str) -> str:
    folder = name.rpartition("/")[2]
    return f"`hf download {name} --local-dir {folder}`, and give the folder {folder}"


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options of reading that a file may not tell about its model.

    Attributes:
        heads: attention heads.
        vocabulary_size: token ids; rows of the embedding above it are padding.
        tokenizer: folder or file of the tokenizer, or `gpt2`.
        reader: this process's number among the readers of the same model, and how many they are: they share the work
            of checking its files.
    """

    heads: int | None = None
    vocabulary_size: int | None = None
    tokenizer: str | None = None
    reader: tuple[int, int] = (0, 1)

    def read_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that is named; None without one. Raises IndexedTokensError if it is damaged."""
        return Tokenizer.from_path(self.tokenizer) if self.tokenizer else None


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """How to write a model; a format ignores what it does not know.

    Attributes:
        dtype: type of the values; None for that of the source.
        tensor_parallel: processes that each get a share.
        shard_bytes: largest size of a file of tensors.
    """

    dtype: torch.dtype | None = None
    tensor_parallel: int = 1
    shard_bytes: int = 5 * 10**9


class ModelFormat(abc.ABC):
    """A format in which models lie on disk."""

    name: ClassVar[str]
    """Its value of `--to`."""
    summary: ClassVar[str]
    """The name of the format, for `--help` and messages."""
    is_file: ClassVar[bool] = False
    """Whether a model is one file; else it is a folder."""

    @abc.abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether a model of this format lies at `path`. Reads no more than names and a few bytes."""

    @abc.abstractmethod
    def open(self, path: Path, options: ReadOptions) -> ModelWeights:
        """The model at `path`; its tensors are not read yet. Raises Gpt2UsageError if it can't be used."""

    @abc.abstractmethod
    def write(self, weights: ModelWeights, path: Path, options: WriteOptions) -> None:
        """Write `weights` into the folder `path`, which is empty (or as the file `path`), flushed to the disk."""


@functools.lru_cache(maxsize=1)
def known_formats() -> dict[str, ModelFormat]:
    """Every format by its name: from `formats/`, and from the entry-point group `gpt2.formats`."""
    return {found.name: found() for found in find_plugins(sys.modules[__name__], ModelFormat, group="gpt2.formats")}


def format_of(path: str | Path) -> ModelFormat:
    """The format of the model at `path`. Raises Gpt2UsageError if there is none."""
    place = Path(path)
    if not place.exists():
        raise Gpt2UsageError(f"no model {place}: give a folder or file that holds one.")
    found = next((known for known in known_formats().values() if known.recognises(place)), None)
    if found is None:
        kinds = "; ".join(known.summary for known in known_formats().values() if known.name != "checkpoint")
        raise Gpt2UsageError(
            f"{place} holds no checkpoint, nor a model of another format that is known here ({kinds}): check the path."
        )
    return found


def open_weights(path: str | Path, options: ReadOptions | None = None) -> ModelWeights:
    """The model at `path`, in any known format, or of that name on the hub; its tensors are not read yet.

    Raises Gpt2UsageError, and Gpt2Error if the hub can't be reached.
    """
    place = located(path)
    return format_of(place).open(place, options or ReadOptions())
