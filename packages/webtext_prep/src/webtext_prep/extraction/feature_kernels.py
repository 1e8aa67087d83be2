"""The features of blocks that are made of numbers, one function for each group: compiled, in one pass each.

Numpy takes longer to be called for the few hundred blocks of a page than to count. Each group's function writes its
columns of all rows, from column `at` on; what they are called stands above it, in their order. `rows_of` tells the
whole order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from webtext_prep.text.compiled import BYTES, compiled, inner

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_INTEGERS, _FLOATS, _ROWS = types.int64[::1], types.float64[::1], types.float32[:, ::1]

PARAGRAPH_CHARACTERS = 25
CHARACTERS_A_WORD = 5
"""A text of shorter words, as of writing without spaces, counts as if they had so many."""
DENSE_LEVELS = 6
"""How far up the score of the elements around a block is looked at."""
LONG_WORDS = 15
"""Words that make a block a paragraph."""
PROSE_WORDS = 12
"""Words that make a block prose, if it is not half links."""
SHARES = (0.5, 0.8, 0.95)
"""The innermost element with this share of all prose is where the main text is looked for."""
LEVELS = (1, 2, 3, 5, 7)
"""How far up the elements around a block are described; 1 is the parent of its own."""
NEAR, MIDDLE = 2, 4
"""How far up their names are near, and in the middle."""
REACHES = (3, 10)
"""So many blocks before and behind one are described together."""
FAR = -999.0
"""A distance to something that is not there."""


PLACES = ("parent", "depth", "tag", "children", "hints", "all_hints", "landmarks", "unseen", "shape", "first", "last")
"""What is known of each element of `Blocks`: a row of `places` each. Rows of one array are much faster to compile than
as many arrays."""
_PARENT, _DEPTH, _TAG, _CHILDREN, _HINTS, _ALL_HINTS, _LANDMARKS, _UNSEEN, _SHAPE, FIRST, LAST = range(len(PLACES))
_WORDS, _LETTERS, _LINKS, _STOPS, _PARAGRAPHS, _PROSE, _COMMAS = range(7)
"""What is counted of each block, a row of `counts` each, and of all blocks before it, and of all: of `before`."""
HEADING, NO_PARAGRAPH, HOLDER, H1, P = 1, 2, 4, 8, 16
"""Bits of what elements are by their tags: headings, no paragraphs, holders of them, `h1`, `p`."""

_CHARACTER, _STOP, _SPACE, _BAR, _UNSPACED, _COMMA, _BEGIN = range(7)
_CLASSES = np.zeros((256, _BEGIN), np.int64)
"""Bytes that are: the first of a character, a stop, a space, a separator, of writing without spaces (by the first), a
comma or semicolon (of wide ones, as of all in their block of Unicode, the first)."""
_CLASSES[:, _CHARACTER] = [(byte & 0xC0) != 0x80 for byte in range(256)]
_CLASSES[list(b".!?"), _STOP] = 1
_CLASSES[list(b" \n"), _SPACE] = 1
_CLASSES[list(b"|"), _BAR] = 1
_CLASSES[0xE3:0xEE, _UNSPACED] = 1
_CLASSES[[*b",;", 0xEF], _COMMA] = 1
_ENDS = np.zeros(256, np.bool_)
_ENDS[[*b'.!?:"', 0x82, 0x9D]] = True  # the last also of the ideographic stop and the closing quotation mark
_QUESTION_MARK, _A, _Z = map(ord, "?az")


def listed(text: str) -> tuple[str, ...]:
    """What stands between the bars and line ends of a text."""
    return tuple(text.strip().replace("\n", "|").split("|"))


@inner
def _put(rows: Any, block: int, at: int, values: Any) -> None:
    """Write a block's values from column `at` on."""
    for column in range(len(values)):
        rows[block, at + column] = values[column]


@inner
def _flag(value: bool) -> float:
    return 1.0 if value else 0.0


@inner
def _means_of_equal(kinds: Integers, members: Integers, values: Any) -> Any:
    """How many members are of each kind, and the means of each row of their values."""
    means = np.zeros((1 + len(values), len(kinds) + 1))  # numbers of kinds are no greater
    for at in range(len(members)):
        kind = kinds[members[at]]
        means[0, kind] += 1
        for row in range(len(values)):
            means[1 + row, kind] += values[row, at]
    for row in range(1, len(means)):
        for kind in range(len(kinds) + 1):
            means[row, kind] /= max(1.0, means[0, kind])
    return means


@inner
def _held(before: Any, places: Any) -> Any:
    """Of each row what each element holds, by sums over all blocks before each."""
    held = np.empty((len(before), places.shape[1]))
    for row in range(len(before)):
        for element in range(places.shape[1]):
            held[row, element] = before[row, places[LAST, element]] - before[row, places[FIRST, element]]
    return held


@inner
def _innermost(held: Any, row: int, least: float, places: Any) -> int:
    """The deepest element, and the first of these, that holds so much."""
    found = 0
    for element in range(held.shape[1]):
        if held[row, element] >= least and places[_DEPTH, element] > places[_DEPTH, found]:
            found = element
    return found


@inner
def _counted(data: Any, lengths: Integers) -> Any:
    """Of each text, how many of its bytes are of each of _CLASSES; then its first byte, and its last one."""
    counts = np.zeros((len(lengths), _BEGIN + 2))
    at = 0
    for text in range(len(lengths)):
        counts[text, _BEGIN] = data[at]
        left = lengths[text]
        while at < len(data) and (left > 0 or not _CLASSES[data[at], _CHARACTER]):
            left -= _CLASSES[data[at], _CHARACTER]
            for kind in range(_BEGIN):
                counts[text, kind] += _CLASSES[data[at], kind]
            at += 1
        counts[text, _BEGIN + 1] = data[at - 1]
    return counts


@inner
def _counts(texts: Any, element: Integers, places: Any, linked: Any, kinds: Any) -> Any:
    """Counts of blocks by those of the bytes of their texts."""
    counts = np.zeros((_COMMAS + 1, len(texts)))
    for block in range(len(texts)):
        letters = max(1.0, texts[block, _CHARACTER])
        words = max(texts[block, _SPACE] + 1, texts[block, _UNSPACED] / 2)
        links = min(float(linked[0, block]), letters)
        counts[_WORDS, block], counts[_LETTERS, block], counts[_LINKS, block] = words, letters, links
        counts[_STOPS, block] = texts[block, _STOP] / words * words
        counts[_COMMAS, block] = texts[block, _COMMA]
        if kinds[places[_TAG, element[block]]] & P:
            counts[_PARAGRAPHS, block] = words
        if words >= PROSE_WORDS and links / letters < 0.5:
            counts[_PROSE, block] = words
    return counts


@inner
def _sums(counts: Any) -> Any:
    """Of each row the sums of all values before each place, and of all."""
    sums = np.zeros((counts.shape[0], counts.shape[1] + 1))
    for row in range(counts.shape[0]):
        for place in range(counts.shape[1]):
            sums[row, place + 1] = sums[row, place] + counts[row, place]
    return sums


TEXT = listed("""
words|characters|word length|stops|separators|ends a sentence|question|begins small|phrase|label|title words|copy
copies
""")
SAID = 5
"""So many of the last are told by who reads the texts."""
PLACE = listed("""
links|link share|bold share|tag|unseen|depth|words before|blocks before|number|number from the end|after h1
words after h1|after heading|heading|heading words|heading phrase
""")
NEIGHBOURS = ("words", "link share", "tag", "depth")
_NEIGHBOURS = tuple((TEXT + PLACE).index(name) for name in NEIGHBOURS)
_QUESTION, _PHRASE, _LABEL, _ALIKE = *map(TEXT.index, ("question", "phrase", "label")), len(TEXT + PLACE)
"""Columns that others are made of; the first of all is that of words."""


@inner
def _text(rows: Any, at: int, texts: Any, said: Any, counts: Any) -> int:
    """How a block is written, and what it says."""
    for block in range(len(rows)):
        words, letters = counts[_WORDS, block], counts[_LETTERS, block]
        first, last = int(texts[block, _BEGIN]), int(texts[block, _BEGIN + 1])
        values = (
            math.log1p(words),
            math.log1p(letters),
            letters / words,
            texts[block, _STOP] / words,
            texts[block, _BAR],
            _flag(_ENDS[last]),
            _flag(last == _QUESTION_MARK),
            _flag(_A <= first <= _Z),
        )
        _put(rows, block, at, values)
        _put(rows, block, at + len(values), said[block])
    return at + 8 + SAID


@inner
def _place(
    rows: Any, at: int, element: Integers, places: Any, counts: Any, before: Any, linked: Any, kinds: Any
) -> int:
    """How much of a block is links, where it stands, and behind which heading."""
    number, total = len(rows), max(1.0, before[_WORDS, -1])
    heading = h1 = -1
    for block in range(number):
        if h1 < 0 and kinds[places[_TAG, element[block]]] & H1:
            h1 = block
    for block in range(number):
        own, letters, words = element[block], counts[_LETTERS, block], before[_WORDS, block]
        tag = places[_TAG, own]
        if kinds[tag] & HEADING:
            heading = block
        values = (
            math.log1p(linked[1, block]),
            counts[_LINKS, block] / letters,
            min(1.0, linked[2, block] / letters),
            float(tag),
            float(places[_UNSEEN, own]),
            float(places[_DEPTH, own]),
            words / total,
            block / number,
            math.log1p(block),
            math.log1p(number - 1 - block),
            float(block - h1) if h1 >= 0 else FAR,
            np.sign(block - h1) * math.log1p(abs(words - before[_WORDS, h1])) if h1 >= 0 else FAR,
            float(block - heading) if heading >= 0 else -1.0,
            float(places[_TAG, element[heading]]) if heading >= 0 else 0.0,
            float(rows[heading, 0]) if heading >= 0 else -1.0,
            float(rows[heading, _PHRASE]) if heading >= 0 else 0.0,
        )
        _put(rows, block, at, values)
    return at + 16


ALIKE = listed("alike|alike words|alike link share|alike share")


@inner
def _alike(rows: Any, at: int, element: Integers, places: Any, counts: Any, before: Any) -> int:
    """What other blocks of the same shape are like."""
    means = _means_of_equal(places[_SHAPE], element, counts)
    for block in range(len(rows)):
        kind = places[_SHAPE, element[block]]
        alike, words = means[0, kind], means[1 + _WORDS, kind]
        share = means[1 + _LINKS, kind] / means[1 + _LETTERS, kind]
        _put(
            rows, block, at, (math.log1p(alike), math.log1p(words), share, alike * words / max(1.0, before[_WORDS, -1]))
        )
    return at + 4


AROUND = listed("words|share|link share|blocks|words a block|paragraphs|stops|children|alike|alike words|words before")


@inner
def _around(rows: Any, at: int, element: Integers, places: Any, before: Any, held: Any) -> int:
    """What the elements around a block hold, for each of LEVELS."""
    total, of_elements = max(1.0, before[_WORDS, -1]), np.empty((held.shape[1], 11))
    alike = _means_of_equal(places[_SHAPE], np.arange(held.shape[1]), held)
    for one in range(held.shape[1]):
        words, blocks, kind = held[_WORDS, one], float(places[LAST, one] - places[FIRST, one]), places[_SHAPE, one]
        values = (
            math.log1p(words),
            words / total,
            held[_LINKS, one] / max(1.0, held[_LETTERS, one]),
            math.log1p(blocks),
            math.log1p(words / max(1.0, blocks)),
            held[_PARAGRAPHS, one] / max(1.0, words),
            held[_STOPS, one] / max(1.0, words),
            math.log1p(places[_CHILDREN, one]),
            math.log1p(alike[0, kind]),
            math.log1p(alike[1 + _WORDS, kind]),
        )
        _put(of_elements, one, 0, values)
    for block in range(len(rows)):
        around, level, column = element[block], 0, at
        for wanted in LEVELS:
            while level < wanted:
                around, level = places[_PARENT, around], level + 1
            words = before[_WORDS, block] - before[_WORDS, places[FIRST, around]]
            of_elements[around, 10] = words / max(1.0, held[_WORDS, around])
            _put(rows, block, column, of_elements[around])
            column += 11
    return at + 11 * len(LEVELS)


PART = listed("in part|place in part|share of part|depth in part")


@inner
def _parts(rows: Any, at: int, element: Integers, places: Any, before: Any, held: Any) -> int:
    """Where a block stands in the parts with the prose, for each of SHARES."""
    for share in SHARES:
        part = _innermost(held, _PROSE, share * before[_PROSE, -1], places)
        begin, end = places[FIRST, part], places[LAST, part]
        for block in range(len(rows)):
            values = (
                _flag(begin <= block < end),
                (block - begin) / max(1, end - begin),
                held[_WORDS, part] / max(1.0, before[_WORDS, -1]),
                float(places[_DEPTH, element[block]] - places[_DEPTH, part]),
            )
            _put(rows, block, at, values)
        at += 4
    return at


DENSEST = listed("""
in densest|depth in densest|place in densest|in or beside densest|score of parent|score of grandparent|score around
share of densest|second densest
""")


@inner
def _scores(element: Integers, places: Any, counts: Any, held: Any, kinds: Any) -> Any:
    """How dense the paragraphs of each element are, by the scores of Readability (arc90, 2009).

    A paragraph of 25 characters gives what it lies in a point, one more for each comma, and one for each 100
    characters up to 3; and half as much to what that lies in. The share of links is taken off.
    """
    scores = np.zeros(places.shape[1])
    for block in range(len(element)):
        holder = element[block]
        kind, length = (
            kinds[places[_TAG, holder]],
            max(counts[_LETTERS, block], CHARACTERS_A_WORD * counts[_WORDS, block]),
        )
        if length >= PARAGRAPH_CHARACTERS and not kind & NO_PARAGRAPH:
            points = 1 + counts[_COMMAS, block] + min(3.0, math.floor(length / 100))
            holder = holder if kind & HOLDER else places[_PARENT, holder]
            scores[holder] += points
            scores[places[_PARENT, holder]] += points / 2
    for one in range(len(scores)):
        scores[one] *= 1 - held[_LINKS, one] / max(1.0, held[_LETTERS, one])
    return scores


@inner
def _densest(rows: Any, at: int, element: Integers, places: Any, before: Any, scores: Any) -> int:
    """Where the paragraphs are densest."""
    best, second = 0, -np.inf
    for one in range(1, len(scores)):
        if scores[one] > scores[best]:
            best, second = one, scores[best]
        else:
            second = max(second, scores[one])
    highest, found = max(1.0, scores[best]), scores[best] > 0
    begin, end = (places[FIRST, best], places[LAST, best]) if found else (0, 0)
    # Readability takes elements beside the best, too, if they have a fifth of its score.
    opened = np.zeros(len(rows) + 1, np.int64)
    for one in range(1, len(scores)):
        is_beside = places[_PARENT, one] == places[_PARENT, best] and scores[one] >= max(10.0, highest / 5)
        if found if one == best else is_beside:
            opened[places[FIRST, one]] += 1
            opened[places[LAST, one]] -= 1
    beside = 0
    for block in range(len(rows)):
        beside += opened[block]
        own, is_inside = element[block], begin <= block < end
        largest, around = scores[own], own
        for _ in range(DENSE_LEVELS):
            around = places[_PARENT, around]
            largest = max(largest, scores[around])
        values = (
            _flag(is_inside),
            float(places[_DEPTH, own] - places[_DEPTH, best]) if is_inside else -1.0,
            (block - begin) / max(1, end - begin),
            _flag(beside > 0),
            scores[places[_PARENT, own]] / highest,
            scores[places[_PARENT, places[_PARENT, own]]] / highest,
            largest / highest,
            (before[_WORDS, end] - before[_WORDS, begin]) / before[_WORDS, -1],
            second / highest,
        )
        _put(rows, block, at, values)
    return at + 9


PROSE = listed("from first prose|from last prose|from previous prose|from next prose")


@inner
def _prose(rows: Any, at: int, counts: Any) -> int:
    """How far a block is from prose."""
    first = last = -1
    for block in range(len(rows)):
        if counts[_PROSE, block]:
            first, last = block if first < 0 else first, block
    previous, following = first, last
    for block in range(len(rows)):
        if counts[_PROSE, block]:
            previous = block
        behind = (float(block - first), float(block - last), float(block - previous), 0.0)
        _put(rows, block, at, behind if first >= 0 else (FAR, FAR, FAR, FAR))
    for block in range(len(rows) - 1, -1 if first >= 0 else len(rows), -1):
        if counts[_PROSE, block]:
            following = block
        rows[block, at + 3] = following - block
    return at + 4


WHERE = (-2, -1, 1, 2)


@inner
def _neighbours(rows: Any, at: int, values: Any) -> int:
    """The values of the blocks before and behind each; -1 where there is none."""
    for by in WHERE:
        for block in range(len(rows)):
            rows[block, at] = values[block + by] if 0 <= block + by < len(rows) else -1
        at += 1
    return at


WITHIN = listed("words|link share|stops")


@inner
def _within(rows: Any, at: int, before: Any) -> int:
    """What the blocks within each of REACHES are like."""
    for reach in REACHES:
        for block in range(len(rows)):
            low, high = max(0, block - reach), min(len(rows), block + reach + 1)
            words = before[_WORDS, high] - before[_WORDS, low]
            links = before[_LINKS, high] - before[_LINKS, low]
            letters = before[_LETTERS, high] - before[_LETTERS, low]
            stops = before[_STOPS, high] - before[_STOPS, low]
            values = (math.log1p(words / (high - low)), links / max(1.0, letters), stops / max(1.0, words))
            _put(rows, block, at, values)
        at += 3
    return at


@inner
def _names(rows: Any, at: int, element: Integers, places: Any, hints: int, landmarks: int) -> int:
    """What the names of the elements around a block hint at, near, anywhere, and in the middle; its landmarks."""
    for block in range(len(rows)):
        own = around = element[block]
        near = middle = places[_HINTS, own]
        for level in range(1, MIDDLE + 1):
            around = places[_PARENT, around]
            middle |= places[_HINTS, around]
            if level <= NEAR:
                near = middle
        for bit in range(hints):
            rows[block, at + 3 * bit] = near >> bit & 1
            rows[block, at + 3 * bit + 1] = places[_ALL_HINTS, own] >> bit & 1
            rows[block, at + 3 * bit + 2] = middle >> bit & 1
        for bit in range(landmarks):
            rows[block, at + 3 * hints + bit] = places[_LANDMARKS, own] >> bit & 1
    return at + 3 * hints + landmarks


PAGE = listed("""
page words|page blocks|page link share|page words a block|page prose|page long|page paragraphs|page labels
page headings|page questions|page alike
""")


@inner
def _page(rows: Any, at: int, element: Integers, places: Any, counts: Any, before: Any, kinds: Any) -> int:
    """The page as a whole."""
    number, total = len(rows), max(1.0, before[_WORDS, -1])
    long, headings, labels, questions, alike = 0, 0, 0, 0, 0.0
    for block in range(number):
        long += counts[_WORDS, block] >= LONG_WORDS
        headings += kinds[places[_TAG, element[block]]] & HEADING != 0
        labels += rows[block, _LABEL] > 0
        questions += rows[block, _QUESTION] > 0
        alike = max(alike, float(rows[block, _ALIKE]))
    values = (
        math.log1p(total),
        math.log1p(number),
        before[_LINKS, -1] / max(1.0, before[_LETTERS, -1]),
        total / number,
        before[_PROSE, -1] / total,
        long / number,
        before[_PARAGRAPHS, -1] / total,
        labels / number,
        headings / number,
        questions / number,
        alike,
    )
    for block in range(number):
        _put(rows, block, at, values)
    return at + 11


@inner
def _names_of_page(rows: Any, at: int, names: int, hints: int, landmarks: int, counts: Any, total: float) -> int:
    """The share of a page's words of which each name is said, by the columns from `names` on."""
    for bit in range(hints + landmarks):
        column, share = names + (3 * bit + 1 if bit < hints else 2 * hints + bit), 0.0
        for block in range(len(rows)):
            share += counts[_WORDS, block] * rows[block, column]
        for block in range(len(rows)):
            rows[block, at + bit] = share / total
    return at + hints + landmarks


@compiled(
    types.Tuple((_ROWS, _FLOATS))(
        *(BYTES, _INTEGERS, types.float64[:, ::1], types.int64[:, ::1], _INTEGERS, types.int64[:, ::1], _INTEGERS),
        *(types.int64, types.int64, types.int64, _FLOATS),
    )
)
def rows_of(
    data: Any,
    lengths: Integers,
    said: Any,
    linked: Any,
    element: Integers,
    places: Any,
    kinds: Integers,
    hints: int,
    landmarks: int,
    width: int,
    page: Floats,
) -> Any:
    """(rows of features, shape (blocks, width); the words of each block).

    Args:
        data: all texts in UTF-8, one behind the other.
        lengths: of each in characters, at least 1.
        said: the last SAID of TEXT, shape (blocks, SAID).
        linked: of each block its characters in links, its links, and its bold characters, shape (3, blocks).
        element: the element of each.
        places: shape (PLACES, elements).
        kinds: bits of elements by their tags.
        hints, landmarks: numbers of bits.
        width: the number of features.
        page: the length of the page's HTML, and its own features, which are the last columns.
    """
    texts = _counted(data, lengths)
    counts = _counts(texts, element, places, linked, kinds)
    before = _sums(counts)
    held = _held(before, places)
    rows = np.empty((len(lengths), width), np.float32)
    at = _text(rows, 0, texts, said, counts)
    at = _place(rows, at, element, places, counts, before, linked, kinds)
    at = _alike(rows, at, element, places, counts, before)
    at = _around(rows, at, element, places, before, held)
    at = _parts(rows, at, element, places, before, held)
    at = _densest(rows, at, element, places, before, _scores(element, places, counts, held, kinds))
    at = _prose(rows, at, counts)
    for column in _NEIGHBOURS:
        values = np.empty(len(rows))
        for block in range(len(rows)):
            values[block] = rows[block, column] if len(rows) > 2 else -1
        at = _neighbours(rows, at, values)
    names = _within(rows, at, before)
    at = names_end = _names(rows, names, element, places, hints, landmarks)
    at = _page(rows, at + 1, element, places, counts, before, kinds)
    at = _names_of_page(rows, at, names, hints, landmarks, counts, max(1.0, before[_WORDS, -1]))
    for block in range(len(rows)):
        rows[block, names_end] = page[0]
        _put(rows, block, at, page[1:])
    return rows, counts[_WORDS]


# The context of a block, by what a forest says of all blocks of its page.

CONTEXT_REACHES = (3, 10, 30)
CONTEXT_LEVELS = (0, 1, 2, 3, 5, 7)
"""How far up the elements around a block are looked at; 0 is its own."""
CONTEXT_SHARES = (0.5, 0.8)
"""The innermost element with this share of the expected text is looked at."""
_TINY = 1e-9
OF_TEXT = listed("text before|likely if alike|text alike|likely on the page|text words")
OF_RUN = listed("in run|from run|words from run|text in run")


@inner
def _run(gains: Any) -> tuple[int, int]:
    """Of sums the places between which they rise most: the earliest end, and its earliest begin."""
    begin = end = lowest = 0
    for place in range(len(gains)):
        if gains[place] < gains[lowest]:
            lowest = place
        if gains[place] - gains[lowest] > gains[end] - gains[begin]:
            begin, end = lowest, place
    return begin, end


@inner
def _context(rows: Any, at: int, element: Integers, places: Any, words: Floats, odds: Floats, likely: Floats) -> int:
    """Write the context of blocks, by the logarithm of the odds that each is main text, and how `likely` that makes it.

    Whether a short text beside a list of teasers is the main one, or a part of that list, depends on what the others
    are taken for: those around it, those of its shape, those in the elements that it lies in, and the page as a whole.
    """
    number = len(rows)
    counts = np.empty((3, number))
    for block in range(number):
        rows[block, at] = odds[block]
        text = likely[block] * words[block]
        counts[0, block], counts[1, block], counts[2, block] = words[block], text, (likely[block] - 0.5) * words[block]
    before, alike = _sums(counts), _means_of_equal(places[_SHAPE], element, counts)
    held, all_text = _held(before, places), before[1, -1]
    expected = max(_TINY, all_text)
    at = _neighbours(rows, at + 1, likely)
    for reach in CONTEXT_REACHES:
        for block in range(number):
            low, high = max(0, block - reach), min(number, block + reach + 1)
            rows[block, at] = (before[1, high] - before[1, low]) / max(_TINY, before[0, high] - before[0, low])
        at += 1
    # The run of blocks with the most words that are more likely text than not, less those that are not.
    begin, end = _run(before[2])
    for block in range(number):
        kind, around, level, column = places[_SHAPE, element[block]], element[block], 0, at + 5
        of_text = (
            before[1, block] / expected,
            alike[2, kind] / max(_TINY, alike[1, kind]),
            alike[0, kind] * alike[2, kind] / expected,
            all_text / before[0, -1],
            math.log1p(all_text),
        )
        _put(rows, block, at, of_text)
        for wanted in CONTEXT_LEVELS:
            while level < wanted:
                around, level = places[_PARENT, around], level + 1
            _put(rows, block, column, (held[1, around] / max(_TINY, held[0, around]), held[1, around] / expected))
            column += 2
        away, words_away = 0, 0.0
        if block < begin:
            away, words_away = block - begin, -math.log1p(before[0, begin] - before[0, block])
        elif block >= end:
            away, words_away = block - end + 1, math.log1p(before[0, block + 1] - before[0, end])
        share = (before[1, end] - before[1, begin]) / expected
        _put(rows, block, column, (_flag(begin <= block < end), float(away), words_away, share))
    at += 5 + 2 * len(CONTEXT_LEVELS) + 4
    for share in CONTEXT_SHARES:
        part = _innermost(held, 1, share * all_text, places)
        for block in range(number):
            inside = _flag(places[FIRST, part] <= block < places[LAST, part])
            _put(rows, block, at, (inside, held[1, part] / max(_TINY, held[0, part])))
        at += 2
    return at


@compiled(
    _ROWS(_ROWS, _FLOATS, _INTEGERS, types.int64[:, ::1], types.float64[:, ::1], types.float64[:, ::1], types.int64)
)
def rows_with_context(
    rows: Any, words: Floats, element: Integers, places: Any, odds: Any, likely: Any, width: int
) -> Any:
    """Rows of features, and behind them the context by each forest, of whose `odds` and what is `likely` a row each."""
    wide = np.empty((len(rows), width), np.float32)
    for block in range(len(rows)):
        _put(wide, block, 0, rows[block])
    at = rows.shape[1]
    for forest in range(len(odds)):
        at = _context(wide, at, element, places, words, odds[forest], likely[forest])
    return wide
