"""A document, and the shards in which documents lie on disk.

A shard is `part-00000.jsonl.zst`: one JSON object a line with `url`, whatever metadata there is, and `text`; a row of
a URL list is the same without `text`. The bytes of a shard follow from its documents alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from webtext_prep.documents.compression import read_lines, write_zstd
from webtext_prep.errors import InputError

SHARD_SUFFIX = ".jsonl.zst"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Document:
    """One page: its text, the URL it came from, and what else is known of it (title, domain, language, ...)."""

    url: str
    text: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


def shard_name(number: int) -> str:
    """0 -> `part-00000.jsonl.zst`."""
    return f"part-{number:05}{SHARD_SUFFIX}"


def encode_document(document: Document) -> bytes:
    """One line of JSON, without the newline. Text that is no valid Unicode (lone surrogates) loses those marks."""
    row: dict[str, Any] = {"url": document.url, **document.metadata}
    if document.text:
        row["text"] = document.text
    try:
        return _encode(row)
    except UnicodeEncodeError:
        return _encode(_without_surrogates(row))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="ignore").decode("utf-8")
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(entry) for entry in value]
    return value


def decode_document(line: bytes) -> Document:
    """The document in one line of JSON. Raises ValueError saying what is wrong with it."""
    row = _decode(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    url, text = row.pop("url", None), row.pop("text", "")
    if not isinstance(url, str) or not url:
        raise ValueError("no url")
    if not isinstance(text, str):
        raise ValueError("text is not a string")
    return Document(url, text, row)


def decode_url_row(line: bytes) -> Document | None:
    """The URL in one line of a list, bare or as a JSON object with `url` and metadata; None for an empty line or `#`.

    What looks like JSON but holds no URL is given back as it is, for the caller to find that it is none.
    """
    line = line.strip()
    if not line or line.startswith(b"#"):
        return None
    if line.startswith(b"{"):
        with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
            document = decode_document(line)
            document.text = ""
            return document
    return Document(line.decode("utf-8", "replace"))


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of one shard, in order. Raises InputError naming file and line for a line that holds none."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            yield decode_document(line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InputError(
                f"{path}, line {number}, holds no document ({error}): run `webtext merge` on the folder first, "
                "which passes over what can't be read."
            ) from error


class DocumentWriter:
    """Writes documents to an open shard."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.written = 0

    def write(self, document: Document) -> None:
        """Add one document."""
        self._stream.write(encode_document(document) + b"\n")
        self.written += 1


@contextlib.contextmanager
def write_documents(path: Path) -> Iterator[DocumentWriter]:
    """Open a shard for writing; it appears complete or not at all."""
    with write_zstd(path) as stream:
        yield DocumentWriter(stream)
