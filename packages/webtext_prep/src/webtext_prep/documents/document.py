"""A document, and its form as one JSON object: `url`, all metadata, and `text`.

A row of a URL list is the same without `text`. Where a page was cut into several documents, the metadata `piece` says
which one a document is; see `Document.id`. What works on many documents at once takes them in batches.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from webtext_prep.urls.urls import clean_metadata, domain_of, without_credentials

_decoder, _encoder = msgspec.json.Decoder(), msgspec.json.Encoder()
_decode, _encode = _decoder.decode, _encoder.encode

Item = TypeVar("Item")

PIECE = "piece"
"""The key of metadata that says which piece of a page a document is."""
_HASH, _BRACE = b"#{"
_PIECE = re.compile(r"\d+(-\d+)*")
_PIECE_ID = re.compile(rf"#piece-({_PIECE.pattern})$")


@dataclass(slots=True)
class Document:
    """One page: its text, the URL it came from, and what else is known of it (title, domain, language, ...)."""

    url: str
    text: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def piece(self) -> str:
        """Which piece of its page it is: `2`, or `2-1` where a piece was cut again; empty if it is none."""
        value = self.metadata.get(PIECE)
        if value is None:
            return ""
        if isinstance(value, float) and value.is_integer():  # as data frames give it back
            value = int(value)
        text = str(value)
        return text if not isinstance(value, bool) and _PIECE.fullmatch(text) else ""

    @property
    def id(self) -> str:
        """What tells it from other documents: its URL, and of a piece of a page also which one it is.

        The URL of its page is what `url_key` makes of both.

        >>> Document("http://example.com/a", "The second half.", {"piece": 2}).id
        'http://example.com/a#piece-2'
        """
        return piece_id(self.url, self.piece)

    @property
    def domain(self) -> str:
        """The registered domain that it comes from, by its metadata or else its URL; empty where there is none."""
        found = self.metadata.get("domain")
        return found if isinstance(found, str) else domain_of(self.url)

    def cut(self, texts: Sequence[str]) -> Iterator[Document]:
        """The documents that it falls into: the same but for their texts, and with their number as a `piece`."""
        whole = self.piece
        for number, text in enumerate(texts, 1):
            yield Document(self.url, text, {**self.metadata, PIECE: f"{whole}-{number}" if whole else number})


def piece_id(url: str, piece: str) -> str:
    """The identity of a piece of a page; of the page itself if `piece` is empty."""
    return f"{url}#piece-{piece}" if piece else url


def piece_in(identity: str) -> str:
    """The number of the piece that a `Document.id` names; empty for a page."""
    found = _PIECE_ID.search(identity)
    return found[1] if found else ""


def encode_document(document: Document) -> bytes:
    """One line of JSON, without the newline. Lone surrogates, which are not valid Unicode, are removed."""
    row: dict[str, Any] = {"url": document.url, **document.metadata}
    if document.text:
        row["text"] = document.text
    return encode_json(row)


def encode_json(value: Any) -> bytes:
    """A JSON-like value as JSON, without the lone surrogates in its strings."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(without_surrogates(value))


def without_surrogates(value: Any) -> Any:
    """A JSON-like value without the lone surrogates in its strings."""
    if isinstance(value, str):
        return value.encode("utf-8", errors="ignore").decode("utf-8")
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_surrogates(entry) for entry in value]
    return value


def decode_document(line: bytes) -> Document:
    """The document in one line of JSON, its URLs without credentials. Raises ValueError saying what is wrong."""
    row = _decode(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    url, text = row.pop("url", None), row.pop("text", "")
    if not isinstance(url, str) or not url:
        raise ValueError("no url")
    if not isinstance(text, str):
        raise ValueError("text is not a string")
    return Document(without_credentials(url), text, clean_metadata(row))


def decode_heads(lines: bytes) -> list[Document] | None:
    """As `decode_document`, the documents without texts in some lines; None if `encode_document` does not write all of
    them just so."""
    try:
        rows = _decoder.decode_lines(lines)
        if b"@" in lines:
            for row in rows:
                clean_metadata(row)["url"] = without_credentials(row["url"])
        if _encoder.encode_lines(rows) == lines and all(row["url"] and "text" not in row for row in rows):
            return [Document(row.pop("url"), "", row) for row in rows]
    except (msgspec.DecodeError, ValueError, RecursionError, TypeError, KeyError):
        pass  # whoever decodes them one by one says what is wrong
    return None


def with_metadata_of(listed: Document, line: bytes, own: Collection[str]) -> bytes:
    """A document's line with the metadata of the list that named it put before its own, which counts where both have a
    key. It is the bytes that decoding and encoding it again would give, at a tenth of their cost.

    Args:
        listed: the row of the list, with the URL of the document.
        line: the document, as `encode_document` wrote it.
        own: all keys that the document's own metadata may have.
    """
    start = encode_document(Document(listed.url))[:-1]
    # Where there is an "@", decoding looks for credentials, which an earlier version may have left.
    if b"@" in line or not line.startswith(start) or not listed.metadata.keys().isdisjoint(own):
        document = decode_document(line)
        document.metadata = {**listed.metadata, **document.metadata}
        return encode_document(document)
    if not listed.metadata:
        return line
    return encode_document(Document(listed.url, "", listed.metadata))[:-1] + line[len(start) :]


def decode_url_row(line: bytes) -> Document | None:
    """The URL in one line of a list, bare or as a JSON object with `url` and metadata; None for an empty line or `#`.

    A line that looks like JSON but holds no URL is returned unchanged; the caller finds that it is not a URL.
    """
    line = line.strip()
    if not line or line[0] == _HASH:
        return None
    if line[0] == _BRACE:
        with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
            document = decode_document(line)
            document.text = ""
            return document
    return Document(line.decode("utf-8", "replace"))


BATCH_DOCUMENTS = 256
"""The largest number of documents in a batch."""
BATCH_SIZE = 4 << 20
"""Characters of text with which a batch is full."""


def in_batches(items: Iterable[Item], most: int, size: int, size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in order, in batches that end with the item that makes them `most` or as large as `size`; none is empty."""
    batch: list[Item] = []
    held = 0
    for item in items:
        batch.append(item)
        held += size_of(item)
        if len(batch) == most or held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """The documents in order, in batches that are not empty."""
    return in_batches(documents, BATCH_DOCUMENTS, BATCH_SIZE, lambda document: len(document.text))
