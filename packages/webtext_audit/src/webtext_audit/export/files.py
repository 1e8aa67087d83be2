"""The files of an exported dataset: Parquet, or JSON lines, compressed or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import msgspec

from webtext_audit.export.columns import Column, arrow_schema, row_of, times_of
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.arrow_tables import new_parquet
from webtext_prep.documents.formats.compression import compressed
from webtext_prep.documents.formats.parquet import GROUP_BYTES, GROUP_ROWS
from webtext_prep.storage.stores.base import Location

FORMATS = {"parquet": "", "jsonl": "", "jsonl.gz": ".gz", "jsonl.zst": ".zst"}
"""Name of a format to the suffix of its compression."""
FOLDER = "data"

Write = Callable[[Document], None]


def file_name(number: int, count: int, format_name: str) -> str:
    """The name of one file of `count`, as the hub has it: `train-00000-of-00003.parquet`."""
    return f"train-{number:05}-of-{count:05}.{format_name}"


def is_file_name(name: str) -> bool:
    """Whether `file_name` may have made it."""
    return name.startswith("train-") and "-of-" in name and name.split(".", 1)[-1] in FORMATS


@contextlib.contextmanager
def write_file(place: Location, columns: Sequence[Column], format_name: str) -> Iterator[Write]:
    """Open a file for documents; it appears complete when the block ends well, and not at all when it raises."""
    with storage.create(place) as stream:
        if format_name == "parquet":
            with _parquet(stream, columns) as write:
                yield write
        else:
            with compressed(stream, FORMATS[format_name]) as lines:
                yield lambda document: _write_line(lines, columns, document)


def _row(columns: Sequence[Column], document: Document) -> dict[str, Any]:
    return {"url": document.url, "text": document.text, **row_of(columns, document.metadata)}


def _write_line(lines: BinaryIO, columns: Sequence[Column], document: Document) -> None:
    lines.write(msgspec.json.encode(_row(columns, document)) + b"\n")


@contextlib.contextmanager
def _parquet(stream: BinaryIO, columns: Sequence[Column]) -> Iterator[Write]:
    import pyarrow as pa

    schema = arrow_schema(columns)
    rows: list[dict[str, Any]] = []
    held = 0

    def flush() -> None:
        nonlocal held
        if rows:
            file.write_table(pa.Table.from_pylist(list(times_of(columns, rows)), schema))
        rows.clear()
        held = 0

    def write(document: Document) -> None:
        nonlocal held
        rows.append(_row(columns, document))
        held += len(document.text)
        if held >= GROUP_BYTES or len(rows) >= GROUP_ROWS:
            flush()

    plain = [column.name for column in columns if not column.is_list]
    indexed = [name for name in plain if name != "title"]
    with new_parquet(stream, schema, use_dictionary=indexed, write_statistics=["url", *plain]) as file:
        yield write
        flush()
