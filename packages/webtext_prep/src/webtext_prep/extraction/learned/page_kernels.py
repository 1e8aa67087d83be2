"""Two passes of compiled code over a page's tree as XML: its tags, and the blocks of text between them.

No element is looked at in Python, but for one in ten. `read_tags` makes a row of numbers of each and marks those of
which more must be known than their names say; `cut` walks over the rows, with what has been answered of these, and
writes the texts of blocks one behind the other. With the answers this takes half the time of a walk over lxml's tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from webtext_prep.compiled import BYTES, compiled, inner

(END, TEXT, TEXT_END, TAIL, TAIL_END, NAME, NAME_END, CLASSES, CLASSES_END, WORD, KIND, BITS, WAYS, ASKS) = range(14)
"""Columns of an element's row. Where it ends, by the number of the next one outside; where its text, what stands behind
it, its name and its classes begin and end; the number of its name, and its kind; what its names say; its ways, and why
more is asked of it."""
(OWNER, WRITTEN, WRITTEN_END, LINKS, LINK_CHARACTERS) = range(5)
"""Columns of what has been answered of an element: in which hidden one it is seen all the same, or -1; where what is
written for it begins and ends; and of code its links, and their characters."""
(SKIPPED, ANNOTATION, BLOCK, INLINE, TELLING, A, BR, BOLD, RUBY, ROW, CELL, PRE, PLACED) = (
    1 << bit for bit in range(13)
)
"""Kinds of elements. One that is TELLING is always asked."""
(PASSED, REPLACED, IN_LINE, HIDDEN, NOT_DISPLAYED, CODE, PERMALINK, SPACE, APART, UNSEEN) = (
    1 << bit for bit in range(10)
)
"""Ways of an element: nothing in it counts; a text stands for it; it stands in a line; it is hidden; it takes no place
then; it is code; it is a link to its own heading; it is a space; it has lines of its own; it says that it is unseen."""
ASKED, UNREAD, STYLED = 1, 2, 4
"""Why an element is asked: by its name or attributes; its names have references or letters that are not of ASCII; it
has a style."""
(M_KIND, M_TAG, M_LANDMARK, M_ATTRIBUTE, M_ASKED, M_HINT) = range(6)
"""Columns of what a known word means: as a name of an element its kind, number and landmark, as one of an attribute
which, as a value of classes or an id whether it is asked, as a role its hint."""
(CLASS, ID, ITEMPROP, ROLE, STYLE, HIDES, ARIA_HIDDEN, HREF, TYPE, PLACE) = range(1, 11)
"""Attributes."""
(OUT, BEGIN, HAS_PIECES, SPACES, BREAKS, HAS_WORDS, IN_LINKS, OF_LINKS, IN_BOLD, NUMBER) = range(10)
"""The state of the block at hand: where its text ends and begins, whether anything has been read, whether a space and
how many breaks are due before the next word, whether words were the last that was read in its line, characters in
links, links, bold characters; and the number of blocks before."""
_FRAME = 18
(F_NODE, F_FLAGS, F_ELEMENT, F_ROW, F_CELL, F_LINK, F_PRE, F_BOLD, F_ASIDE, F_ASIDE_END, F_STATE) = range(11)
"""Columns of an element that is open; from F_STATE on the state that was set aside."""
_IS_BLOCK, _STANDS_APART, _IN_RUBY, _IS_PASSED, _HAS_TAIL = (1 << bit for bit in range(5))

_TABLE = types.Array(types.int64, 2, "C", readonly=True)
_ROW = types.Array(types.int64, 1, "C", readonly=True)
_MOVES = types.Array(types.int16, 2, "C", readonly=True)


def word_tables(words: list[str]) -> tuple[Any, Any, Any]:
    """(the bytes of words, where each begins, their places by `_word`); the number of a word is its place + 1."""
    data = [word.encode() for word in words]
    slots = np.full(1 << (4 * len(words)).bit_length(), -1, np.int64)
    for number, word in enumerate(data):
        place = 0
        for byte in word:
            place = (place * 31 + byte) & 0xFFFFFFFF
        while slots[place % len(slots)] >= 0:
            place += 1
        slots[place % len(slots)] = number
    return np.frombuffer(b"".join(data), np.uint8), np.cumsum([0, *map(len, data)]), slots


@inner
def _word(data: Any, begin: int, end: int, words: Any, begins: Any, slots: Any) -> int:
    """The number of a known word, or 0."""
    place = 0
    for at in range(begin, end):
        place = (place * 31 + data[at]) & 0xFFFFFFFF
    while slots[place % len(slots)] >= 0:
        number = slots[place % len(slots)]
        length = begins[number + 1] - begins[number]
        at = 0
        while at < length and length == end - begin and data[begin + at] == words[begins[number] + at]:
            at += 1
        if at == length and length == end - begin:
            return number + 1
        place += 1
    return 0


@inner
def _bits(text: Any, begin: int, end: int, moves: Any, bits: Any) -> int:
    """The bits of all that is found in a text, by an automaton that reads small letters, and where words end."""
    state, found, was_letter = 0, 0, False
    for at in range(begin, end):
        byte = text[at]
        if 65 <= byte <= 90:
            byte |= 32
        is_letter = 97 <= byte <= 122 or 48 <= byte <= 57 or byte == 95 or byte == 128
        if is_letter != was_letter:
            state, was_letter = moves[state, 0], is_letter
            found |= bits[state]
        state = moves[state, byte]
        found |= bits[state]
    return found | bits[moves[state, 0]] if was_letter else found


@compiled(types.int64(BYTES, _MOVES, _ROW))
def bits_in(text: Any, moves: Any, bits: Any) -> int:
    """The bits of all that is found in a text of ASCII, in which 128 is any letter."""
    return _bits(text, 0, len(text), moves, bits)


@compiled(types.int64[:, ::1](BYTES, BYTES, _ROW, _ROW, _TABLE, _MOVES, _ROW, types.int64, types.int64, types.int64))
def read_tags(
    data: Any,
    words: Any,
    begins: Any,
    slots: Any,
    meanings: Any,
    moves: Any,
    bits: Any,
    all_hints: int,
    asked_bits: int,
    most: int,
) -> Any:
    """A row for each of at most so many elements of a tree as libxml2 writes it, in UTF-8.

    Args:
        data: the tree; between its elements stand texts alone.
        words, begins, slots: the known words (`word_tables`).
        meanings: (words + 1, 6), what they mean.
        moves, bits: the automaton of names.
        all_hints: the bits that ids and properties may have, too.
        asked_bits: the bits of classes of which more is asked.
        most: the number of elements, or more.
    """
    rows = np.zeros((most, ASKS + 1), np.int64)
    opened = np.zeros(most + 1, np.int64)
    at, number, depth, skipped_to = 0, 0, 0, -1
    while at < len(data):
        node = number
        is_end = data[at + 1] == ord("/")
        is_closed = is_end
        if is_end:
            depth -= 1
            node = opened[depth]
            if skipped_to == depth:
                skipped_to = -1
        else:
            row = rows[node]
            opened[depth] = node
            number += 1
            name = at + 1
            at = name
            while data[at] != ord(" ") and data[at] != ord("/") and data[at] != ord(">"):
                at += 1
            word = _word(data, name, at, words, begins, slots)
            kind = meanings[word, M_KIND]
            row[NAME], row[NAME_END], row[WORD], row[KIND] = name, at, word, kind
            asks, ways, found, is_formula = 0, 0, 0, False
            if kind & TELLING or not kind & (SKIPPED | BLOCK | INLINE):
                asks = ASKED
            while data[at] == ord(" "):
                name = at + 1
                at = name + 1
                while data[at] != ord("="):
                    at += 1
                attribute = 0 if skipped_to >= 0 else meanings[_word(data, name, at, words, begins, slots), M_ATTRIBUTE]
                value = end = at + 2
                is_read, has_sign = True, False
                while data[end] != ord('"'):
                    is_read = is_read and data[end] < 128 and data[end] != ord("&")
                    has_sign = has_sign or data[end] == ord("#")
                    end += 1
                at = end + 1
                if CLASS <= attribute <= ROLE:
                    meaning = meanings[_word(data, value, end, words, begins, slots)]
                    if attribute == ROLE:
                        found |= meaning[M_HINT]
                    else:
                        asks |= ASKED if meaning[M_ASKED] and attribute != ITEMPROP else 0
                        if not is_read:
                            asks |= UNREAD
                        else:
                            found |= _bits(data, value, end, moves, bits) & (-1 if attribute == CLASS else all_hints)
                    if attribute == CLASS:
                        row[CLASSES], row[CLASSES_END] = value, end
                elif attribute == STYLE:
                    asks |= STYLED
                elif attribute == HIDES:
                    asks |= ASKED
                    ways |= UNSEEN if data[name] == ord("h") else 0
                elif attribute == ARIA_HIDDEN:
                    if end - value == 4 and data[value] == ord("t"):
                        ways |= UNSEEN
                        asks |= 0 if kind & INLINE else ASKED
                elif attribute == HREF:
                    asks |= ASKED if kind & A and has_sign else 0
                elif attribute == TYPE:
                    is_formula = data[value] == ord("m")
                elif attribute == PLACE:
                    asks |= ASKED if kind & PLACED else 0
            if found & asked_bits:
                asks |= ASKED
            if kind & SKIPPED:  # a formula, or nothing
                asks = asks & UNREAD | (ASKED if is_formula or found & asked_bits else 0)
            is_closed = data[at] == ord("/")
            row[BITS], row[WAYS], row[ASKS] = found, ways, asks
            if skipped_to >= 0:
                row[ASKS] = 0
            elif kind & SKIPPED and depth > 0 and not is_closed:
                skipped_to = depth
            depth += 0 if is_closed else 1
        while data[at] != ord(">"):
            at += 1
        begin = at = at + 1
        is_there = False
        while not is_there and at + 16 <= len(data):  # processors look at sixteen at once
            for one in range(16):
                is_there |= data[np.uint64(at + one)] == ord("<")
            at += 0 if is_there else 16
        while at < len(data) and data[at] != ord("<"):
            at += 1
        row = rows[node]
        if is_closed:
            row[END], row[TAIL], row[TAIL_END] = number, begin, at
        else:
            row[TEXT], row[TEXT_END] = begin, at
        # A link whose text, or that of what begins it, is in brackets.
        opener = rows[node - 1] if node > 0 else row
        is_link = row[KIND] & A or (opener[KIND] & A and opener[TEXT] == opener[TEXT_END] and not is_end)
        if is_link and not is_end and begin < at and data[begin] == ord("["):
            rows[node if row[KIND] & A else node - 1, ASKS] |= ASKED
    return rows[:number]


@inner
def _length_of_space(data: Any, at: int) -> int:
    """How many bytes of UTF-8 the white space (Python's `isspace`) at a place has; 0 where there is none."""
    byte = data[at]
    if byte <= 32:
        return 1 if byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31 else 0
    if byte == 0xC2:
        return 2 if data[at + 1] == 0xA0 or data[at + 1] == 0x85 else 0
    if byte == 0xE1:
        return 3 if data[at + 1] == 0x9A and data[at + 2] == 0x80 else 0
    if byte == 0xE2:
        last = data[at + 2]
        if data[at + 1] == 0x80:
            return 3 if last <= 0x8A or 0xA8 <= last <= 0xA9 or last == 0xAF else 0
        return 3 if data[at + 1] == 0x81 and last == 0x9F else 0
    if byte == 0xE3:
        return 3 if data[at + 1] == 0x80 and data[at + 2] == 0x80 else 0
    return 0


@inner
def _is_space(data: Any, at: int, end: int) -> bool:
    while at < end:
        length = _length_of_space(data, at) if data[at] != ord("&") else 5 * (data[at + 1] == ord("#"))
        if length == 0:
            return False
        at += length
    return True


@inner
def _read(data: Any, at: int, end: int, out: Any, state: Any, is_pre: bool, in_link: bool, is_bold: bool) -> None:
    """A piece of text: its words, or in `pre` all of it, are written to `out`; characters are counted."""
    state[HAS_PIECES] = 1
    to = state[OUT]
    characters, length = 0, 0
    while at < end:
        space = _length_of_space(data, at)
        byte, size = data[at], 1
        if byte == ord("&"):
            letter = data[at + 1]
            size = 5 if letter == ord("a") or letter == ord("#") else 4
            byte = ord("&") if letter == ord("a") else ord("<") if letter == ord("l") else ord(">")
            if letter == ord("#"):  # the only one is 13
                byte, space = 13, 5
        if space > 0:
            characters += characters > 0
            if is_pre:
                if size == 5:
                    out[to] = 13
                    to += 1
                else:
                    for one in range(space):
                        out[to + one] = data[at + one]
                    to += space
            else:
                state[SPACES] = 1
            at += space
            continue
        if not is_pre:
            if to > state[BEGIN]:
                for _ in range(min(2, state[BREAKS])):
                    out[to] = 10
                    to += 1
                if state[BREAKS] == 0 and state[SPACES]:
                    out[to] = 32
                    to += 1
            state[BREAKS] = state[SPACES] = 0
        if byte & 0xC0 != 0x80:
            characters += 1
        length = characters
        out[to] = byte
        to += 1
        at += size
    state[OUT] = to
    if length > 0:
        state[HAS_WORDS] = 1
    if in_link:
        state[IN_LINKS] += length
    if is_bold:
        state[IN_BOLD] += length


@inner
def _end_block(out: Any, state: Any, places: Any, frame: Any) -> None:
    """What has been read since the last boundary is a block of what is open, if there are words in it."""
    begin, end = state[BEGIN], state[OUT]
    if frame[F_PRE]:
        first = begin
        while first < end and out[first] == 10:
            first += 1
        at = last = first
        while at < end:
            length = _length_of_space(out, at)
            at += max(1, length)
            if length == 0:
                last = at
        for at in range(first, last):
            out[begin + at - first] = out[at]
        end = begin + last - first
    if end > begin:
        place = places[state[NUMBER]]
        place[0], place[1], place[2] = frame[F_ELEMENT], frame[F_ROW], frame[F_CELL]
        place[3], place[4], place[5] = state[IN_LINKS], state[OF_LINKS], state[IN_BOLD]
        state[NUMBER] += 1
        out[end] = 0
        end += 1
    state[OUT] = state[BEGIN] = end
    for column in range(HAS_PIECES, NUMBER):
        state[column] = 0


@inner
def _shape(shapes: Any, slots: Any, count: int, data: Any, rows: Any, node: int, around: int) -> int:
    """The number of an element's shape: its tag, its classes, and the shape of what it lies in."""
    row = rows[node]
    place = around
    for at in range(row[NAME], row[NAME_END]):
        place = (place * 31 + data[at]) & 0xFFFFFFFFFFFF
    for at in range(row[CLASSES], row[CLASSES_END]):
        place = (place * 31 + data[at] + 1) & 0xFFFFFFFFFFFF
    place ^= place >> 17
    while slots[place % len(slots)] > 0:
        shape = slots[place % len(slots)]
        other = rows[shapes[shape, 0]]
        is_same = shapes[shape, 1] == around
        for begin, end in ((NAME, NAME_END), (CLASSES, CLASSES_END)):
            length = row[end] - row[begin]
            is_same = is_same and length == other[end] - other[begin]
            at = 0
            while is_same and at < length:
                is_same = data[row[begin] + at] == data[other[begin] + at]
                at += 1
        if is_same:
            return shape
        place += 1
    slots[place % len(slots)] = count
    shapes[count, 0], shapes[count, 1] = node, around
    return count


_CUT = types.Tuple((types.uint8[::1], *(types.int64[:, ::1],) * 2, types.int64[::1]))


@compiled(_CUT(BYTES, types.int64[:, ::1], types.int64[:, ::1], types.int64, _TABLE, types.int64))
def cut(data: Any, rows: Any, answers: Any, written: int, meanings: Any, all_hints: int) -> Any:
    """A page's blocks: (their texts with a zero behind each; of each its element, row and cell, and its characters in
    links, links and bold characters; of each element the columns of `Blocks` from `parent` to `last`, without
    children; of each row of the tree its element, or -1).

    Args:
        data: the tree, and behind it what is written for some of its elements, which begins at `written`.
        rows: of its elements, as they have been answered.
        answers: (elements, 5).
        written: the length of the tree.
        meanings: of the words.
        all_hints: the bits that are hints.
    """
    count = len(rows)
    out, aside = np.empty(len(data) + 2 * count + 8, np.uint8), np.empty(len(data) + 8, np.uint8)
    places, elements = np.empty((2 * count + 1, 6), np.int64), np.zeros((count + 1, 11), np.int64)
    element_of = np.full(count, -1, np.int64)
    shapes, slots, last_shape = np.zeros((count + 2, 2), np.int64), np.zeros(4 * count + 8, np.int64), 0
    state = np.zeros(NUMBER + 1, np.int64)
    depth, deepest = 0, 1
    ends = np.zeros(count + 1, np.int64)
    for node in range(count):
        while depth > 0 and ends[depth] <= node:
            depth -= 1
        depth += 1
        ends[depth] = rows[node, END]
        deepest = max(deepest, depth)
    frames = np.zeros((deepest + 2, _FRAME), np.int64)
    frames[0, F_NODE], frames[0, F_ROW], frames[0, F_CELL], frames[0, F_FLAGS] = 0, -1, -1, _IS_PASSED
    top, aside_end, made, node = 0, 0, 1, 0
    while node < count or top > 0:
        frame = frames[top]
        is_end = top > 0 and (node >= count or rows[frame[F_NODE], END] <= node)
        if not is_end and frame[F_FLAGS] & _IS_PASSED and top > 0 and answers[node, OWNER] != frame[F_NODE]:
            node += 1
            continue
        at = frame[F_NODE] if is_end else node
        row, answer = rows[at], answers[at]
        kind, ways, flags = row[KIND], row[WAYS], frame[F_FLAGS]
        is_passed, has_parts, is_shown, is_block = False, False, False, flags & _IS_BLOCK != 0
        has_break = flags & _STANDS_APART and state[HAS_WORDS]
        if not is_end:
            owner = answer[OWNER]
            is_shown = owner >= 0 and element_of[owner] >= 0 and elements[element_of[owner], 7] == element_of[owner]
            is_block = is_shown or (kind & INLINE == 0 and ways & IN_LINE == 0)
            is_passed = ways & (PASSED | REPLACED) != 0 or kind & SKIPPED != 0
            is_passed = is_passed or (not is_block and ways & (HIDDEN | PERMALINK) != 0)
            is_block = is_block and not is_passed
            has_parts = is_passed and answer[WRITTEN] < 0
            has_break = not is_passed and not is_block and ways & APART and not frame[F_PRE] and state[HAS_WORDS]
        is_aside = is_block and not is_end and state[HAS_PIECES] and ways & NOT_DISPLAYED
        if is_block and state[HAS_PIECES] and not is_aside:
            _end_block(out, state, places, frame)
        begin, end = row[TAIL], row[TAIL_END]
        if is_end:
            if is_block:
                elements[frame[F_ELEMENT], 10] = state[NUMBER]
            if frame[F_ASIDE] >= 0:
                state[OUT] = state[BEGIN]
                for one in range(frame[F_ASIDE], frame[F_ASIDE_END]):
                    out[state[OUT]] = aside[one]
                    state[OUT] += 1
                aside_end = frame[F_ASIDE]
                for column in range(HAS_PIECES, NUMBER):
                    state[column] = frame[F_STATE + column - HAS_PIECES]
            top -= 1
            end = end if flags & _HAS_TAIL else begin
        else:
            top += 1
            new = frames[top]
            for column in range(F_ELEMENT, F_BOLD + 1):
                new[column] = frame[column]
            new[F_NODE], new[F_ASIDE] = node, -1
            new[F_FLAGS] = 0 if flags & _IS_PASSED else _HAS_TAIL
            new[F_FLAGS] |= _IS_PASSED if is_passed else 0
            node = row[END] if (is_passed and not has_parts) or (is_block and ways & CODE) else node + 1
            begin, end = row[TEXT], row[TEXT_END]
            if is_aside:
                new[F_ASIDE] = aside_end
                for one in range(state[BEGIN], state[OUT]):
                    aside[aside_end] = out[one]
                    aside_end += 1
                new[F_ASIDE_END] = aside_end
                for column in range(HAS_PIECES, NUMBER):
                    new[F_STATE + column - HAS_PIECES] = state[column]
                    state[column] = 0
                state[OUT] = state[BEGIN]
            if is_passed:
                begin, end = (answer[WRITTEN], answer[WRITTEN_END]) if ways & REPLACED else (0, 0)
                if ways & REPLACED:
                    state[HAS_PIECES] = state[HAS_WORDS] = 1
            elif is_block:
                parent, element = elements[frame[F_ELEMENT]], elements[made]
                hints = row[BITS] & all_hints
                element[0], element[1], element[2] = frame[F_ELEMENT], parent[1] + 1, meanings[row[WORD], M_TAG]
                element[3], element[4] = hints, parent[4] | hints
                element[5] = parent[5] | meanings[row[WORD], M_LANDMARK]
                if not is_shown:
                    element[6] = 1 if ways & UNSEEN else parent[6]
                    element[7] = made if ways & HIDDEN and parent[7] == 0 else parent[7]
                element[8] = _shape(shapes, slots, last_shape + 1, data, rows, at, parent[8])
                last_shape = max(last_shape, element[8])
                element[9] = state[NUMBER]
                element_of[at] = made
                new[F_ELEMENT] = made
                new[F_FLAGS] |= _IS_BLOCK
                new[F_PRE] |= kind & PRE or ways & CODE
                if kind & ROW:
                    new[F_ROW], new[F_CELL] = made, -1
                elif kind & CELL:
                    new[F_CELL] = made
                if ways & CODE:
                    begin, end = answer[WRITTEN], answer[WRITTEN_END]
                    state[HAS_PIECES], new[F_LINK], new[F_BOLD] = 1, 0, 0
                    state[OF_LINKS], state[IN_LINKS] = answer[LINKS], answer[LINK_CHARACTERS]
                made += 1
            else:
                new[F_FLAGS] |= _STANDS_APART if ways & APART and not frame[F_PRE] else 0
                if kind & A:
                    new[F_LINK] = 1
                    state[OF_LINKS] += 1
                elif kind & BR:
                    has_break = True
                elif kind & BOLD:
                    new[F_BOLD] = 1
                elif ways & SPACE:
                    state[HAS_PIECES] = state[SPACES] = 1
                    if frame[F_PRE]:
                        out[state[OUT]] = 32
                        state[OUT] += 1
            if kind & RUBY and not is_passed:
                new[F_FLAGS] |= _IN_RUBY
        if has_break:
            state[HAS_PIECES] = 1
            if frames[top, F_PRE]:
                out[state[OUT]] = 10
                state[OUT] += 1
            else:
                state[BREAKS] += 1
                state[HAS_WORDS] = 0
        frame = frames[top]
        if begin < end and frame[F_FLAGS] & _IN_RUBY:
            # Spaces only set readings apart.
            follows = row[END] if is_end else at + 1
            is_apart = not is_end or follows == rows[frame[F_NODE], END] or rows[follows, KIND] & ANNOTATION
            end = begin if is_apart and _is_space(data, begin, end) else end
        if begin < end:
            _read(data, begin, end, out, state, frame[F_PRE] > 0, frame[F_LINK] > 0, frame[F_BOLD] > 0)
    elements[0, 10] = state[NUMBER]
    return out[: state[BEGIN]], places[: state[NUMBER]], elements[:made], element_of
