"""A document, and its form as one JSON object: `url`, all metadata, and `text`.

A row of a URL list is the same without `text`. Where a page was cut into several documents, the metadata `piece` says
which one a document is; see `Document.id`. Whether a page came before is asked of `SeenPages`. A `Condition` is one on
the metadata: `reddit_score >= 10`, `language == en`.
"""

from __future__ import annotations

import binascii
import contextlib
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import xxhash

from webtext_prep.errors import InputError
from webtext_prep.urls.urls import clean_metadata, domain_of, without_credentials

Item = TypeVar("Item")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

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
    """Which piece of its page a `Document.id` stands for; empty for a whole one."""
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


def with_metadata_of(asked: Document, line: bytes, own: Collection[str]) -> bytes:
    """A document's line with the metadata of the list that named it put before its own, which counts where both have a
    key. It is the bytes that decoding and encoding it again would give, at a tenth of their cost.

    Args:
        asked: the row of the list, with the URL of the document.
        line: the document, as `encode_document` wrote it.
        own: all keys that the document's own metadata may have.
    """
    start = encode_document(Document(asked.url))[:-1]
    # Where there is an "@", decoding looks for credentials, which an earlier version may have left.
    if b"@" in line or not line.startswith(start) or not asked.metadata.keys().isdisjoint(own):
        document = decode_document(line)
        document.metadata = {**asked.metadata, **document.metadata}
        return encode_document(document)
    return (
        encode_document(Document(asked.url, "", asked.metadata))[:-1] + line[len(start) :] if asked.metadata else line
    )


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


MOST = 256
"""Documents of a batch, at the most,"""
CHARACTERS = 4 << 20
"""or until their texts have this many characters."""


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
    return in_batches(documents, MOST, CHARACTERS, lambda document: len(document.text))


_DIGITS = 32


def page_keys(document: Document, page: str) -> bytes:
    """What stands before a document's line: the hash of its page, and after it, for a piece, the hash of its identity.

    Args:
        document: the document.
        page: the `url_key` of its URL. A name that came from a file says little, as other folders may have a file of
            that name: there the text counts, too.
    """
    hashed, own = [page], piece_id(page, document.piece)
    if document.url.startswith("file:") and not document.url.startswith("file:/"):
        hashed = [f"{own}#{document.text}"]
    elif document.piece:
        hashed = [page, own]
    return b"".join(xxhash.xxh3_128_hexdigest(key.encode("utf-8", "surrogatepass")).encode() for key in hashed)


class SeenPages:
    """Which documents came before, by their `page_keys`: each page once, whole or each of its pieces."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def add(self, keys: bytes) -> bool:
        """Add a document; False where it, or the page that it is a piece of, came before."""
        page, piece = binascii.unhexlify(keys[:_DIGITS]), binascii.unhexlify(keys[_DIGITS:])
        in_pieces = page + b"#"
        if page in self._keys or (piece or in_pieces) in self._keys:
            return False
        self._keys.update([piece, in_pieces] if piece else [page])
        return True


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_CONDITION = re.compile(
    rf"""\s*([\w.-]+)\s*({"|".join(_COMPARISONS)})\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^'"=\s].*?))\s*"""
)
_OTHER_CONDITION = re.compile(rf"\b(?:and|or)\b|&&|\|\||{'|'.join(_COMPARISONS)}", re.IGNORECASE)
"""What a value can't hold unless it is in quotes."""


@dataclass(frozen=True)
class Condition:
    """A comparison of one key of the metadata with a number, or with a text.

    Attributes:
        key: of the metadata; `score` is also that of Reddit (`reddit_score`).
        comparison: one of `>=`, `<=`, `==`, `!=`, `>`, `<`.
        value: what it is compared with.
    """

    key: str
    comparison: str
    value: float | str

    @classmethod
    def parse(cls, text: str, flag: str) -> Condition:
        """`score >= 10` -> Condition("score", ">=", 10.0), where quotes make a text of a number.

        Raises InputError, which names the flag.
        """
        found = _CONDITION.fullmatch(text)
        if found is None or found["bare"] == "nan":
            raise InputError(f"{flag} {text!r} is no condition: give KEY, a comparison and a value, as 'score >= 10'.")
        value = found["bare"]
        if value is None:
            return cls(found[1], found[2], found["single"] or found["double"] or "")
        if other := _OTHER_CONDITION.search(value):
            raise InputError(
                f"{flag} {text!r}: {other[0]} is not understood: give one condition (`webtext filter "
                "--function` chooses by several), or put a text that holds the word in quotes."
            )
        try:
            return cls(found[1], found[2], float(value))
        except ValueError:
            return cls(found[1], found[2], value)

    def known(self, document: Document) -> Any:
        """The value of the key in a document; None where it is missing."""
        known = document.metadata.get(self.key)
        return document.metadata.get("reddit_score") if known is None and self.key == "score" else known

    def compares(self, known: Any) -> bool:
        """Whether a value of a document is of the kind that it is compared with."""
        return not isinstance(known, bool) and isinstance(known, str if isinstance(self.value, str) else (int, float))

    def holds(self, document: Document) -> bool:
        """Whether it is true of a document: never where the key is missing, or holds another kind of value."""
        known = self.known(document)
        return self.compares(known) and bool(_COMPARISONS[self.comparison](known, self.value))

    @property
    def kind(self) -> str:
        """What it compares."""
        return "text" if isinstance(self.value, str) else "number"
