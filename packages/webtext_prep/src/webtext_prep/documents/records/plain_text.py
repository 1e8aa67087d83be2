"""Files that are one text each, plain or Markdown, with their metadata in a JSON file next to them, if anywhere.

A Markdown file may begin with metadata, as blogs and documentation have it: YAML or TOML between two lines.

    ---                 or  +++
    title: On whales        title = "On whales"
    ---                     +++

It is metadata only if all of it is: a horizontal rule (`---`) at the beginning of a text leaves the text as it is.
YAML's references are refused, by which a few lines grow to gigabytes, and so is deep nesting.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, ClassVar
from urllib.parse import unquote

import msgspec

from command_kit import parse_json
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.compression import COMPRESSED_SUFFIXES, MAX_LINE_BYTES
from webtext_prep.documents.formats.lines import EncodingError, read_utf8
from webtext_prep.documents.records.base import Keys, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.documents.records.json_files import decode_utf8
from webtext_prep.errors import StorageError
from webtext_prep.urls.urls import clean_metadata, without_credentials

MOST_CHARACTERS = 64 << 10
"""A longer front matter is taken for text."""
MOST_NESTED = 32
"""Deeper YAML is taken for text: the time to read it grows with the square of its depth, and the stack with it."""
_DELIMITED = re.compile(r"(---|\+\+\+)[ \t]*\r?\n")


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The metadata at the beginning of `text`, and the text after it; no metadata and all of the text if it has none.

    >>> split_front_matter("+++\\nn = 1\\n+++\\n\\nText.")
    ({'n': 1}, 'Text.')
    """
    begin = _DELIMITED.match(text)
    if begin is None:
        return {}, text
    # YAML may also end as a document does.
    ends = r"(?:---|\.\.\.)" if begin[1] == "---" else r"\+\+\+"
    end = re.compile(rf"^{ends}[ \t]*(?:\r?\n|\Z)", re.MULTILINE).search(text, begin.end(), MOST_CHARACTERS)
    if end is None:
        return {}, text
    found = _parsed(text[begin.end() : end.start()], is_yaml=begin[1] == "---")
    return (found, text[end.end() :].lstrip("\r\n")) if found else ({}, text)


def _parsed(text: str, *, is_yaml: bool) -> dict[str, Any]:
    """The metadata as JSON-like values, or none where it is not a table of names and values."""
    try:
        found = _load_yaml(text) if is_yaml else tomllib.loads(text)
        plain = msgspec.to_builtins(found, str_keys=True)
        msgspec.json.encode(plain)  # a number may be larger than JSON's
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _load_yaml(text: str) -> Any:
    """What YAML says, or None where it is nested deep or refers to itself: found before anything is made of it."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_NESTED or isinstance(event, yaml.AliasEvent):
                return None
        return yaml.load(text, loader)  # noqa: S506 - both of them are safe loaders
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_WEB = ("http://", "https://")
_PAGE = re.compile(r"(?>(?:\s|<\?xml[^>]*>|<!--(?s:.*?)-->)*)<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)


class TextRecords(RecordReader):
    """A text; its URL is in its sidecar, or is the file's name, decoded: `https%3A%2F%2Fexample.com%2Fa.txt`."""

    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".text")
    one_text_a_file: ClassVar[bool] = True

    def read(self, file: SourceFile, keys: Keys) -> Iterator[Record]:
        """See `RecordReader`."""
        url = url_from_name(file, self.suffixes)
        try:
            metadata, text = self.split(decode_utf8(_whole(file)), keys)
            metadata |= read_sidecar(file)
            _, own_url = keys.take_url(metadata)
            metadata.pop("text", None)
            yield Record("", Document(without_credentials(own_url or url), text, clean_metadata(metadata)), url)
        except Unreadable as error:
            yield Record("", error, url)

    def split(self, text: str, keys: Keys) -> tuple[dict[str, Any], str]:
        """Metadata from the file itself, and its text. Where there is a sidecar, that wins."""
        return {}, text


class MarkdownRecords(TextRecords):
    """A text in Markdown, kept as it is but for its front matter, which is metadata; its first heading is its title.

    A URL in the front matter counts where it is a whole one: often it is a path on the site that the file is part of.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".md", ".markdown")
    _MARKS = re.compile(r"^ {0,3}(?:(```|~~~)|#{1,6}[ \t]+(\S.*)$)", re.MULTILINE)

    def split(self, text: str, keys: Keys) -> tuple[dict[str, Any], str]:
        """See `TextRecords`."""
        metadata, text = split_front_matter(text)
        with contextlib.suppress(Unreadable):
            key, url = keys.take_url(metadata)
            if url.startswith(_WEB):
                metadata[key] = url
        return self._title(text) | metadata, text

    def _title(self, text: str) -> dict[str, Any]:
        in_code = ""
        for fence, heading in (found.groups() for found in self._MARKS.finditer(text)):
            if heading and not in_code:
                return {"title": _without_closing_marks(heading.rstrip())}
            if fence:
                in_code = "" if fence == in_code else in_code or fence
        return {}


def _without_closing_marks(heading: str) -> str:
    """`Title ##` -> `Title`, but `C#` stays."""
    bare = heading.rstrip("#")
    return bare.rstrip() if bare.endswith((" ", "\t")) else heading


def _whole(file: SourceFile) -> bytes:
    data = bytearray()
    try:
        for chunk in read_utf8(file.location):
            data += chunk
            if len(data) > MAX_LINE_BYTES:
                raise Unreadable(f"a text of more than {MAX_LINE_BYTES >> 20} MiB", "split it into smaller files")
    except EncodingError as error:
        raise Unreadable("not in the encoding that its first bytes declare", error) from error
    return bytes(data)


def looks_like_html(text: str) -> bool:
    """Whether a text begins as web pages do."""
    return _PAGE.match(text[:4096]) is not None


def read_sidecar(file: SourceFile) -> dict[str, Any]:
    """The metadata next to a file, if there is any. Raises Unreadable, and StorageError where that may pass."""
    if file.sidecar is None:
        return {}
    try:
        value = parse_json(storage.read_bytes(file.sidecar))
    except StorageError:
        raise  # says nothing of the file
    except (OSError, ValueError) as error:
        raise Unreadable("its metadata can't be read", f"{file.sidecar.name}: {error}") from error
    if not isinstance(value, dict):
        raise Unreadable("its metadata is not a JSON object", file.sidecar.name)
    return value


def url_from_name(file: SourceFile, suffixes: tuple[str, ...]) -> str:
    """The URL that is a file's name, escaped, but for its `suffixes`; else the `file:` one."""
    bare = file.name.rsplit("/", 1)[-1]
    for known in (COMPRESSED_SUFFIXES, suffixes):
        if PurePosixPath(bare).suffix.lower() in known:
            bare = bare.rsplit(".", 1)[0]
    decoded = unquote(bare)
    return without_credentials(decoded) if decoded.startswith(_WEB) else file.url()
