"""The record that a finished stage leaves in its output: what it was, and what became of every document.

    stage.json: {"stage": "clean", "version": 1, "settings": {...}, "in": 501, "out": 463, "dropped": {...}, ...,
                 "facts": {...}, "shards": {"part-00000.jsonl.zst": 463}, "inputs": [...]}

`inputs` holds, for each record of the folders that were read, its digest and its summary with `inputs` of its own: the
whole funnel can be followed from any folder, even if the ones before it are gone. It holds no path and no time: the
same input and settings give the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from command_kit import parse_json
from webtext_prep import storage
from webtext_prep.errors import InputError
from webtext_prep.storage.stores.base import Location

RECORD = "stage.json"
"""A finished stage's folder holds this file."""
PAGES = "pages"
"""The folder in the output of a download with the pages that it saved."""
STATE = ".state"
"""Where a stage keeps what it needs to resume."""
TOKEN_SUFFIXES = (".bin", ".idx", ".tokenizer.json")
"""Of the files whose record is `PREFIX.json`."""

EXPORTED = "data"
"""Where in its folder `webtext export` puts the files."""
_MAKERS = {EXPORTED: "export", PAGES: "download"}

_SUMMARY = ("stage", "version", "settings", "libraries", "in", "added", "out", "dropped", "notes", "facts", "inputs")


_KINDS: dict[str, type] = {
    "stage": str, "settings": dict, "in": int, "out": int, "dropped": Counter, "facts": dict, "shards": Counter,
    "inputs": list,
}  # fmt: skip
"""What lies under the keys of a record; for `Counter` and `list` see `_is_of`."""


def read_record(folder: Location, name: str = RECORD) -> dict[str, Any] | None:
    """The record of a finished stage in `folder`, or None if there is none. Raises InputError if it is damaged."""
    path = folder / name
    try:
        record = parse_json(storage.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"can't read {path} ({error}): run the stage again with --restart.") from error
    if not isinstance(record, dict) or "stage" not in record:
        raise InputError(f"{path} is not the record of a stage: the folder belongs to something else.")
    if (wrong := next((key for key, kind in _KINDS.items() if not _is_of(kind, record.get(key))), None)) is not None:
        raise InputError(f"{path} is damaged (its {wrong} is something else): run the stage again with --restart.")
    return record


def _is_of(kind: type, value: Any) -> bool:
    """Whether a value of a record is of its kind, or not there; a Counter is a table of whole numbers."""
    if value is None:
        return True
    if kind is Counter:
        return isinstance(value, dict) and all(type(count) is int for count in value.values())
    if kind is list:
        return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
    return isinstance(value, kind)


def recorded_documents(files: Iterable[Location]) -> int | None:
    """How many documents some shards hold, by the records beside them; None where one has no record.

    Raises InputError for a damaged record.
    """
    names: dict[Location, list[str]] = {}
    for file in files:
        names.setdefault(file.parent, []).append(file.name)
    total = 0
    for folder, own in names.items():
        record = read_record(folder)
        if record is None or not isinstance(record.get("shards"), dict):
            return None
        total += sum(record["shards"].get(name, 0) for name in own)
    return total


def record_beside(file: Location) -> Location | None:
    """The record of the stage that wrote a file: `stage.json` in its folder, for a token file `PREFIX.json`; or None.

    Raises InputError for a `stage.json` that is damaged.
    """
    for suffix in TOKEN_SUFFIXES:
        if file.name.endswith(suffix):
            beside = file.with_name(f"{file.name.removesuffix(suffix)}.json")
            with contextlib.suppress(InputError):  # any file may have that name
                if read_record(beside.parent, beside.name) is not None:
                    return beside
            return None
    folder = stage_folder(file.parent)
    return folder / RECORD if read_record(folder) is not None else None


def stage_folder(folder: Location) -> Location:
    """The folder of the stage that wrote the files in `folder`: itself, or the one around it.

    That is so of the folder `data` of an export, and of `pages` of a download. Raises InputError for a damaged record.
    """
    maker = _MAKERS.get(folder.name)
    if maker is not None and not storage.is_file(folder / RECORD):
        record = read_record(folder.parent)
        if record is not None and record["stage"] == maker:
            return folder.parent
    return folder


def summary_of(record: Location) -> dict[str, Any]:
    """What a later record keeps of one: its digest, and what it says but for shards and problems.

    Raises InputError if it is damaged or gone.
    """
    found = read_record(record.parent, record.name)
    if found is None:
        raise InputError(f"{record} is gone: run the command again.")
    digest = hashlib.sha256(storage.read_bytes(record)).hexdigest()
    return {"sha256": digest, **{key: found[key] for key in _SUMMARY if key in found}}


def files_by_record(inputs: Iterable[Location]) -> tuple[list[Location], list[Location]]:
    """The records that lie beside some files, each once and in their order, and the files that have none.

    Raises InputError for a damaged record.
    """
    folders: dict[Location, Location | None] = {}
    records: dict[Location, None] = {}
    plain: list[Location] = []
    for file in inputs:
        if file.name.endswith(TOKEN_SUFFIXES):
            record = record_beside(file)
        else:
            folder = file.parent
            if folder not in folders:
                folders[folder] = record_beside(file)
            record = folders[folder]
        if record is None:
            plain.append(file)
        else:
            records[record] = None
    return list(records), plain


def lineage_of(inputs: Iterable[Location]) -> list[dict[str, Any]]:
    """The summary of each record that lies beside one of `inputs`, in their order, and how many files had none.

    Raises InputError for a damaged record.
    """
    records, plain = files_by_record(inputs)
    return [*map(summary_of, records), *([{"files": len(plain)}] if plain else [])]


TOKENS_SUFFIX = "_text_document"
"""What Megatron-LM's users expect between a prefix and `.bin`."""
