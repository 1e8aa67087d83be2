"""Raw files of users: the reader for each kind (those in `records/`, by a file's suffix), their names, and groups."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from command_kit import hide_credentials
from command_kit.plugins import find_plugins
from webtext_prep import storage
from webtext_prep.documents import records
from webtext_prep.documents.formats.compression import bare_name
from webtext_prep.documents.records.base import RecordReader
from webtext_prep.storage.stores.base import Location

BYTES_PER_TASK = 16 << 20
"""Files are read together, as one task, until they have so many bytes,"""
MOST_TASKS = 4096
"""or so large a share of all: each task is a file that each shard reads from."""


@functools.lru_cache(maxsize=1)
def known_readers() -> dict[str, RecordReader]:
    """Suffix to reader: those of `records/`, and those of the entry-point group `webtext.records`."""
    found = find_plugins(records, RecordReader, group="webtext.records")
    return {suffix: reader() for reader in found for suffix in reader.all_suffixes()}


def reader_of(file: Location) -> RecordReader | None:
    """The reader of files of that name, or None if there is none."""
    known = known_readers()
    _, *suffixes = file.name.lower().split(".")
    endings = (".".join(["", *suffixes[-count:]]) for count in (2, 1) if len(suffixes) >= count)
    return next((known[suffix] for suffix in endings if suffix in known), None)


def is_raw_file(file: Location) -> bool:
    """Whether `webtext merge` reads files of that name."""
    return reader_of(file) is not None


def kinds_of_raw_files() -> str:
    """The suffixes of the files that are read, for a message."""
    suffixes = dict.fromkeys(suffix for reader in known_readers().values() for suffix in reader.suffixes)
    return f"{', '.join(sorted(suffixes))} files (compressed or not)"


def is_one_text(path: Location) -> bool:
    """Whether a file of that name is one text, whose metadata may lie beside it."""
    reader = reader_of(path)
    return reader is not None and reader.one_text_a_file


def sidecars_of(
    inputs: Sequence[Location], *, is_one_text: Callable[[Location], bool] = is_one_text
) -> dict[Location, Location]:
    """Text file to the JSON file beside it that holds its metadata: `page.json` or `page.txt.json` for `page.txt`."""
    beside: dict[Location, dict[str, Location]] = {}
    found: dict[Location, Location] = {}
    for path in inputs:
        if not is_one_text(path):
            continue
        folder = path.parent
        if folder not in beside:
            beside[folder] = {entry.name: entry for entry in storage.files_in(folder) if entry.suffix == ".json"}
        if beside[folder]:
            bare = bare_name(path)
            for name in (f"{bare.rsplit('.', 1)[0]}.json", f"{bare}.json"):
                if name in beside[folder]:
                    found.setdefault(path, beside[folder][name])
    return found


def file_names(files: Sequence[Location]) -> list[str]:
    """Each file as seen from the folder that all of them lie in: two of one name in two folders are two."""
    folders = {
        parent: (os.path.realpath(parent) if isinstance(parent, Path) else hide_credentials(str(parent))).split("/")
        for parent in {path.parent for path in files}
    }
    shared = sum(
        1 for _ in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*folders.values(), strict=False))
    )
    return ["/".join([*folders[path.parent][shared:], path.name]) for path in files]


def file_groups(
    files: Sequence[Location],
    sizes: Sequence[int],
    alone: Container[Location] = (),
    *,
    at_least: int = BYTES_PER_TASK,
) -> list[list[Location]]:
    """Files in order, small ones together: each group is one task, so that a million small files are not a million.

    Those in `alone` are groups of their own; others are together until they have `at_least` so many bytes.
    """
    whole = max(at_least, sum(sizes) // MOST_TASKS)
    groups: list[list[Location]] = []
    room = 0
    for path, size in zip(files, sizes, strict=True):
        if not groups or room < size or path in alone:
            groups.append([])
            room = whole
        groups[-1].append(path)
        room = 0 if path in alone else room - size
    return groups
