"""Models of Hugging Face's hub by their names: `gpt2`, or `openai-community/gpt2-medium`.

What lies in a folder wins: only a name under which nothing is here is looked for there, and never one that begins with
a folder of this place, which is a path with a slip in it. huggingface_hub, an optional package, fetches into its own
cache, and follows the variables of the environment that it knows (HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN).
Weights are fetched as safetensors only, never as pickles, and only a GPT-2's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError

UNOWNED = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
"""Names without an owner that the hub has for GPT-2."""
FILES = (
    "config.json", "generation_config.json",
    "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt",
)  # fmt: skip
SECONDS = 10
"""Seconds that the hub may take to say what it has."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILE = re.compile(r".*\.(bin|gguf|json|pt|pth|safetensors)")


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
