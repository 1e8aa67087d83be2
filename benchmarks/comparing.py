"""The first byte in which the files of two folders differ, wherever the folders lie."""

from __future__ import annotations

from typing import BinaryIO

from webtext_prep import storage
from webtext_prep.storage.locations import Location

CHUNK = 1 << 20


def files_below(folder: Location, below: str = "") -> dict[str, Location]:
    """Every file below a folder, by its path from there, in order."""
    found: dict[str, Location] = {}
    for entry, is_folder in sorted(storage.list_folder(folder), key=lambda pair: pair[0].name):
        found |= files_below(entry, f"{below}{entry.name}/") if is_folder else {below + entry.name: entry}
    return found


def first_difference(expected: Location, found: Location) -> str | None:
    """The first difference between the files of two folders, as the end of a sentence; None if there is none."""
    ours, theirs = files_below(expected), files_below(found)
    for name in sorted(ours | theirs):
        if name not in theirs:
            return f"{name} is missing in {found}"
        if name not in ours:
            return f"{name} is in {found} and not in {expected}"
        difference = first_different_byte(ours[name], theirs[name])
        if difference is not None:
            return f"{name} differs from byte {difference:,} on: compare {theirs[name]} with {ours[name]}"
    return None


def first_different_byte(one: Location, other: Location) -> int | None:
    """The first byte, counted from 0, in which two files differ, or which only one of them has."""
    at = 0
    with storage.open_for_reading(one) as a, storage.open_for_reading(other) as b:
        while True:
            left, right = _read(a), _read(b)
            if left != right:
                same = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), None)
                return at + (min(len(left), len(right)) if same is None else same)
            if not left:
                return None
            at += len(left)


def _read(file: BinaryIO) -> bytes:
    parts, missing = [], CHUNK
    while missing and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
