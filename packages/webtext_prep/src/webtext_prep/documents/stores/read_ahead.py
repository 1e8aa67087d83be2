"""A file that is read by ranges, the next of which is fetched while this one is read.

A range of an object costs a request, whose answer takes some ten milliseconds to begin: each is larger than the one
before it, up to `MOST_BYTES`, as long as the file is read from one end to the other. A reader that jumps (Parquet,
whose directory is at the end) begins again with a small one.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

FIRST_BYTES = 1 << 20
"""The first range, and that behind a jump."""
MOST_BYTES = 8 << 20
"""The largest range; two of them are held at once."""
BUFFER_BYTES = 1 << 17
"""What small reads are answered from without coming here."""

Fetch = Callable[[int, int], bytes]
"""Fetches the bytes from one offset up to another. Raises OSError."""


class ReadAhead(io.RawIOBase):
    """The bytes of a file, by `fetch`.

    Args:
        fetch: is called in threads of this reader, by one at a time.
        size: bytes of the file.
        first: its first bytes, if they are there already.
    """

    def __init__(self, fetch: Fetch, size: int, first: bytes = b"") -> None:
        self._fetch, self._size = fetch, size
        self._at = 0
        self._begin, self._block = 0, first  # the range at hand
        self._next: Future[bytes] | None = None  # the range behind it
        self._step = FIRST_BYTES
        self._is_passing = False  # whether this range followed the one before it

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where it reads next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file; nothing is fetched before something is read."""
        target = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if target < 0:
            raise ValueError(f"negative position {target}")
        self._at = target
        return target

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the range at hand, or the one that follows. Raises OSError as `fetch` does."""
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        if not self._begin <= self._at < self._begin + len(self._block):
            self._move(wanted)
        offset = self._at - self._begin
        found = memoryview(self._block)[offset : offset + wanted]
        buffer[: len(found)] = found
        self._at += len(found)
        if self._is_passing or 2 * (self._at - self._begin) >= len(self._block):
            self._fetch_ahead()
        return len(found)

    def readall(self) -> bytes:
        """All that follows."""
        found = bytearray(max(0, self._size - self._at))
        view, filled = memoryview(found), 0
        while filled < len(found):
            filled += self.readinto(view[filled:])
        return bytes(found)

    def _move(self, wanted: int) -> None:
        """Make the range that begins here, or holds it, the one at hand."""
        end = self._begin + len(self._block)
        if self._at == end and self._next is not None:
            waiting, self._next = self._next, None
            self._begin, self._block, self._is_passing = end, waiting.result(), True
            return
        self._is_passing = bool(self._block) and self._at == end
        self._next, self._step = None, FIRST_BYTES
        stop = min(self._size, self._at + min(MOST_BYTES, max(FIRST_BYTES, wanted)))
        self._begin, self._block = self._at, self._fetch(self._at, stop)

    def _fetch_ahead(self) -> None:
        begin = self._begin + len(self._block)
        if self._next is None and begin < self._size:
            self._step = min(MOST_BYTES, 2 * self._step)
            self._next = _in_background(self._fetch, begin, min(self._size, begin + self._step))

    def close(self) -> None:
        """Forget what was fetched."""
        self._next, self._block = None, b""
        super().close()


def _in_background(call: Fetch, begin: int, end: int) -> Future[bytes]:
    """What a call returns or raises; a process that ends does not wait for it."""
    future: Future[bytes] = Future()

    def work() -> None:
        try:
            future.set_result(call(begin, end))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="read-ahead", daemon=True).start()
    return future
