"""What a list of files holds, estimated from a few of them: bytes once decompressed, bytes as shards, documents.

Of each kind of file (by suffix) the first, the middle and the last one are read, at most 4 MiB of each: a tenth of a
second, however large the input is. What can't be read is left out here; the stage that reads it says so.
"""

from __future__ import annotations

import io
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from webtext_prep import storage
from webtext_prep.documents.folders.shards import DEFAULT_FORMAT
from webtext_prep.documents.formats.compression import bare_name, compressed, compression_of, read_placed_chunks
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location

FILES_READ = 3
"""Files of each kind that are read,"""
BYTES_READ = 4 << 20
"""and bytes of each, decompressed."""
EXCERPT_BYTES = 64 << 10
"""Of each kind of file so much is kept, for estimates that look at the text itself."""
_UNKNOWN_RATIO = 3.0
"""Bytes that a byte of a compressed file holds, where none could be read."""
_UNKNOWN_LINE = 3_000
"""Bytes of a document, where none could be read."""


@dataclass(frozen=True)
class Sample:
    """What some files hold, in all, about.

    Attributes:
        files: how many they are.
        size: their bytes.
        largest: the bytes of the largest one.
        text: their bytes once decompressed, JSON and metadata included.
        packed: bytes of the same compressed with zstandard, as files between phases are.
        written: bytes of the same in the format in which shards are written.
        documents: how many documents or URLs; lines, where nothing better is known.
        excerpt: a piece of them, decompressed.
    """

    files: int = 0
    size: int = 0
    largest: int = 0
    text: int = 0
    packed: int = 0
    written: int = 0
    documents: int = 0
    excerpt: bytes = b""

    def __add__(self, other: Sample) -> Sample:
        """What both hold together."""
        both = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Sample(**both | {"largest": max(self.largest, other.largest)})

    @property
    def largest_share(self) -> float:
        """The share of the largest file in all."""
        return self.largest / self.size if self.size else 0.0


def take_sample(
    files: Sequence[Location],
    sizes: Sequence[int],
    *,
    format_name: str = DEFAULT_FORMAT,
    is_one_document: Callable[[Location], bool] = lambda place: False,
) -> Sample:
    """The sample of `files`.

    Args:
        files: the ones to read.
        sizes: the bytes of each.
        format_name: how shards will be written.
        is_one_document: which files hold one document each, with any number of lines.
    """
    kinds: dict[str, list[int]] = defaultdict(list)
    for at, place in enumerate(files):
        kinds[_kind(place)].append(at)
    parts = (
        _sample_of_kind([files[at] for at in chosen], [sizes[at] for at in chosen], format_name, is_one_document)
        for chosen in kinds.values()
    )
    return sum(parts, Sample())


def characters_in(files: Sequence[Location]) -> int:
    """About how many characters the texts in some files have."""
    return take_sample(files, storage.sizes(files)).text


def _kind(place: Location) -> str:
    bare = bare_name(place).lower()
    return bare[bare.rfind(".") :] + compression_of(place) if "." in bare else compression_of(place)


def _sample_of_kind(
    files: Sequence[Location], sizes: Sequence[int], format_name: str, is_one_document: Callable[[Location], bool]
) -> Sample:
    """Files of one suffix: figures of the ones that are read, scaled to the bytes of all."""
    chosen = sorted({at * (len(files) - 1) // max(1, FILES_READ - 1) for at in range(FILES_READ)})
    begins = [_begin_of(files[at], format_name) for at in chosen if sizes[at]]
    seen, size = sum(begins, Sample()), sum(sizes)
    if seen.size:
        scale = size / seen.size
        text, packed, written = (int(scale * count) for count in (seen.text, seen.packed, seen.written))
        documents = round(scale * seen.documents)
    else:
        is_packed = compression_of(files[0]) or _kind(files[0]) == ".parquet"
        text = int(size * (_UNKNOWN_RATIO if is_packed else 1.0))
        packed = written = int(text / _UNKNOWN_RATIO)
        documents = text // _UNKNOWN_LINE
    if is_one_document(files[0]):
        documents = len(files)
    excerpt = next((begin.excerpt for begin in begins if begin.excerpt), b"")
    return Sample(len(files), size, max(sizes), text, packed, written, documents, excerpt)


def _begin_of(place: Location, format_name: str) -> Sample:
    """What the beginning of one file holds; nothing, if it can't be read."""
    try:
        if _kind(place) == ".parquet":
            return _whole_parquet(place)
        found, taken = bytearray(), 0
        for chunk, taken in read_placed_chunks(place):  # noqa: B007 - the last one counts
            found += chunk
            if len(found) >= BYTES_READ:
                break
        if not found:
            return Sample()
    except (InputError, OSError, ValueError):
        return Sample()
    text = bytes(found)
    suffix = {"jsonl": "", "jsonl.gz": ".gz"}.get(format_name, ".zst")
    packed = _size_compressed(text, ".zst")
    written = packed if suffix == ".zst" else _size_compressed(text, suffix)
    lines = text.count(b"\n") + (not text.endswith(b"\n"))
    return Sample(1, taken, taken, len(text), packed, written, lines, text[:EXCERPT_BYTES])


def _size_compressed(text: bytes, suffix: str) -> int:
    stream = io.BytesIO()
    with compressed(stream, suffix) as file:
        file.write(text)
    return len(stream.getvalue())


def _whole_parquet(place: Location) -> Sample:
    """What the end of a Parquet file says of all of it, and an excerpt of its first texts."""
    from webtext_prep.documents.formats.arrow_tables import open_parquet, read_rows

    with open_parquet(place) as (file, _):
        facts = file.metadata
        text = sum(facts.row_group(group).total_byte_size for group in range(facts.num_row_groups))
        rows = facts.num_rows
    size = storage.size(place)
    texts = (str(row.get("text", "")) for row in itertools.islice(read_rows(place), 64) if isinstance(row, dict))
    return Sample(1, size, size, text, size, size, rows, "\n".join(texts).encode("utf-8", "ignore")[:EXCERPT_BYTES])
