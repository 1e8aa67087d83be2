"""The interface of a reader of raw files: the records of one file, each a document or the reason why it is not one.

Formats (`documents/formats/`) hold documents that a stage wrote, where anything unexpected is an error; these readers
take files as people have them, with keys of other names, and never stop at a bad record.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import msgspec

from command_kit import hide_credentials
from webtext_prep import storage
from webtext_prep.documents.document import Document, without_surrogates
from webtext_prep.documents.formats.compression import COMPRESSED_SUFFIXES
from webtext_prep.errors import DamagedFileError
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import clean_metadata, without_credentials

_KEYS_SHOWN = 8


class Unreadable(ValueError):
    """A record is not a document.

    Args:
        reason: what is wrong, in words that are the same for every record of which it is true.
        detail: about this one record.
    """

    def __init__(self, reason: str, detail: object = "") -> None:
        super().__init__(f"{reason} ({detail})" if str(detail) else reason)
        self.reason = reason


class Damaged(Unreadable):
    """A place at which a file is not what was written, and the records there are lost.

    Args:
        sentence: what is damaged, and what to do, for people.
        size: about how many bytes of the file are lost.
    """

    def __init__(self, sentence: str, size: int) -> None:
        super().__init__(sentence)
        self.size = size


LOST = "damaged, and the records there are lost, all others kept"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a file.

    Attributes:
        place: where in the file it begins, such as `line 3`; empty where the whole file is one record.
        document: the document, or why it is not one.
        url: the URL that it gets if it has none of its own.
        text_key: the key under which its text was found; empty where there are no keys.
        url_key: the key under which its URL was found; empty where there was none.
    """

    place: str
    document: Document | Unreadable
    url: str
    text_key: str = ""
    url_key: str = ""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file that can be read by itself.

    Attributes:
        begin: where it begins, in what its reader counts: bytes, row groups.
        end: where it ends.
        first: the number of its first record (line, row) in the file, from 1 on.
        head: what its reader must know of the part before it, as a JSON-like value.
    """

    begin: int
    end: int
    first: int = 1
    head: Any = None


_OBJECTS = (dict, MutableMapping)
"""What an object of JSON may be; whether it is a `dict` is asked first, in a tenth of the time."""


class FileBlock(NamedTuple):
    """Some whole records of a file that can only be read from its beginning.

    Attributes:
        data: their text, such that `RecordReader.read` takes it for a part of the file.
        size: bytes of the file's content that they take.
        records: how many they are, by which later records are numbered.
        head: of the part that follows.
    """

    data: bytes
    size: int
    records: int
    head: Any = None


class OtherKindError(Exception):
    """A file is not what its first blocks were taken for: it is to be read again from its beginning.

    Args:
        head: with which; None if it can't be read in blocks.
    """

    def __init__(self, head: Any = None) -> None:
        super().__init__(head)
        self.head = head


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read records from.

    Attributes:
        location: where it is.
        name: what it is called in the URL of a record that has none: its path below the folder of all inputs.
        sidecar: a JSON file with the metadata of a file that is one text, if there is one.
        part: the part of it that is read, or None for all of it.
        partition: columns that the folders of a table tell, and no row.
    """

    location: Location
    name: str
    sidecar: Location | None = None
    part: FilePart | None = None
    partition: Mapping[str, str] = field(default_factory=dict)

    def url(self, *places: int) -> str:
        """The URL of what has none: the file's name, and which record of it.

        That is no fragment, as URLs that differ in the fragment alone are one page.
        """
        return ":".join([_url_of(self.name), *map(str, places)])


@functools.lru_cache(maxsize=16)
def _url_of(name: str) -> str:
    return f"file:{quote(os.fsencode(hide_credentials(name)))}"


@dataclass(frozen=True, slots=True)
class Keys:
    """Where in a record its text and its URL are: keys in the order in which they are tried, nested as `data.text`.

    What holds a nested key is an object, or the JSON of one in a string, as Parquet files often have it.
    """

    text: tuple[str, ...]
    url: tuple[str, ...]

    def record(self, value: Any, place: str, url: str) -> Record:
        """The record made of a JSON value; `url` is the one it gets if it names none."""
        try:
            if not isinstance(value, _OBJECTS):
                raise Unreadable("not a JSON object", f"found {type(value).__name__}")
            text_key, text = _take(value, self.text)
            if not text_key:
                found = ", ".join(_key_names(value)[:_KEYS_SHOWN])
                missing = "none of the keys" if len(self.text) > 1 else "no key"
                raise Unreadable(
                    f"{missing} {', '.join(self.text)}", f"but {found or 'none'}: name the right one with --text-key"
                )
            text = "" if text is None else decoded(text, text_key)
            if not isinstance(text, str):
                raise Unreadable(f"{text_key!r} is not a string", f"found {type(text).__name__}")
            url_key, own_url = self.take_url(value)
        except Unreadable as error:
            return Record(place, error, url)
        value.pop("text", None)
        named = without_surrogates(without_credentials(own_url)) or url
        return Record(place, Document(named, text, clean_metadata(dict(value))), url, text_key, url_key)

    def wrapped(self, value: Any) -> list[Any]:
        """The records in an object that is none itself, as answers of APIs and databases wrap them: `{"data": [...]}`.

        They are the one list in it whose first entry has a text; empty where there is no such list, or several.
        """
        if not isinstance(value, dict) or self._has_text(value):
            return []
        lists = [inner for inner in value.values() if isinstance(inner, list) and inner and self._has_text(inner[0])]
        return lists[0] if len(lists) == 1 else []

    def _has_text(self, value: Any) -> bool:
        return any(_holder(value, key) is not None for key in self.text)

    def take_url(self, value: MutableMapping[str, Any]) -> tuple[str, str]:
        """Remove the URL from a record; the key that it was under, and the URL. Both are empty if there is none.

        A number N under the key `id` is `id:N`.

        Raises Unreadable if it is neither a string nor a number.
        """
        key, url = _take(value, self.url)
        value.pop("url", None)
        url = decoded(url, key)
        if url is None or isinstance(url, str):
            return (key, url) if url else ("", "")
        if isinstance(url, bool) or not isinstance(url, int | float):
            raise Unreadable(f"{key!r} is neither a string nor a number", f"found {type(url).__name__}")
        if isinstance(url, float) and url.is_integer():
            url = int(url)
        return key, f"{quote(key, safe='')}:{url}"


def _take(value: MutableMapping[str, Any], keys: tuple[str, ...]) -> tuple[str, Any]:
    """Remove the first of `keys` under which there is something; the key and what was there.

    The value is None where there is only null under any of them, and the key empty where there is none of them.
    """
    null_under = ""
    for key in keys:
        if (found := _holder(value, key)) is not None:
            holder, last = found
            if holder[last] is not None:
                return key, holder.pop(last)
            null_under = null_under or key
    return null_under, None


def _holder(value: Any, key: str) -> tuple[MutableMapping[str, Any], str] | None:
    """The object inside `value` that holds a nested key, and what the key is called in it, or None.

    JSON in a string on the way to it is replaced by the object that it is.
    """
    if not isinstance(value, _OBJECTS):
        return None
    if key in value:
        return value, key
    first, _, rest = key.partition(".")
    if not rest or first not in value:
        return None
    inner = value[first]
    if isinstance(inner, str) and inner.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            inner = msgspec.json.decode(inner)
    found = _holder(inner, rest)
    if found is not None:
        value[first] = inner
    return found


def decoded(value: Any, key: str) -> Any:
    """A value as it is, or if it is bytes the text in them: not every writer of Parquet says that a column is text.

    Raises Unreadable if they are not UTF-8.
    """
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"{key!r} is not valid UTF-8", "save it as text") from error


def _key_names(value: MutableMapping[str, Any]) -> list[str]:
    """The keys of a record, as --text-key takes them: keys of objects in it as `a.b`."""
    names = []
    for key, inner in value.items():
        own = sorted(f"{key}.{name}" for name in inner) if isinstance(inner, _OBJECTS) else []
        names += own[:_KEYS_SHOWN] or [str(key)]
    return sorted(names)


def lost_file(file: SourceFile, error: DamagedFileError) -> Record:
    """The record in the place of all those of a damaged file."""
    what = str(error).removeprefix(str(file.location)).strip().rstrip(".")
    return Record("", Damaged(f"it {what}, as nothing of it is taken", storage.size(file.location)), file.url())


class RecordReader(abc.ABC):
    """One kind of raw file. It has no state: a file's suffix, in any case, decides which reader reads it."""

    suffixes: ClassVar[tuple[str, ...]]
    """Suffixes that it reads, in lower case."""
    may_be_compressed: ClassVar[bool] = True
    """Whether it also reads such files compressed as a whole: `.txt.gz`."""
    has_blocks: ClassVar[bool] = False
    """Whether it has `blocks`."""
    one_text_a_file: ClassVar[bool] = False
    """Whether a file is one text, with its metadata in a sidecar: `page.json` or `page.txt.json` for `page.txt`."""

    @classmethod
    def all_suffixes(cls) -> list[str]:
        """The suffixes of the files that it reads, compressed ones too."""
        compressed = COMPRESSED_SUFFIXES if cls.may_be_compressed else ()
        return [suffix + compression for suffix in cls.suffixes for compression in ("", *compressed)]

    @abc.abstractmethod
    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """The records of a file, in order.

        Raises InputError where the file as a whole can't be read: DamagedFileError where it is not what was written,
        after some records that may be wrong.
        """

    def read_around_damage(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """The records of a file that may be damaged, in order; in each place where it is, one that is `Damaged`.

        All that can't be told from what is right is lost: here the file, as a whole. What is read is read twice.
        """
        try:
            collections.deque(self.read(file, keys), 0)
        except DamagedFileError as error:
            yield lost_file(file, error)
        else:
            yield from self.read(file, keys)

    def parts(self, location: Location, size: int) -> list[FilePart]:
        """Parts of about `size` bytes that `read` can read by themselves, in order, their `first` not yet known.

        None where a file can only be read from its beginning.
        """
        return []

    def count(self, location: Location, part: FilePart) -> int:
        """How many records (lines, rows) a part has, by which the one after it is numbered."""
        raise NotImplementedError

    def blocks(self, location: Location, chunks: Iterable[bytes], size: int, head: Any) -> Iterator[FileBlock]:
        """The records in `chunks`, a file's content in UTF-8 from some block on, in blocks of about `size` bytes.

        `head` is that of the block before, None at the beginning.

        Raises InputError where the file can't be read, and OtherKindError.
        """
        raise NotImplementedError
