"""A file that is read by ranges, the next of which is fetched while this one is read.

A range of an object costs a request, whose answer takes some ten milliseconds to begin: each is larger than the one
before it, up to `MOST_BYTES`, as long as the file is read from one end to the other. A reader that jumps (Parquet,
whose directory is at the end) begins again with a small one.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from webtext_prep.storage.stores.answers import in_background

FIRST_BYTES = 1 << 20
"""The first range, and that behind a jump."""
MOST_BYTES = 8 << 20
"""The largest range; two of them are held at once."""
BUFFER_BYTES = 1 << 17
"""What small reads are answered from without coming here."""


class ReadAhead(io.RawIOBase):
    """The bytes of a file.

    Args:
        fetch: gives the bytes from one offset up to another, as a buffer. Is called in threads of this reader.
        size: bytes of the file.
        first: its first bytes.
    """

    def __init__(self, fetch: Callable[[int, int], Any], size: int, first: Any) -> None:
        self._fetch, self._size = fetch, size
        self._at = self._begin = 0
        self._block = memoryview(first)  # the range at hand
        self._next: Future[Any] | None = None  # the range behind it
        self._step = FIRST_BYTES

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
        found = self._block[self._at - self._begin :][:wanted]
        buffer[: len(found)] = found
        self._at += len(found)
        end = self._begin + len(self._block)
        if self._next is None and self._at - self._begin >= len(self._block) // 2 and end < self._size:
            self._step = min(MOST_BYTES, 2 * self._step)
            self._next = in_background(functools.partial(self._fetch, end, min(self._size, end + self._step)))
        return len(found)

    def readall(self) -> bytes:
        """All that follows."""
        found = bytearray(max(0, self._size - self._at))
        view, filled = memoryview(found), 0
        while filled < len(found):
            filled += self.readinto(view[filled:])
        return bytes(found)

    def _move(self, wanted: int) -> None:
        """Make the range that begins here the one at hand."""
        if self._next is not None and self._at == self._begin + len(self._block):
            block = self._next.result()
        else:
            self._step = FIRST_BYTES
            block = self._fetch(self._at, min(self._size, self._at + max(FIRST_BYTES, min(MOST_BYTES, wanted))))
        self._begin, self._block, self._next = self._at, memoryview(block), None

    def close(self) -> None:
        """Forget what was fetched."""
        self._next, self._block = None, memoryview(b"")
        super().close()
