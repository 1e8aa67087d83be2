"""Raw files of users, and the reader for each kind: those in `records/`, found by a file's suffix."""

from __future__ import annotations

import functools

from command_kit.plugins import find_plugins
from webtext_prep.documents import records
from webtext_prep.documents.records.base import RecordReader
from webtext_prep.documents.stores.base import Location


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
