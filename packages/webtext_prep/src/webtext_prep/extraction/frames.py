"""Frames in the pipes between a pool and its workers: a head (MessagePack) and a body of plain bytes.

A body is copied out of the pipe once and never encoded. Reading goes through one buffer that is used again: a fresh
one of a megabyte for each read costs three times the read, since the kernel must first make its pages.
"""

from __future__ import annotations

import os
import struct

HEADER = struct.Struct("<II")
"""In front of each frame: the bytes of its head, and of its body."""
_BUFFER = 1 << 18


class FrameReader:
    """Reads the frames of a pipe, which may be non-blocking.

    Args:
        file: the descriptor to read from; whoever opened it closes it.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._buffer = bytearray(_BUFFER)
        self._start = self._end = 0  # what has been received and not been taken

    def receive(self) -> bool:
        """Read once, as much as there is; False at the end. Raises BlockingIOError as the descriptor does."""
        self._make_room()
        with memoryview(self._buffer) as view, view[self._end :] as free:
            count = os.readv(self._file, [free])
        self._end += count
        return count > 0

    def take(self) -> tuple[bytes, bytes] | None:
        """Head and body of the next frame, or None where not all of it has been received."""
        length = self._next_length()
        if self._end - self._start < max(length, HEADER.size):
            return None
        head_bytes, _ = HEADER.unpack_from(self._buffer, self._start)
        head, end = self._start + HEADER.size, self._start + length
        with memoryview(self._buffer) as view:
            found = bytes(view[head : head + head_bytes]), bytes(view[head + head_bytes : end])
        self._start = end
        return found

    def read(self) -> tuple[bytes, bytes] | None:
        """The next frame of a blocking pipe, or None at its end."""
        while (found := self.take()) is None:
            if not self.receive():
                return None
        return found

    def _next_length(self) -> int:
        """The bytes of the next frame with its header, 0 while that is not known."""
        if self._end - self._start < HEADER.size:
            return 0
        return HEADER.size + sum(HEADER.unpack_from(self._buffer, self._start))

    def _make_room(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _BUFFER:
                self._buffer = bytearray(_BUFFER)  # it was made for one large page
        wanted = max(self._next_length(), HEADER.size)
        if self._start + wanted > len(self._buffer) or self._end == len(self._buffer):
            del self._buffer[: self._start]
            self._start, self._end = 0, self._end - self._start
            self._buffer.extend(bytes(max(wanted, _BUFFER) - len(self._buffer)))


def frame(head: bytes, body: bytes = b"") -> list[bytes]:
    """A frame as the pieces to write one after another."""
    return [HEADER.pack(len(head), len(body)) + head, body]
