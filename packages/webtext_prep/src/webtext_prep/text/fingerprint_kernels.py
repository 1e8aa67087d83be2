"""Shingles of texts in UTF-8, in compiled code: their MinHash signatures, their hashes, and where they lie.

A text is first normalised: its parts (words, or for n-grams of characters runs of visible ones), case-folded, joined
by single spaces. Every shingle is then one range of the bytes, hashed in place: none is ever an object. No step
takes more than linear time for any text; memory is a few times the longest one. A document of 3 kB takes some
10 microseconds with word:5, 30 with char:5.

What a word is, and how characters case fold, `words.py` says; here that is put into tables for compiled code. They are
made once a process, in some 20 ms, and take 6 MB each.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.compiled import BYTES, compiled, inner, tuple_of
from webtext_prep.errors import WebtextError
from webtext_prep.text import words

U32, U64 = np.uint32, np.uint64
Bytes = npt.NDArray[np.uint8]

SEPARATOR, MARK, ALONE, NO_MORE, SEQUENCE = 0, 16, 32, 254, 255
SIZE = 7


class Alphabet(NamedTuple):
    """How to cut text into parts (words, or runs of visible characters) and fold them.

    Attributes:
        sizes: shape (code points,), uint8: how many bytes of UTF-8 a code point folds to, with `MARK` added if it only
            goes on with a part, and `ALONE` if it is one with its marks; `SEPARATOR` if it is no part of a part, and
            `SEQUENCE` if it folds to several code points.
        codes: shape (code points,), uint32: the bytes, the first one lowest; a space for a separator; for a
            sequence its row in the following two.
        sequence_sizes: shape (sequences, 3), uint8: sizes of its code points, or `NO_MORE` after the last one.
        sequence_codes: shape (sequences, 3), uint32: their bytes.
    """

    sizes: npt.NDArray[np.uint8]
    codes: npt.NDArray[np.uint32]
    sequence_sizes: npt.NDArray[np.uint8]
    sequence_codes: npt.NDArray[np.uint32]


def _utf8(points: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """How many bytes each code point has in UTF-8 (surrogates too), and these, the first one lowest."""
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    codes = points.copy()
    for size, lead in ((2, 0xC0), (3, 0xE0), (4, 0xF0)):
        chosen = sizes == size
        found = points[chosen]
        code = lead | found >> 6 * (size - 1)
        for place in range(1, size):
            code |= (0x80 | found >> 6 * (size - 1 - place) & 0x3F) << 8 * place
        codes[chosen] = code
    return sizes.astype(np.uint8), codes


@functools.lru_cache(maxsize=2)
def alphabet(kind: str) -> Alphabet:
    """The tables for `word` (parts are words) or `char` (parts are what `str.split` gives)."""
    kinds, folded, several, _ = words.characters()
    sizes, codes = _utf8(folded)
    if kind == "word":
        is_part = kinds != words.OTHER
        sizes[kinds == words.MARK] |= MARK
        sizes[(kinds == words.IDEOGRAPH) | (kinds == words.SYLLABIC)] |= ALONE
    else:
        is_part = np.ones(len(kinds), np.bool_)
        is_part[[point for point in range(0x3001) if chr(point).isspace()]] = False
    sizes[~is_part], codes[~is_part] = SEPARATOR, ord(" ")
    sequence_sizes = np.full((len(several), 3), NO_MORE, np.uint8)
    sequence_codes = np.zeros((len(several), 3), np.uint32)
    for row, (point, to) in enumerate(several.items()):
        sizes[point], codes[point] = SEQUENCE, row
        sequence_sizes[row, : len(to)], sequence_codes[row, : len(to)] = _utf8(np.array([*map(ord, to)], np.uint32))
    return Alphabet(sizes, codes, sequence_sizes, sequence_codes)


SPACE = ord(" ")
Hashes32 = npt.NDArray[np.uint32]
Hashes64 = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
signed: Any = np.int64
"""np.int64, which is Python's integer in compiled code. A function that is given 0 is compiled for that 0 alone."""

WHOLE = np.frombuffer(b"\x00whole\x00", np.uint8)
"""What stands before a text that is too short for one shingle, so that it equals no shingle."""
BEGIN = len(WHOLE)
"""Where a normalised text begins: in front of it there is room for `WHOLE`."""
GROWTH = 3
"""The factor by which case folding makes a text longer at most (U+0390 grows from 2 bytes to 6)."""
CHUNK = 512
"""Shingles hashed before the next step: what they need stays in the processor's nearest cache."""


class ShingleCut(NamedTuple):
    """How texts are cut into shingles: of `size` words or characters."""

    is_word: bool
    size: int
    alphabet: Alphabet
    plain: Alphabet  # for texts without words: punctuation, as it is


class Space(NamedTuple):
    """Room for one text at a time.

    Attributes:
        text: its normal form, from `BEGIN` on.
        units: where each of its units (words or characters) begins in `text`, and where the one after the last would.
    """

    text: npt.NDArray[np.uint8]
    units: npt.NDArray[np.uint32]


_ALPHABET = tuple_of(Alphabet, types.uint8[::1], types.uint32[::1], types.uint8[:, ::1], types.uint32[:, ::1])
_CUT = tuple_of(ShingleCut, types.boolean, types.int64, _ALPHABET, _ALPHABET)
_SPACE = tuple_of(Space, types.uint8[::1], types.uint32[::1])


def _of_xxhash(name: str, *arguments: Any, result: Any) -> Any:
    """A function of the C library in the package `xxhash`, for compiled code."""
    library = find_spec("xxhash._xxhash")
    if library is not None and library.origin is not None:
        llvmlite.binding.load_library_permanently(library.origin)
    if llvmlite.binding.address_of_symbol(name) is None:
        raise WebtextError(f"the package xxhash has no function {name} for other code: install its wheel from PyPI.")
    return types.ExternalFunction(name, result(*arguments))


_xxh32 = _of_xxhash("XXH32", types.intp, types.intp, types.uint32, result=types.uint32)
_xxh3 = _of_xxhash("XXH3_64bits", types.intp, types.intp, result=types.uint64)


@inner
def xxh32(data: Bytes, start: int, end: int) -> np.uint32:
    """XXH32 of `data[start:end]`, seed 0."""
    return _xxh32(data.ctypes.data + start, end - start, U32(0))


@inner
def xxh3(data: Bytes, start: int, end: int) -> np.uint64:
    """XXH3 with 64 bits of `data[start:end]`, seed 0."""
    return _xxh3(data.ctypes.data + start, end - start)


@inner
def decode(data: Bytes, at: int) -> tuple[int, int]:
    """The code point at `data[at]`, which is not ASCII, and how many bytes it takes."""
    byte, second = signed(data[at]), signed(data[at + 1] & 0x3F)
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | second, 2
    third = signed(data[at + 2] & 0x3F)
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | second << 6 | third, 3
    return (byte & 0x07) << 18 | second << 12 | third << 6 | signed(data[at + 3] & 0x3F), 4


@inner
def normalise(
    data: Bytes, start: int, end: int, is_word: bool, alphabet: Alphabet, space: Space, spans: Offsets | None
) -> tuple[int, int]:
    """Write the normal form of `data[start:end]`, UTF-8, to `space`. Returns its end and the number of units.

    `spans`, shape (2, units + 1), takes the first and the last character of each unit in the original text, the last
    ones one place later; None if nobody asks.
    """
    text, units = space
    sizes, codes, sequence_sizes, sequence_codes = alphabet
    by_character = signed(not is_word)
    place, count, number = BEGIN, 0, 0
    inside = 0  # 1 within a part that goes on with letters
    alone = signed(-2)  # the last character of the last part that does not
    at = start
    while at < end:
        byte = data[at]
        if spans is None and byte < 0x80:
            # Unsigned numbers, as compiled code asks of others whether they count from the end of an array.
            here, last, to, units_so_far, was_inside = U64(at), U64(end), U64(place), U64(count), U64(inside)
            every = U64(by_character)
            while here < last and data[here] < 0x80:
                is_inside = U64(sizes[data[here]])
                text[to] = codes[data[here]]
                units[units_so_far] = to
                # The first separator after a part leaves a space; what follows others is written over them.
                step = is_inside | was_inside
                to += step
                units_so_far += (is_inside & ~was_inside) | (every & step)
                was_inside = is_inside
                here += U64(1)
            number += signed(here) - at
            at, place, count, inside = signed(here), signed(to), signed(units_so_far), signed(was_inside)
            continue
        row, pieces = 0, 1
        if byte < 0x80:
            at += 1
            size, code = signed(sizes[byte]), codes[byte]
            text[place] = code
        else:
            point, length = decode(data, at)
            at += length
            size, code = signed(sizes[point]), codes[point]
            if size == SEQUENCE:
                row, pieces = signed(code), 3
            elif size >= MARK:
                goes_on = size < ALONE
                if goes_on and inside == 0 and alone != number - 1:
                    number += 1
                    continue  # a mark of nothing
                size &= SIZE
                if goes_on:
                    place -= 1 - inside  # over the space behind a part that is alone
                else:
                    text[place] = SPACE
                    place += inside
                    inside = 0
                    units[count] = place
                    if spans is not None:
                        spans[0, count] = number
                    count += 1
                for shift in range(size):
                    text[place + shift] = code >> U32(8 * shift)
                place += size
                if spans is not None:
                    spans[1, count] = number
                number += 1
                if inside == 0:
                    text[place] = SPACE
                    place += 1
                    alone = number - 1
                continue
        for piece in range(pieces):
            if pieces > 1:
                size, code = signed(sequence_sizes[row, piece]), sequence_codes[row, piece]
                if size == NO_MORE:
                    break
            if byte >= 0x80:
                for shift in range(max(size, 1)):
                    text[place + shift] = code >> U32(8 * shift)
            is_part = signed(size != SEPARATOR)
            units[count] = place
            if spans is not None:
                spans[0, count] = number
            # The first separator after a part leaves a space; what follows others is written over them.
            place += size | (inside & (1 - is_part))
            count += (is_part & (1 - inside)) | (by_character & (is_part | inside))
            if spans is not None and (is_part | by_character):
                spans[1, count] = number
            inside = is_part
        number += 1
    if count and not inside:  # the space after the last part
        place -= 1
        count -= by_character
    units[count] = place + 1 - by_character  # a word ends one before the next begins
    return place, count


@inner
def prepare(
    data: Bytes, start: int, end: int, cut: ShingleCut, space: Space, spans: Offsets | None
) -> tuple[int, int, int]:
    """Normalise a text. Returns where its normal form ends, the number of units, and that of shingles."""
    stop, count = normalise(data, start, end, cut.is_word, cut.alphabet, space, spans)
    if cut.is_word and count == 0:
        stop, count = normalise(data, start, end, cut.is_word, cut.plain, space, spans)
    if count < cut.size:
        for at in range(BEGIN):  # a slice would bring numpy's errors with it, and double the time of compiling
            space.text[at] = WHOLE[at]
        return stop, count, min(count, 1)
    return stop, count, count - cut.size + 1


@inner
def hash_range(shingle: int, cut: ShingleCut, units: Hashes32, stop: int, count: int) -> tuple[int, int]:
    """Start and end of one shingle in the normal form."""
    if count < cut.size:
        return 0, stop
    return signed(units[shingle]), signed(units[shingle + cut.size]) - signed(cut.is_word)


_PRIME1, _PRIME2, _PRIME3 = U32(0x9E3779B1), U32(0x85EBCA77), U32(0xC2B2AE3D)
_PRIME4, _PRIME5 = U32(0x27D4EB2F), U32(0x165667B1)


@inner
def rotate32(value: np.uint32, count: int) -> np.uint32:
    """`value` with its bits rotated to the left."""
    return U32((value << U32(count)) | (value >> U32(32 - count)))


@inner
def hash32_each(first: int, values: Hashes32, cut: ShingleCut, space: Space, stop: int, count: int) -> None:
    """Fill `values` with XXH32 of the shingles from number `first` on, one by one."""
    for row in range(len(values)):
        start, end = hash_range(first + row, cut, space.units, stop, count)
        values[row] = xxh32(space.text, start, end)


STRIPES = 16
"""Shingles of so many stripes of 16 bytes are hashed one by one."""


class Room32(NamedTuple):
    """Room for XXH32 of `CHUNK` shingles, in the order of their stripes.

    Attributes:
        lanes: four sums of each.
        halves: the next 16 bytes of each; `fours` is the same memory.
        begins, ends: where each lies in the normal form.
        tails: how many stripes each has, later its last four bytes.
        counts: shape (STRIPES + 1,).
    """

    lanes: npt.NDArray[np.uint32]
    halves: npt.NDArray[np.uint64]
    fours: npt.NDArray[np.uint32]
    begins: npt.NDArray[np.uint32]
    ends: npt.NDArray[np.uint32]
    tails: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.uint32]


@inner
def round32(value: np.uint32, word: np.uint32) -> np.uint32:
    """What a lane of XXH32 becomes with four more bytes."""
    return U32(rotate32(U32(value + U32(word * _PRIME2)), 13) * _PRIME1)


@inner
def word32(text: Bytes, at: np.uint64) -> np.uint32:
    """Four bytes as a number, the first one lowest: together one instruction."""
    low = U32(text[at]) | (U32(text[at + U64(1)]) << U32(8))
    return U32(low | (U32(text[at + U64(2)]) << U32(16)) | (U32(text[at + U64(3)]) << U32(24)))


@inner
def next_stripe(text: Bytes, room: Room32, row: int, begin: np.uint32) -> None:
    """The 16 bytes of a shingle from `begin` on."""
    at = U64(begin)
    for half in range(2):
        word = U64(0)
        for byte in range(8):
            word |= U64(text[at + U64(8 * half + byte)]) << U64(8 * byte)  # together one instruction
        room.halves[2 * row + half] = word


@inner
def hash32(first: int, values: Hashes32, cut: ShingleCut, space: Space, room: Room32) -> None:
    """Fill `values` with XXH32 of the shingles from number `first` on, those of most stripes first.

    Each step is done for many shingles at once, by vector instructions: some three times as fast as one by one.

    Source: the xxHash specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
    """
    lanes, _, fours, begins, ends, tails, counts = room
    begin = U64(first)
    end, apart = begin + U64(cut.size), U32(cut.is_word)
    units = space.units
    for row in range(len(values)):
        tails[row] = min((units[end + U64(row)] - apart - units[begin + U64(row)]) >> U32(4), U32(STRIPES))
    for stripes in range(STRIPES + 1):
        counts[stripes] = 0
    for stripes in range(STRIPES):
        more = U32(0)
        for row in range(len(values)):
            more += U32(tails[row] > U32(stripes))
        if more == 0:
            break
        counts[stripes] = more  # where those of so many begin, as longer ones come first
    for row in range(len(values)):
        own = U64(tails[row])
        place = counts[own]
        begins[place], ends[place] = units[begin + U64(row)], units[end + U64(row)] - apart
        counts[own] = place + U32(1)  # in the end how many have at least so many
    for row in range(counts[1]):
        lanes[4 * row], lanes[4 * row + 1] = U32(_PRIME1 + _PRIME2), _PRIME2
        lanes[4 * row + 2], lanes[4 * row + 3] = U32(0), U32(-_PRIME1)
    for stripe in range(1, STRIPES):
        if counts[stripe] == 0:
            break
        for row in range(counts[stripe]):
            next_stripe(space.text, room, row, U32(begins[row] + U32(16 * (stripe - 1))))
        for lane in range(4 * counts[stripe]):
            lanes[lane] = round32(lanes[lane], fours[lane])
    for row in range(len(values)):
        size = ends[row] - begins[row]
        value = U32(rotate32(lanes[4 * row], 1) + rotate32(lanes[4 * row + 1], 7))
        value = U32(value + U32(rotate32(lanes[4 * row + 2], 12) + rotate32(lanes[4 * row + 3], 18)))
        values[row] = U32(size + (value if size >= 16 else _PRIME5))
    for row in range(len(values)):
        next_stripe(space.text, room, row, begins[row] + U32((ends[row] - begins[row]) & ~U32(15)))
        tails[row] = word32(space.text, U64(ends[row]) - U64(4))
    for four in range(3):
        for row in range(len(values)):
            longer = U32(rotate32(U32(values[row] + U32(fours[4 * row + four] * _PRIME3)), 17) * _PRIME4)
            values[row] = longer if (ends[row] - begins[row]) & U32(12) > U32(4 * four) else values[row]
    for byte in range(3, 0, -1):
        for row in range(len(values)):
            value = U32((tails[row] >> U32(32 - 8 * byte)) & U32(255))
            longer = U32(rotate32(U32(values[row] + U32(value * _PRIME5)), 11) * _PRIME1)
            values[row] = longer if (ends[row] - begins[row]) & U32(3) >= U32(byte) else values[row]
    finish32(values)
    for row in range(counts[STRIPES]):
        values[row] = xxh32(space.text, signed(begins[row]), signed(ends[row]))


@inner
def finish32(values: Hashes32) -> None:
    """In place, the last step of XXH32."""
    for row in range(len(values)):
        value = values[row]
        value = U32(U32(value ^ (value >> U32(15))) * _PRIME2)
        value = U32(U32(value ^ (value >> U32(13))) * _PRIME3)
        values[row] = U32(value ^ (value >> U32(16)))


@inner
def hash32_ascii(first: int, values: Hashes32, size: int, text: Bytes) -> None:
    """The same for n-grams of fewer than 16 characters of ASCII, many at a time: about ten times as fast.

    Source: the xxHash specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
    """
    for row in range(len(values)):
        values[row] = U32(_PRIME5 + U32(size))
    start = BEGIN + first
    for at in range(start, start + size // 4 * 4, 4):
        for row in range(len(values)):
            low = U32(text[at + row]) | (U32(text[at + row + 1]) << U32(8))
            high = U32(text[at + row + 2]) | (U32(text[at + row + 3]) << U32(8))
            word = U32(low | U32(high << U32(16)))
            values[row] = U32(rotate32(U32(values[row] + U32(word * _PRIME3)), 17) * _PRIME4)
    for at in range(start + size // 4 * 4, start + size):
        for row in range(len(values)):
            values[row] = U32(rotate32(U32(values[row] + U32(U32(text[at + row]) * _PRIME5)), 11) * _PRIME1)
    finish32(values)


@inner
def hash64(values: Hashes64, cut: ShingleCut, space: Space, stop: int, count: int) -> None:
    """Fill `values` with XXH3 of all shingles."""
    for row in range(len(values)):
        start, end = hash_range(row, cut, space.units, stop, count)
        values[row] = xxh3(space.text, start, end)


@inner
def premix(values: Hashes32) -> None:
    """In place, what datasketch does once with the hash of a shingle: the end of MurmurHash3."""
    for row in range(len(values)):
        value = values[row]
        value = U32(U32(value ^ (value >> U32(16))) * U32(0x85EBCA6B))
        value = U32(U32(value ^ (value >> U32(13))) * U32(0xC2B2AE35))
        values[row] = U32(value ^ (value >> U32(16)))


@inner
def take_minima(signature: Hashes32, values: Hashes32, factors: Hashes32, addends: Hashes32) -> None:
    """Lower each value of a signature to its permutation's lowest value of `values`: factor * value + addend."""
    for row in range(len(signature)):
        lowest, factor, addend = signature[row], factors[row], addends[row]
        for at in range(len(values)):
            lowest = min(lowest, U32(U32(factor * values[at]) + addend))  # `min`, not `if`: this becomes SIMD code
        signature[row] = lowest


@compiled(types.uint32[:, ::1](BYTES, types.int64[::1], _CUT, _SPACE, types.uint32[::1], types.uint32[::1]))
def signatures(
    data: Bytes, ends: Offsets, cut: ShingleCut, space: Space, factors: Hashes32, addends: Hashes32
) -> Hashes32:
    """The signatures of the texts that end at `ends` in `data`, shape (texts, permutations), uint32."""
    found = np.full((len(ends), len(factors)), U32(0xFFFFFFFF), np.uint32)
    values, halves = np.empty(CHUNK, np.uint32), np.empty(2 * CHUNK, np.uint64)
    of_each = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32)
    counts = np.empty(STRIPES + 1, np.uint32)
    room = Room32(np.empty(4 * CHUNK, np.uint32), halves, halves.view(np.uint32), *of_each, counts)
    start = signed(0)
    for row in range(len(ends)):
        stop, count, shingles = prepare(data, start, ends[row], cut, space, None)
        for first in range(0, shingles, CHUNK):
            chunk = values[: min(CHUNK, shingles - first)]
            if cut.is_word and count >= cut.size:
                hash32(first, chunk, cut, space, room)
            elif cut.size <= min(count, 15) and stop - BEGIN == count:
                hash32_ascii(first, chunk, cut.size, space.text)
            else:
                hash32_each(first, chunk, cut, space, stop, count)
            premix(chunk)
            take_minima(found[row], chunk, factors, addends)
        start = ends[row]
    return found


@compiled(types.int64[::1](BYTES, types.int64[::1], _CUT, _SPACE, types.uint64[::1]))
def hashes(data: Bytes, ends: Offsets, cut: ShingleCut, space: Space, found: Hashes64) -> Offsets:
    """Write the hashes of all shingles of the texts to `found`; returns where each text's end."""
    found_ends = np.empty(len(ends), np.int64)
    start, filled = signed(0), 0
    for row in range(len(ends)):
        stop, count, shingles = prepare(data, start, ends[row], cut, space, None)
        hash64(found[filled : filled + shingles], cut, space, stop, count)
        filled += shingles
        found_ends[row] = filled
        start = ends[row]
    return found_ends


@compiled(
    types.int64[::1](
        BYTES,
        types.int64[::1],
        _CUT,
        _SPACE,
        types.int64[:, ::1],
        types.uint64[::1],
        types.int64[::1],
        types.int64[::1],
    )
)
def located_hashes(
    data: Bytes, ends: Offsets, cut: ShingleCut, space: Space, spans: Offsets, found: Hashes64, firsts: Offsets,
    lasts: Offsets
) -> Offsets:  # fmt: skip
    """As `hashes`, and write to `firsts` and `lasts` the first and the last character of each shingle in its text.
    `spans` is room for the units of the longest text, as `normalise` fills it."""
    found_ends = np.empty(len(ends), np.int64)
    start, filled = signed(0), 0
    for row in range(len(ends)):
        stop, count, shingles = prepare(data, start, ends[row], cut, space, spans)
        hash64(found[filled : filled + shingles], cut, space, stop, count)
        for shingle in range(shingles):
            firsts[filled + shingle] = spans[0, shingle]
            lasts[filled + shingle] = spans[1, shingle + min(cut.size, count)]
        filled += shingles
        found_ends[row] = filled
        start = ends[row]
    return found_ends


@inner
def sort_uniform(values: Hashes64, room: Hashes64, counts: Offsets, shift: np.uint64) -> bool:
    """Sort values by counting their bits above `shift`, then by insertion; False if too many have equal ones."""
    counts[:] = 0
    for value in values:
        counts[(value >> shift) + U64(1)] += 1
    for at in range(1, len(counts)):
        if counts[at] > 64:  # too many with the same upper bits for insertion
            return False
        counts[at] += counts[at - 1]
    for value in values:
        place = value >> shift
        room[counts[place]] = value
        counts[place] += 1
    for at in range(len(room)):
        value = room[at]
        while at > 0 and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value
    return True


@compiled(types.boolean[::1](types.uint64[::1], types.int64[::1]))
def sort_ranges(values: Hashes64, ends: Offsets) -> npt.NDArray[np.bool_]:
    """Sort each range of `values`; returns which are sorted.

    Hashes are uniform: hashes with the same upper bits are put side by side, which leaves little to do, so that this is
    several times as fast as a general sort. A range with many equal hashes is left as it was.
    """
    is_sorted = np.ones(len(ends), np.bool_)
    longest, start = 0, 0
    for end in ends:
        longest = max(longest, end - start)
        start = end
    bits = 1
    while (1 << bits) < longest:
        bits += 1
    counts, room = np.empty((1 << bits) + 1, np.int64), np.empty(longest, np.uint64)
    start = 0
    for row in range(len(ends)):
        own = values[start : ends[row]]
        start = ends[row]
        bits = 1
        while (1 << bits) < len(own):
            bits += 1
        is_sorted[row] = sort_uniform(own, room[: len(own)], counts[: (1 << bits) + 1], U64(64 - bits))
    return is_sorted


@compiled(types.void(types.uint64[::1], types.int64[::1]))
def join_distinct(values: Hashes64, ends: Offsets) -> None:
    """Remove repeated values of each sorted range of `values` and close the gaps, in place; `ends` is updated."""
    start, filled = 0, 0
    for row in range(len(ends)):
        for at in range(start, ends[row]):
            if at == start or values[at] != values[at - 1]:
                values[filled] = values[at]
                filled += 1
        start = ends[row]
        ends[row] = filled


@compiled(types.int64[::1](BYTES, types.int64[::1], types.int64, _ALPHABET, _SPACE, types.uint64[::1]))
def ngram_hashes(data: Bytes, ends: Offsets, orders: int, alphabet: Alphabet, space: Space, found: Hashes64) -> Offsets:
    """Write the hash of each n-gram of 1 to `orders` words of the texts to `found`: of each text all words, then all
    pairs, and so on. Returns where those of each text end."""
    found_ends = np.empty(len(ends), np.int64)
    start, filled = signed(0), 0
    for row in range(len(ends)):
        _, count = normalise(data, start, ends[row], True, alphabet, space, None)
        for order in range(1, orders + 1):
            for at in range(count - order + 1):
                found[filled] = xxh3(space.text, signed(space.units[at]), signed(space.units[at + order]) - 1)
                filled += 1
        found_ends[row] = filled
        start = ends[row]
    return found_ends
