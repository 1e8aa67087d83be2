"""What a list of files holds, estimated from a few of them: bytes once decompressed, bytes as shards, documents.

Of each kind of file (by suffix) the first, the middle and the last one are read, at most 4 MiB of each: a tenth of a
second, however large the input is. What can't be read is left out here; the stage that reads it says so.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

from webtext_prep import storage
from webtext_prep.documents.folders.shards import DEFAULT_FORMAT
from webtext_prep.documents.formats.compression import bare_name, compression_of, read_placed_chunks
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location

FILES_READ = 3
"""Files of each kind that are read."""
USUAL_RATIO = 2.7
"""Bytes of text in a byte of a compressed file, where none could be read or there is none yet."""
USUAL_DOCUMENT, USUAL_PAGE = 3_000, 110_000
"""Bytes of text of a document, and of a page's HTML, where none could be read."""
_PAGES = re.compile(rb"^WARC-Type:[ \t]*(?:response|resource|conversion)\b", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """What some files hold, in all, about.

    Attributes:
        size: their bytes.
        text: their bytes once decompressed, JSON and metadata included.
        written: bytes of the same in the format in which shards are written.
        documents: how many documents, pages or URLs; lines, where nothing better is known.
        plain: their bytes of `text` that are texts of pages already: WET files.
    """

    size: int = 0
    text: int = 0
    written: int = 0
    documents: int = 0
    plain: int = 0

    def __add__(self, other: Sample) -> Sample:
        """What both hold together."""
        return Sample(*map(operator.add, astuple(self), astuple(other)))

    @property
    def is_compressed(self) -> bool:
        """Whether most of it is."""
        return self.text > self.size

    def part(self, share: float) -> Sample:
        """A share of it; all of it from 1 on."""
        return Sample(*(round(min(1.0, share) * count) for count in astuple(self)))


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
    seen, size = sum((_begin_of(files[at]) for at in chosen if sizes[at]), Sample()), sum(sizes)
    is_compressed = bool(compression_of(files[0])) or _kind(files[0]) in (".parquet", ".wacz")
    if seen.size:
        text, documents = (round(size / seen.size * count) for count in (seen.text, seen.documents))
    else:
        text = round(size * (USUAL_RATIO if is_compressed else 1.0))
        documents = text // (USUAL_PAGE if _is_archive(files[0]) else USUAL_DOCUMENT)
    if is_one_document(files[0]):
        documents = len(files)
    written = text if format_name == "jsonl" else size if is_compressed else round(text / USUAL_RATIO)
    return Sample(size, text, written, documents, text if _kind(files[0]).startswith(".wet") else 0)


def _is_archive(place: Location) -> bool:
    return _kind(place).startswith((".warc", ".wet", ".wacz"))


def _begin_of(place: Location) -> Sample:
    """What the beginning of one file holds; nothing, if it can't be read."""
    try:
        if _kind(place) == ".parquet":
            return _whole_parquet(place)
        if _kind(place) == ".wacz":  # its archives lie in it compressed
            return Sample()
        text = documents = taken = 0
        is_archive = _is_archive(place)
        for chunk, taken in read_placed_chunks(place):  # noqa: B007 - the last one counts
            documents += len(_PAGES.findall(chunk)) if is_archive else chunk.count(b"\n")
            text, is_whole = text + len(chunk), is_archive or chunk.endswith(b"\n")
            if text >= 4 << 20:
                break
        return Sample(taken, text, 0, documents + (not is_whole)) if text else Sample()
    except (InputError, OSError, ValueError):
        return Sample()


def _whole_parquet(place: Location) -> Sample:
    """What the end of a Parquet file says of all of it."""
    from webtext_prep.documents.formats.arrow_tables import open_parquet

    with open_parquet(place) as (file, _):
        facts = file.metadata
        text = sum(facts.row_group(group).total_byte_size for group in range(facts.num_row_groups))
        return Sample(storage.size(place), text, 0, facts.num_rows)
