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
        self._keys: set[bytes] = set()

    def add(self, keys: bytes) -> bool:
        """Add a document; False where it, or the page that it is a piece of, came before."""
        page, piece = binascii.unhexlify(keys[:_DIGITS]), binascii.unhexlify(keys[_DIGITS:])
        in_pieces = page + b"#"
        if page in self._keys or (piece or in_pieces) in self._keys:
            return False
        self._keys.update([piece, in_pieces] if piece else [page])
        return True
