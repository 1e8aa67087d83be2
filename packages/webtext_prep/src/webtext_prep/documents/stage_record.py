"""The record that a finished stage leaves in its output: what it was, and what became of every document.

    stage.json: {"stage": "clean", "version": 1, "settings": {...}, "in": 501, "out": 463, "dropped": {...}, ...,
                 "facts": {...}, "shards": {"part-00000.jsonl.zst": 463}, "inputs": [...]}

`inputs` holds, for each record of the folders that were read, its digest and its summary with `inputs` of its own: the
whole funnel can be followed from any folder, even if the ones before it are gone. It holds no path and no time: the
same input and settings give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from webtext_prep.documents import storage
from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError

RECORD = "stage.json"
"""A finished stage's folder holds this file."""
STATE = ".state"
"""Where a stage keeps what it needs to resume."""

_SUMMARY = ("stage", "version", "settings", "in", "out", "dropped", "notes", "facts", "inputs")


def read_record(folder: Location, name: str = RECORD) -> dict[str, Any] | None:
    """The record of a finished stage in `folder`, or None if there is none. Raises InputError if it is damaged."""
    path = folder / name
    try:
        record = json.loads(storage.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"can't read {path} ({error}): run the stage again with --restart.") from error
    if not isinstance(record, dict) or "stage" not in record:
        raise InputError(f"{path} is not the record of a stage: the folder belongs to something else.")
    return record


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


def lineage_of(inputs: Iterable[Location]) -> list[dict[str, Any]]:
    """The summary of each record that lies beside one of `inputs`, in their order, and how many files had none.

    Raises InputError for a damaged record.
    """
    folders = Counter(path.parent for path in inputs)
    found: list[dict[str, Any]] = []
    plain = 0
    for folder, files in folders.items():
        record = read_record(folder)
        if record is None:
            plain += files
        else:
            digest = hashlib.sha256(storage.read_bytes(folder / RECORD)).hexdigest()
            found.append({"sha256": digest, **{key: record[key] for key in _SUMMARY if key in record}})
    return [*found, *([{"files": plain}] if plain else [])]
