"""What becomes of the URLs of a block, and the plain code that says it: for short lists, and to compare with.

Loading the compiled code takes a second, and compiling it, once, ten: a list that is judged sooner does without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.urls import url_key
from webtext_prep.running.tally import with_reason


def batches(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same lines in blocks of about `size` bytes: small ones put together, large ones cut."""
    waiting: list[bytes] = []
    total = 0
    for block in blocks:
        waiting.append(block)
        total += len(block)
        if total >= size:
            whole, start = b"".join(waiting), 0
            while start < len(whole):
                end = len(whole) if len(whole) - start <= 2 * size else whole.index(b"\n", start + size) + 1
                yield whole[start:end]
                start = end
            waiting, total = [], 0
    if waiting:
        yield b"".join(waiting)


@dataclass
class Judged:
    """What became of the URLs of a block.

    Attributes:
        read: how many there were.
        kept: those to keep as rows of JSON, each with its newline.
        kept_count: how many.
        dropped: the others with their reasons, if asked for.
        reasons: reason to number.
    """

    read: int
    kept: memoryview
    kept_count: int
    dropped: memoryview
    reasons: Counter[str] = field(default_factory=Counter)


class PlainJudge:
    """Judges block after block; a URL whose key was in an earlier block, or before in its own, is a duplicate.

    Args:
        judge: says of a URL why to drop it, or None.
        read: the row in a line.
        keep_dropped: whether the rows that are dropped are wanted, too.
    """

    def __init__(
        self, judge: Callable[[str], str | None], read: Callable[[bytes], Document], *, keep_dropped: bool
    ) -> None:
        self._judge, self._read, self._keep_dropped = judge, read, keep_dropped
        self._known: set[str] = set()

    def judge(self, block: bytes) -> Judged:
        """Judge the URLs of a block: whole lines, each with its newline."""
        lines = block.split(b"\n")[:-1]
        kept, dropped = bytearray(), bytearray()
        reasons: Counter[str] = Counter()
        for line in lines:
            row = self._read(line)
            reason = self._judge(row.url)
            if reason is None:
                key = url_key(row.url)
                reason = "duplicate" if key in self._known else None
                self._known.add(key)
            if reason is None:
                kept += encode_document(row) + b"\n"
                continue
            reasons[reason] += 1
            if self._keep_dropped:
                dropped += encode_document(with_reason(row, reason)) + b"\n"
        count = len(lines) - reasons.total()
        return Judged(len(lines), memoryview(kept), count, memoryview(dropped), reasons)
