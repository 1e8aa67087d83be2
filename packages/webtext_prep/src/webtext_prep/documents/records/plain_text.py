"""Files that are one text each, plain or Markdown, with their metadata in a JSON file beside them, if anywhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, ClassVar
from urllib.parse import unquote

from command_kit import parse_json
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.compression import COMPRESSED_SUFFIXES, MAX_LINE_BYTES
from webtext_prep.documents.formats.front_matter import split_front_matter
from webtext_prep.documents.formats.lines import EncodingError, read_utf8
from webtext_prep.documents.records.base import Keys, Record, RecordReader, SourceFile, Unreadable
from webtext_prep.documents.records.json_lines import decode_utf8
from webtext_prep.urls.urls import clean_metadata, without_credentials

_WEB = ("http://", "https://")
_PAGE = re.compile(r"(?:\s|<\?xml[^>]*>|<!--(?s:.*?)-->)*+<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)


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
    """The metadata beside a file, if there is any. Raises Unreadable."""
    if file.sidecar is None:
        return {}
    try:
        value = parse_json(storage.read_bytes(file.sidecar))
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
