"""Document shards: numbered files of one format, which their suffix names, and the interface of a format.

A shard is `part-00000.jsonl.zst`, or what `--format` says; a row of a URL list is a document without text. The bytes
of a shard follow from its documents alone.

The names of the tables that stages write next to their shards: JSON lines, zstandard-compressed.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from command_kit.errors import meant
from command_kit.plugins import find_plugins
from webtext_prep import storage
from webtext_prep.documents import formats
from webtext_prep.documents.document import Document, batches, decode_document
from webtext_prep.errors import DamagedFileError, InputError
from webtext_prep.storage.locations import Location

if TYPE_CHECKING:
    from webtext_prep.documents.packed import PackedDocuments

DEFAULT_FORMAT = "jsonl.zst"
_SHARD = re.compile(r"part-\d{5,}\.(.+)")


class DocumentWriter(abc.ABC):
    """Writes documents to an open shard.

    Attributes:
        written: how many so far.
    """

    def __init__(self) -> None:
        self.written = 0

    @abc.abstractmethod
    def write(self, document: Document) -> None:
        """Add one document."""

    def write_lines(self, lines: bytes | memoryview, count: int) -> None:
        """Add `count` documents, given as `encode_document` writes them, with a newline after each."""
        for line in bytes(lines).splitlines():
            self.write(decode_document(line))


class Format(abc.ABC):
    """One file format. It has no state: a file's suffix decides which format reads it."""

    name: ClassVar[str]
    """What `--format` calls it; its shards are `part-00000.NAME`."""
    also_reads: ClassVar[tuple[str, ...]] = ()
    """Other suffixes, with their dot, of files that it can read."""

    @classmethod
    def reads(cls, file_name: str) -> bool:
        """Whether files of that name are read by it."""
        return file_name.lower().endswith((f".{cls.name}", *cls.also_reads))

    @abc.abstractmethod
    def read(self, location: Location) -> Iterator[Document]:
        """The documents of one file, in order. Raises InputError naming the file and the place that holds none."""

    def read_chosen(self, location: Location, is_chosen: Callable[[int], object]) -> Iterator[tuple[int, Document]]:
        """The documents of one file for whose number, from 0 on, `is_chosen` is true, each with its number.

        A format may leave the others undecoded.
        """
        return ((number, document) for number, document in enumerate(self.read(location)) if is_chosen(number))

    def read_with(self, location: Location, texts: Sequence[str]) -> Iterator[tuple[int, Document]]:
        """The documents of one file as `write` made it, each with its number from 0 on.

        A format may leave out some that hold none of `texts`, where any are given.
        """
        return enumerate(self.read(location))

    def read_packed(self, location: Location) -> Iterator[PackedDocuments]:
        """The documents of one file, in order, some at a time."""
        from webtext_prep.documents.packed import PackedDocuments, PackedTexts

        for batch in batches(self.read(location)):
            yield PackedDocuments(batch, PackedTexts.of([document.text for document in batch]), may_be_copied=False)

    def copy_others(
        self, location: Location, writer: DocumentWriter, count: int, gone: Sequence[int], report: Callable[[int], None]
    ) -> None:
        """Copy the first `count` documents of a file of which all may be copied (`PackedDocuments`), but for those
        of the numbers `gone`, rising from 0 on. `report` gets the number of documents done."""
        raise NotImplementedError

    @abc.abstractmethod
    def write(self, stream: BinaryIO) -> AbstractContextManager[DocumentWriter]:
        """Write documents to a stream; the bytes follow from the documents alone."""


@functools.lru_cache(maxsize=1)
def known_formats() -> dict[str, Format]:
    """Every format by its name: from `formats/`, and from the entry-point group `webtext.formats`."""
    return {found.name: found() for found in find_plugins(formats, Format, group="webtext.formats")}


def format_of(file_name: str) -> Format | None:
    """The format in which a file of that name is read, or None if there is none."""
    return next((known for known in known_formats().values() if known.reads(file_name)), None)


def check_format(name: str) -> str:
    """`name`, if `--format` may have that value. Raises InputError."""
    if name not in known_formats():
        known = sorted(known_formats())
        raise InputError(f"--format {name} is not known: {meant(name, known)}choose one of {', '.join(known)}.")
    return name


def shard_name(number: int, format_name: str = DEFAULT_FORMAT) -> str:
    """0 -> `part-00000.jsonl.zst`."""
    return f"part-{number:05}.{format_name}"


def is_shard_name(file_name: str) -> bool:
    """Whether a stage may have written a file of that name."""
    found = _SHARD.fullmatch(file_name)
    return found is not None and found[1] in known_formats()


def is_document_shard(file: Location) -> bool:
    """Whether documents can be read from files of that name, as far as the name tells."""
    return format_of(file.name) is not None


def shards_in(folder: Location | str) -> list[Location]:
    """The shards that lie in a folder, in order; the folder may be given as a path or URL."""
    place = storage.location(folder) if isinstance(folder, str) else folder
    return [file for file in storage.files_in(place) if is_shard_name(file.name)]


def read_documents(shard: Location) -> Iterator[Document]:
    """The documents of one shard, in order. Raises InputError naming the file and the place that holds none."""
    with _damage_advised(shard):
        yield from _format_of(shard).read(shard)


def read_chosen_documents(shard: Location, is_chosen: Callable[[int], object]) -> Iterator[tuple[int, Document]]:
    """The documents of one shard for whose number, from 0 on, `is_chosen` is true, each with its number.

    Raises InputError as `read_documents` does; others than the chosen ones may not be looked at.
    """
    with _damage_advised(shard):
        yield from _format_of(shard).read_chosen(shard, is_chosen)


def read_packed_documents(shard: Location) -> Iterator[PackedDocuments]:
    """The documents of one shard, in order, some at a time. Raises InputError as `read_documents` does."""
    with _damage_advised(shard):
        yield from _format_of(shard).read_packed(shard)


def copy_other_documents(
    shard: Location, writer: DocumentWriter, count: int, gone: Sequence[int], report: Callable[[int], None]
) -> None:
    """Copy the `count` documents of a shard of which all may be copied, but for those of the numbers `gone`.

    Nothing is decoded. Raises InputError as `read_documents` does for a damaged file.
    """
    with _damage_advised(shard):
        _format_of(shard).copy_others(shard, writer, count, gone, report)


def read_documents_with(shard: Location, texts: Sequence[str]) -> Iterator[tuple[int, Document]]:
    """The documents of one shard that a stage wrote, each with its number from 0 on, but for some that hold none of
    `texts`; all of them where no text is given.

    Raises InputError as `read_documents` does.
    """
    with _damage_advised(shard):
        yield from _format_of(shard).read_with(shard, texts)


@contextlib.contextmanager
def _damage_advised(shard: Location) -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        advice = "of a file of your own `webtext merge` keeps what is whole"
        if shard.parent.name in (DROPPED, "outcomes") or shard.name.endswith(TABLES):
            advice = "it tells of what a stage dropped or cut out: run that stage again with --restart"
        raise DamagedFileError(f"{str(error).rstrip('.')}; {advice}.") from error


def _format_of(shard: Location) -> Format:
    found = format_of(shard.name)
    if found is None:
        raise InputError(f"{shard} is not a document shard: turn it into documents with `webtext merge` first.")
    return found


@contextlib.contextmanager
def write_documents(shard: Location, *, durable: bool = True) -> Iterator[DocumentWriter]:
    """Open a shard for writing; it appears complete when the block ends well, and not at all when it raises.

    Its suffix decides the format. Without `durable` a power cut may lose it: for shards between two phases.
    """
    with storage.create(shard, durable=durable) as stream, _format_of(shard).write(stream) as writer:
        yield writer


DROPPED = "dropped"
"""The folder in an output with a receipt for each dropped document."""
SUPERSEDED = "superseded.jsonl.zst"
"""`dedup --against`: old documents that new ones replace."""
MATCHES = "matches.jsonl.zst"
"""`decontaminate`: what was cut out of which document."""
FREQUENT_NGRAMS = "frequent_ngrams.jsonl.zst"
"""`decontaminate`: what was left alone because the corpus has it often."""
REPEATS = "passages.jsonl.zst"
"""`dedup-passages`: what was cut out of which document, and where it stands first."""
TABLES = (SUPERSEDED, MATCHES, FREQUENT_NGRAMS, REPEATS, f".{DROPPED}.jsonl.zst")
"""Ends of the names of tables that stages write beside documents and token files."""
