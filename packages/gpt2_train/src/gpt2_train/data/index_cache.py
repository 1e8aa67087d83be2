"""Sample indices and blending states on disk, so that a run that resumes does not compute them again.

Each index is a folder of `.npy` files (no pickles) under a name that holds all that decides it; it appears complete
or not at all, is memory-mapped when read, and is built again if it is damaged. `IndexCache` is for one process;
`shared_cache.py` has the one for several.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from command_kit import parse_json, write_text
from command_kit.atomic import atomic_folder
from gpt2_train.data.sample_index import SampleIndex
from gpt2_train.errors import Gpt2UsageError

Build = Callable[[], SampleIndex]


class IndexCache:
    """A folder of indices, used by one process.

    Args:
        folder: where they are kept; it is created when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sample_index(self, name: str, build: Build) -> SampleIndex:
        """The index `name`, from disk, or else from `build` and kept. Raises OSError if it can't be written."""
        folder = self.folder / name
        self._build_if_missing(folder, build)
        return read_index(folder)

    def blend_state(self, name: str, block: int) -> list[int] | None:
        """The samples taken from each stream before `block` of the blend `name`; None if it was not kept."""
        try:
            taken = parse_json(self._state_file(name, block).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return taken if isinstance(taken, list) and all(isinstance(count, int) for count in taken) else None

    def keep_blend_state(self, name: str, block: int, taken: list[int]) -> None:
        """Keep what `blend_state` returns, if it can be written: it only saves time."""
        with contextlib.suppress(OSError):
            write_text(self._state_file(name, block), json.dumps(taken))

    def _state_file(self, name: str, block: int) -> Path:
        return self.folder / name / f"{block}.json"

    def _build_if_missing(self, folder: Path, build: Build) -> None:
        if folder.is_dir():
            try:
                read_index(folder)
                return
            except Gpt2UsageError:
                shutil.rmtree(folder)
        write_index(folder, build())


def write_index(folder: Path, index: SampleIndex) -> None:
    """Write the arrays of `index` into a new folder, atomically. Raises OSError."""
    with atomic_folder(folder) as unfinished:
        for field in dataclasses.fields(index):
            np.save(unfinished / f"{field.name}.npy", getattr(index, field.name), allow_pickle=False)


def read_index(folder: Path) -> SampleIndex:
    """The memory-mapped arrays in `folder`. Raises Gpt2UsageError if one is missing or damaged."""
    try:
        arrays = [
            np.load(folder / f"{field.name}.npy", mmap_mode="r", allow_pickle=False)
            for field in dataclasses.fields(SampleIndex)
        ]
    except (OSError, ValueError, EOFError) as error:
        raise Gpt2UsageError(f"the index {folder} can't be read ({error}): delete it, it is built again.") from error
    return SampleIndex(*arrays)
