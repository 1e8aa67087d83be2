"""The body of an HTTP answer as it lies in an archive: its chunks put together and decompressed, against a cap.

Archives keep what was sent, or what was decoded of it, under headers that may still tell of the former: a body that is
not as its headers say, but begins like a page, is taken as it is.
"""

from __future__ import annotations

import io
import re

from fastwarc.stream_io import BrotliReader, ZstdReader

from webtext_prep.crawl.http.bodies import CutShortError, DamagedBodyError, Decompressor, TooLargeError
from webtext_prep.crawl.http.media_types import looks_like

_CHUNK = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(?:;[^\r\n]{0,4096})?\r?\n")
_BY_LIBRARY = {"br": BrotliReader, "zstd": ZstdReader}
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", *_BY_LIBRARY})
"""Other names (`utf-8`, `none`, `aws-chunked`) are mistakes, and say nothing of how a body lies in an archive."""


def decoded(body: bytes, transfer: str, encodings: str, *, limit: int, may_be_cut: bool) -> bytes:
    """A body without its chunks and decompressed.

    Args:
        body: as it lies in the archive.
        transfer: the header `Transfer-Encoding`.
        encodings: the header `Content-Encoding`.
        limit: bytes beyond which it raises TooLargeError.
        may_be_cut: take what there is of a body that breaks off.

    Raises DamagedBodyError if it is not encoded as the headers say, and CutShortError if it breaks off.
    """
    if "chunked" in transfer.lower():
        body = without_chunks(body, may_be_cut=may_be_cut)
    names = [name.strip() for name in encodings.lower().split(",")]
    are_known = all(name in _CODINGS or name in ("", "identity") for name in names)
    for name in reversed(names):
        if name not in _CODINGS or not body:
            continue
        try:
            body = _decompressed(body, name, limit, may_be_cut=may_be_cut)
        except DamagedBodyError:
            if looks_like(body) not in ("html", "text"):
                raise
    if not are_known and looks_like(body) not in ("html", "text"):
        raise DamagedBodyError(encodings)
    return body


def without_chunks(body: bytes, *, may_be_cut: bool = False) -> bytes:
    """A body without the sizes between its chunks; as it is if it does not begin with one."""
    pieces: list[bytes] = []
    at = 0
    while (found := _CHUNK.match(body, at)) is not None:
        size = int(found[1], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(body[found.end() : found.end() + size])
        at = found.end() + size
        if at > len(body):
            break
        at += 2 if body.startswith(b"\r\n", at) else 1 if body.startswith(b"\n", at) else 0
    if not pieces:
        return body
    if at < len(body):
        raise DamagedBodyError("chunked")
    if not may_be_cut:
        raise CutShortError("chunked")
    return b"".join(pieces)


def _decompressed(body: bytes, name: str, limit: int, *, may_be_cut: bool) -> bytes:
    if name in _BY_LIBRARY:
        try:
            found = _BY_LIBRARY[name](io.BytesIO(body)).read(limit + 1)
        except OSError as error:
            raise DamagedBodyError(name) from error
        if len(found) > limit:
            raise TooLargeError
        return found
    decompressor, pieces, size = Decompressor(name), [], 0
    for piece in decompressor.steps(body):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise TooLargeError
    if not may_be_cut:
        decompressor.finish()
    return b"".join(pieces)
