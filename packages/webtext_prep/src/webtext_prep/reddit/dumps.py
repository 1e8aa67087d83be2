"""Files of submissions: their names, and their lines in blocks, from any line on."""

from __future__ import annotations

from collections.abc import Iterator

from webtext_prep.documents.formats.compression import bare_name, compression_of, read_placed_chunks
from webtext_prep.documents.formats.lines import line_blocks, read_range, without_start
from webtext_prep.storage.stores.base import Location

BLOCK_BYTES = 1 << 20
"""Bytes of lines that are parsed between two looks at the clock."""
SUFFIXES = (".jsonl", ".ndjson", ".json")
KINDS = (
    "dumps of Reddit submissions, not comments (RS_2015-01.zst, news_submissions.zst, .jsonl; .gz, .xz, .bz2, .zst or "
    "plain)"
)


def is_dump(place: Location) -> bool:
    """Whether the name may be that of a dump of submissions: comments (RC_*, *_comments) are left out.

    Dumps have no suffix but that of their compression, or that of JSON lines; an uncompressed one without any begins
    with `RS_`.
    """
    name = bare_name(place).lower()
    stem, dot, suffix = name.rpartition(".")
    stem = stem if dot else name
    if stem.startswith("rc_") or stem.endswith("_comments"):
        return False
    if dot:
        return f".{suffix}" in SUFFIXES
    return bool(compression_of(place)) or name.startswith("rs_")


def read_blocks(location: Location, span: tuple[int, int] | None, skip: int) -> Iterator[tuple[bytes, int]]:
    """The lines of a dump in blocks of about 1 MiB, each with how many bytes of the file were read by then.

    Args:
        location: the dump.
        span: read only the lines that begin between these two places; of a file that `has_ranges`.
        skip: leave out so many bytes of text, which earlier blocks had.

    Raises InputError as `read_placed_chunks` does.
    """
    place = 0

    def chunks() -> Iterator[bytes]:
        nonlocal place
        if span is None:
            for chunk, place in read_placed_chunks(location):  # noqa: B007 - the generator around this one reads it
                yield chunk
        else:
            for chunk in read_range(location, *span):
                place += len(chunk)
                yield chunk

    for block in line_blocks(location, without_start(chunks(), skip), BLOCK_BYTES):
        yield block, place
