"""Which pages came before: each page is kept once, whole or each of its pieces."""

from __future__ import annotations

import binascii

import xxhash

from webtext_prep.documents.document import Document, piece_id

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
        self._numbers: dict[bytes, int] = {}
        self._count = 0

    def add(self, keys: bytes) -> int | None:
        """Add a document, unless it, or the page that it is a piece of, came before: then the number of that one, which
        is how many were added before it."""
        page, piece = binascii.unhexlify(keys[:_DIGITS]), binascii.unhexlify(keys[_DIGITS:])
        in_pieces = page + b"#"
        for key in (page, piece or in_pieces):
            if (first := self._numbers.get(key)) is not None:
                return first
        for key in (piece, in_pieces) if piece else (page,):
            self._numbers.setdefault(key, self._count)
        self._count += 1
        return None
