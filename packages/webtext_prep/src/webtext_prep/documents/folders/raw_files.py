"""Raw files of users: the reader for each kind (in `records/`, by a file's suffix), their names, and groups.

Folders of datasets as hubs and the `datasets` library lay them out: which files describe the data, and the splits.

    data/train-00000-of-00003.parquet    README.md                 pushed to a hub
    train/data-00000-of-00001.arrow      train/state.json          written by save_to_disk
    en/c4-train.00000-of-01024.json.gz                             as C4

Only names are looked at, no file is opened.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from command_kit import hide_credentials
from command_kit.plugins import find_plugins
from webtext_prep import storage
from webtext_prep.documents import records
from webtext_prep.documents.folders.shards import is_shard_name
from webtext_prep.documents.folders.stage_record import files_by_record
from webtext_prep.documents.formats.compression import bare_name
from webtext_prep.documents.records.base import RecordReader
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location

BYTES_PER_TASK = 16 << 20
"""Bytes that files which are read together, as one task, have at least,"""
MOST_TASKS = 4096
"""or so large a share of all: each task is a file that each shard reads from."""


@functools.lru_cache(maxsize=1)
def known_readers() -> dict[str, RecordReader]:
    """Suffix to reader: readers in `records/`, and in the entry-point group `webtext.records`."""
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
    """Whether a file of that name is one text, whose metadata may lie next to it."""
    reader = reader_of(path)
    return reader is not None and reader.one_text_a_file


def sidecars_of(
    inputs: Sequence[Location], *, is_one_text: Callable[[Location], bool] = is_one_text
) -> dict[Location, Location]:
    """Text file to the JSON file next to it that holds its metadata: `page.json` or `page.txt.json` for `page.txt`."""
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
    shared = min([shared, *(len(parts) - len(_partition_folders(parts)) for parts in folders.values())])
    return ["/".join([*folders[path.parent][shared:], path.name]) for path in files]


_PARTITION = re.compile(r"([A-Za-z_][\w.-]*)=(.*)")
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_OWN = ("url", "text")


def _partition_folders(folders: Sequence[str]) -> list[re.Match[str]]:
    """The folders right above a file that are named `column=value`."""
    found = map(_PARTITION.fullmatch, reversed(folders))
    return [match for match in itertools.takewhile(bool, found) if match][::-1]


def partition_of(name: str) -> dict[str, str]:
    """The columns that are told by folders, as Hive, Spark, DuckDB and Polars lay tables out, and in no file.

    >>> partition_of("crawl=CC-MAIN-2024-10/language=en/part-0.parquet")
    {'crawl': 'CC-MAIN-2024-10', 'language': 'en'}
    """
    columns = (match.groups() for match in _partition_folders(name.split("/")[:-1]))
    return {column: unquote(value) for column, value in columns if value != _NULL_PARTITION and column not in _OWN}


def columns_of(files: Sequence[Location]) -> list[dict[str, str]]:
    """Of each file the columns that its folders tell; of shards of a stage none."""
    plain = set(files_by_record(files)[1])
    return [partition_of(name) if file in plain else {} for file, name in zip(files, file_names(files), strict=True)]


def file_groups(
    files: Sequence[Location], sizes: Sequence[int], alone: Container[Location] = (), *, at_least: int = BYTES_PER_TASK
) -> list[list[Location]]:
    """Files in order, small ones together: each group is one task, so that a million small files are not a million.

    Files in `alone` are groups of their own; others are together until they have at least `at_least` bytes.
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


DATASET_DICT = "dataset_dict.json"
_PUSHED = "data"
"""The folder in which a dataset that was pushed to a hub has its shards."""
_INFO = frozenset({"dataset_info.json", "dataset_infos.json", DATASET_DICT})
"""Names that nothing else has."""
_CACHED = re.compile(r"(cache|tmp)[-_]?[0-9a-z_]+\.arrow")

_USUAL_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_SHARD_OF_SPLIT = re.compile(rf"(?:.*[-_.])?({'|'.join(_USUAL_SPLITS)})(?:[-_.](?:tfrecord[-.])?\d+(?:-of-\d+)?.*)?")
_SHARD_IN_DATA = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}.*")


def without_descriptions(files: Sequence[Location]) -> tuple[list[Location], list[Location]]:
    """`files` without the ones that describe a dataset, and these."""
    names = {file: file.name.lower() for file in files}
    # Next to a `dataset_info.json` lie the state of a saved dataset, and results that the library keeps for itself.
    saved = {file.parent for file, name in names.items() if name == "dataset_info.json"}
    sure = {
        file
        for file, name in names.items()
        if name in _INFO or (file.parent in saved and (name == "state.json" or _CACHED.fullmatch(name)))
    }
    # Descriptions, where there is nothing but tables next to and below them; else a README is a text.
    cards = {file for file, name in names.items() if name in ("readme.md", "top_domains.csv")}
    tables, texts = Counter[Location](), Counter[Location]()
    if cards:
        wanted = {card.parent for card in cards}
        for file in files:
            if file not in sure and file not in cards:
                counted = texts if is_one_text(file) else tables
                counted.update(folder for folder in file.parents if folder in wanted)
    left_out = sure | {card for card in cards if tables[card.parent] and not texts[card.parent]}
    return [file for file in files if file not in left_out], [file for file in files if file in left_out]


def choose_splits(
    files: Sequence[Location], described: Sequence[Location], names: Sequence[str], folders: Sequence[Location] = ()
) -> list[Location]:
    """The files of the splits with these names; without names all files but those beside a training split.

    Args:
        files: what there is to read.
        described: the files that describe a dataset.
        names: of splits.
        folders: the folders that were given as input. A dataset in one of them is read as its training split; files
            and splits that were given by name are all read.

    Raises InputError for a split that there is not, and for a saved or pushed dataset without a training split.
    """
    if not names:
        left_out = _beside_training(files, described, folders)
        return [file for file in files if file not in left_out]
    wanted = [_USUAL_SPLITS.get(split, split) for split in names]
    by_split = splits_of(files, described)
    missing = next((name for name, split in zip(names, wanted, strict=True) if split not in by_split), None)
    if missing is not None:
        raise InputError(f"--split {missing}: there is no such split in the input, but {', '.join(by_split)}.")
    chosen = {file for split in wanted for file in by_split[split]}
    return [file for file in files if file in chosen]


def _beside_training(
    files: Iterable[Location], described: Iterable[Location], folders: Sequence[Location]
) -> set[Location]:
    """The files of other splits than the training split, of each dataset in `folders`."""
    with_splits, given = _with_splits(described), set(folders)
    datasets: dict[Location, dict[str, list[Location]]] = {}
    for file in files if given else ():
        # Outputs of ours may be folders that are called `train` and `test`, too.
        if is_shard_name(file.name) or (named := _named_split(file, with_splits)) is None:
            continue
        folder, split = named
        if not given.isdisjoint((folder, *folder.parents)):
            datasets.setdefault(folder, {}).setdefault(split, []).append(file)
    left_out: set[Location] = set()
    for folder, splits in datasets.items():
        if "train" in splits:
            left_out.update(file for name, its_files in splits.items() if name != "train" for file in its_files)
        elif folder in with_splits or folder.name == _PUSHED:
            raise InputError(
                f"{folder} has no split train, but {', '.join(splits)}: choose with `webtext merge --split NAME`, or "
                "give the files of a split by name."
            )
    return left_out


def splits_of(files: Sequence[Location], described: Iterable[Location]) -> dict[str, list[Location]]:
    """Split to its files, in their order. What names no split counts as `train`, as the `datasets` library has it.

    `described` are the files that describe a dataset, also of datasets saved with their splits.
    """
    with_splits = _with_splits(described)
    found: dict[str, list[Location]] = {}
    for file in files:
        named = _named_split(file, with_splits)
        found.setdefault(named[1] if named else "train", []).append(file)
    return found


def counts_of(splits: Mapping[str, Sequence[Location]]) -> str:
    """Splits and the numbers of their files, for a message: `test (1), train (3)`."""
    return ", ".join(f"{name} ({len(files):,})" for name, files in splits.items())


def _with_splits(described: Iterable[Location]) -> set[Location]:
    """The folders of datasets that were saved with their splits."""
    return {file.parent for file in described if file.name == DATASET_DICT}


def _named_split(file: Location, with_splits: set[Location]) -> tuple[Location, str] | None:
    """The folder of the dataset, and the split that the name of a file or of its folder tells, if any does."""
    if is_one_text(file):
        return None
    folder = file.parent
    if folder.parent in with_splits:
        return folder.parent, folder.name
    name = file.name.lower()
    suffixes = sorted(known_readers(), key=len, reverse=True)
    stem = name.removesuffix(next(filter(name.endswith, suffixes), ""))
    if shard := _SHARD_OF_SPLIT.fullmatch(stem):
        return folder, _USUAL_SPLITS[shard[1]]
    if folder.name == _PUSHED and (shard := _SHARD_IN_DATA.fullmatch(stem)):
        return folder, shard[1]
    split = _USUAL_SPLITS.get(folder.name.lower())
    return (folder.parent, split) if split else None
