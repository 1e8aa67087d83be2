"""A .json file: one object, a list of them, or objects one after another. It is read into memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from webtext_prep.documents.lines import read_utf8
from webtext_prep.documents.records.base import Keys, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.documents.records.json_lines import JsonLineRecords, decode_utf8, json_values


class JsonRecords(RecordReader):
    """JSON objects."""

    suffixes: ClassVar[tuple[str, ...]] = (".json",)

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        data = b"".join(read_utf8(file.location))
        try:
            values = list(json_values(decode_utf8(data)))
        except Unreadable as error:
            if b"\n" in data.strip():
                # Many a .json file in the wild is JSON lines.
                yield from JsonLineRecords().read(file, keys)
            else:
                yield Record("", error, file.url(1))
            return
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        for number, value in enumerate(values, 1):
            yield keys.record(value, f"entry {number}" if len(values) > 1 else "", file.url(number))
