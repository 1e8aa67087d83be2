"""Document shards: numbered files of one format, which their suffix names.

A shard is `part-00000.jsonl.zst`, or what `--format` says; a row of a URL list is a document without text. The bytes
of a shard follow from its documents alone.

The names of the tables that stages write next to their shards: JSON lines, zstandard-compressed.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence

from command_kit.errors import meant
from command_kit.plugins import find_plugins
from webtext_prep import storage
from webtext_prep.documents import formats
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.base import DocumentWriter, Format
from webtext_prep.errors import DamagedFileError, InputError
from webtext_prep.storage.locations import Location

DEFAULT_FORMAT = "jsonl.zst"
_SHARD = re.compile(r"part-\d{5,}\.(.+)")


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
