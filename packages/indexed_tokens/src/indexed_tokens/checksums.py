"""Checksums of token files: size and CRC-32 of `.bin` and `.idx`, as the record next to them keeps them.

CRC-32 because the whole file's follows from its parts': several processes each write a part, and no byte
is read a second time. The arithmetic is zlib's `crc32_combine`, which Python's zlib does not have: appending n bytes
multiplies the CRC before them by x^(8n), modulo the CRC's polynomial. Costs 0.3 ms a part, and 0.5 s of one core for a
gigabyte.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from command_kit import parse_json
from indexed_tokens.reader import IndexedTokensError, bin_path, idx_path, prefix_of


class Checksum(NamedTuple):
    """Size and CRC-32 of a file, or of a part of one."""

    bytes: int
    crc32: int


def checksum_of(data: bytes | bytearray | memoryview) -> Checksum:
    """The checksum of some bytes."""
    return Checksum(memoryview(data).nbytes, zlib.crc32(data))


def joined(parts: Iterable[Checksum]) -> Checksum:
    """The checksum of what some parts, given by theirs, are one after another."""
    size = crc = 0
    for part in parts:
        size, crc = size + part.bytes, _times(_power(part.bytes), crc) ^ part.crc32
    return Checksum(size, crc)


def _times(one: int, other: int) -> int:
    """The product of two polynomials; the coefficient of x^31 is the lowest bit."""
    product = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = other >> 1 ^ (0xEDB88320 if other & 1 else 0)  # the polynomial of CRC-32
    return product


@functools.lru_cache(maxsize=1024)
def _power(size: int) -> int:
    """x^(8 * size)."""
    found, factor = 1 << 31, 1 << 23  # 1 and x^8
    while size:
        if size & 1:
            found = _times(factor, found)
        factor, size = _times(factor, factor), size >> 1
    return found


def checksum_of_file(path: Path, count: Callable[[int], object] = lambda _: None) -> Checksum:
    """The checksum of a file, read in pieces; `count` gets the size of each. Raises OSError."""
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(16 << 20):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
            count(len(piece))
    return Checksum(size, crc)


def record_path(path: str | Path) -> Path:
    """`corpus_text_document`, or one of its token files -> `corpus_text_document.json`."""
    return Path(f"{prefix_of(path)}.json")


def recorded_facts(path: str | Path) -> dict[str, Any]:
    """The facts that the record of `webtext tokenize` or `merge-tokens` next to token files has; empty without one.

    Raises IndexedTokensError if it can't be read.
    """
    try:
        record = parse_json(record_path(path).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise IndexedTokensError(
            f"can't read {record_path(path)}, the record of the token files next to it ({error}): copy it again, or "
            "remove it to do without."
        ) from error
    # Any file may have that name.
    facts = record.get("facts") if isinstance(record, dict) else None
    return facts if isinstance(facts, dict) else {}


def recorded_checksums(path: str | Path) -> dict[str, Checksum]:
    """The recorded checksums of token files, `bin` and `idx`; empty where none are on record.

    Raises IndexedTokensError if the record is damaged.
    """
    found = recorded_facts(path).get("checksums")
    if found is None:
        return {}
    with contextlib.suppress(KeyError, TypeError):
        kinds = {kind: Checksum(found[kind]["bytes"], found[kind]["crc32"]) for kind in ("bin", "idx")}
        if all(type(number) is int for recorded in kinds.values() for number in recorded):
            return kinds
    raise IndexedTokensError(
        f"{record_path(path)} is damaged, its checksums can't be read: copy it again, or make the files again."
    )


def check_checksum(path: Path, found: Checksum, recorded: Checksum) -> None:
    """Raise IndexedTokensError if a token file is not what is on record."""
    if found != recorded:
        what = (
            f"has {found.bytes:,} bytes where {recorded.bytes:,}"
            if found.bytes != recorded.bytes
            else f"has the CRC-32 {found.crc32:08x} where {recorded.crc32:08x}"
        )
        raise IndexedTokensError(
            f"{path} {what} is on record in {record_path(path).name}: it was damaged or replaced; make it again, or "
            "copy the record that belongs to it."
        )


def check_token_files(
    path: str | Path, *, whole: bool = False, count: Callable[[int], object] = lambda _: None
) -> bool:
    """Compare token files with the checksums on record; False if there are none.

    Args:
        path: the prefix, or the path of either file.
        whole: read the `.bin`, too; without it only its size is compared, and the index is read.
        count: called with the bytes read since the last call.

    Raises IndexedTokensError naming the file that is not what was written.
    """
    recorded = recorded_checksums(path)
    if not recorded:
        return False
    binary, index = bin_path(prefix_of(path)), idx_path(prefix_of(path))
    size = Checksum(binary.stat().st_size, recorded["bin"].crc32)
    check_checksum(binary, size, recorded["bin"])
    check_checksum(index, checksum_of_file(index, count), recorded["idx"])
    if whole:
        check_checksum(binary, checksum_of_file(binary, count), recorded["bin"])
    return True
