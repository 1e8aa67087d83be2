"""The numbers of a page's blocks in compiled code: `features` and `choice` say what they are, and name them.

A page has some hundred blocks and 300 numbers for each. By operations on arrays, a few for each number, most of the
time was that of calling them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from webtext_prep.compiled import BYTES, compiled, inner

HEADING, TITLE, PARAGRAPH, BUTTON, HOLDER = 1, 2, 4, 8, 16
"""Bits of an element's number: a heading, one of the highest level, a paragraph, a button; it holds paragraphs, so that
text in it directly is one."""
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
REACHES = (3, 10)
"""How many blocks before and behind are looked at together."""
AHEAD = (-2, -1, 1, 2)
"""The blocks next to one that are looked at by themselves."""
FAR = -999.0
"""A distance to something that is not there."""
CONTEXT_LEVELS = (0, 1, 2, 3, 5, 7)
"""How far up the elements around a block are looked at for its context; 0 is its own."""
CONTEXT_SHARES = (0.5, 0.8)
"""The innermost element with this share of the expected text is looked at."""
CONTEXT_REACHES = (3, 10, 30)
AROUND = 11
"""Features of an element around a block."""
_TINY = 1e-9

_CLASSES = np.zeros((256, 6), np.int64)
"""Bytes that are: the first of a character, a stop, a space, a separator, of writing without spaces (by the first), a
comma or semicolon (of wide ones, as of all in their block of Unicode, the first)."""
_CLASSES[:, 0] = [(byte & 0xC0) != 0x80 for byte in range(256)]
_CLASSES[list(b".!?"), 1] = 1
_CLASSES[list(b" \n"), 2] = 1
_CLASSES[list(b"|"), 3] = 1
_CLASSES[0xE3:0xEE, 4] = 1
_CLASSES[[*b",;", 0xEF], 5] = 1
_ENDS = np.zeros(256, np.bool_)
_ENDS[[*b'.!?:"', 0x82, 0x9D]] = True  # the last also of the ideographic stop and the closing quotation mark

_NUMBERS, _FLOATS, _TABLE = types.int64[::1], types.float64[::1], types.float64[:, ::1]


@inner
def _small(byte: int) -> int:
    """A letter of ASCII as a small one."""
    return byte | 32 if 65 <= byte <= 90 else byte


@compiled(_NUMBERS(BYTES, BYTES, _NUMBERS, _NUMBERS, types.boolean[::1]))
def counts(data: Any, names: Any, ends: Any, by_first: Any, begins: Any) -> Any:
    """How often each name stands in bytes, in whatever case. Those that begin with byte b are `by_first[b]` up to
    `by_first[b + 1]`; `begins[b]` is whether one begins with three bytes whose last five bits each are those of b."""
    counts = np.zeros(len(ends) - 1, np.int64)
    begin_bits = 0
    for last in range(len(data)):
        begin_bits = (begin_bits << 5 | data[last] & 31) & 0x7FFF
        at = last - 2
        if at < 0 or not begins[begin_bits]:
            continue
        first = _small(data[at])
        for name in range(by_first[first], by_first[first + 1]):
            begin, length = ends[name], ends[name + 1] - ends[name]
            matched = 1
            while (
                matched < length and at + matched < len(data) and _small(data[at + matched]) == names[begin + matched]
            ):
                matched += 1
            counts[name] += matched == length
    return counts


@inner
def _classes_of_texts(data: Any, lengths: Any) -> Any:
    """Of each text how many bytes are of each class; then its first byte, and its last one.

    Args:
        data: all texts in UTF-8, concatenated.
        lengths: of each in characters, at least 1.
    """
    kinds = _CLASSES.shape[1]
    counts = np.zeros((len(lengths), kinds + 2), np.int64)
    at = 0
    for text in range(len(lengths)):
        count = counts[text]
        count[kinds] = data[at]
        left = lengths[text]
        while at < len(data) and (left > 0 or not _CLASSES[data[at], 0]):
            left -= _CLASSES[data[at], 0]
            for kind in range(kinds):
                count[kind] += _CLASSES[data[at], kind]
            at += 1
        count[kinds + 1] = data[at - 1]
    return counts


@inner
def _sums(values: Any) -> Any:
    """Sums of all values before each place, and of all."""
    out = np.zeros(len(values) + 1)
    for at in range(len(values)):
        out[at + 1] = out[at] + values[at]
    return out


@inner
def _largest(numbers: Any) -> int:
    largest = 0
    for number in numbers:
        largest = max(largest, number)
    return largest


@inner
def _innermost(held: Any, least: float, depth: Any) -> int:
    """The deepest element that holds at least so much, the first of several."""
    found = -1
    for element in range(len(held)):
        if held[element] >= least and (found < 0 or depth[element] > depth[found]):
            found = element
    return max(0, found)


@inner
def _scores(words: Any, characters: Any, commas: Any, link_shares: Any, element: Any, parent: Any, kinds: Any) -> Any:
    """How dense the paragraphs in each element are, by the scores of Readability (arc90, 2009).

    A paragraph of 25 characters gives what it lies in a point, one more for each comma, and one for each 100 characters
    up to 3; and half as much to what that lies in. The share of links of elements is taken off their scores.
    """
    scores = np.zeros(len(parent))
    for block in range(len(words)):
        length = max(characters[block], CHARACTERS_A_WORD * words[block])
        kind = kinds[block]
        if length < PARAGRAPH_CHARACTERS or kind & (HEADING | BUTTON):
            continue
        points = 1 + commas[block] + min(3.0, math.floor(length / 100))
        holder = element[block] if kind & HOLDER else parent[element[block]]
        scores[holder] += points
        scores[parent[holder]] += points / 2
    for one in range(len(scores)):
        scores[one] *= 1 - link_shares[one]
    return scores


@compiled(
    types.Tuple((types.float32[:, ::1], _FLOATS))(
        BYTES, *[_NUMBERS] * 2, _TABLE, *[_NUMBERS] * 15, types.int64, types.int64, _FLOATS
    )
)
def describe(
    data: Any,
    lengths: Any,
    kinds_of_tags: Any,
    said: Any,
    element: Any,
    link_characters: Any,
    links: Any,
    bold_characters: Any,
    parent: Any,
    depth: Any,
    tag: Any,
    children: Any,
    hints: Any,
    all_hints: Any,
    landmarks: Any,
    unseen: Any,
    shape: Any,
    first: Any,
    last: Any,
    hint_count: int,
    landmark_count: int,
    of_html: Any,
) -> Any:
    """(blocks, features) of a page, and the words of each block.

    Args:
        data, lengths: the texts of blocks in UTF-8, concatenated, and the characters of each.
        kinds_of_tags: bits of each number of an element.
        said: (5, blocks), what else is known of each text: `features.OF_TEXTS` from "phrase" on.
        element, link_characters, links, bold_characters: of blocks, as all that follow as `Blocks` has them.
        hint_count, landmark_count: how many bits there are of each.
        of_html: features of the page that its HTML says.
    """
    number, elements = len(element), len(parent)
    classes = _classes_of_texts(data, lengths)
    words, characters, linked, stops = np.empty(number), np.empty(number), np.empty(number), np.empty(number)
    paragraphs, prose, link_shares = np.empty(number), np.empty(number), np.empty(number)
    stop_shares, commas = np.empty(number), np.empty(number)
    kinds = np.empty(number, np.int64)
    for block in range(number):
        count = classes[block]
        characters[block] = max(1.0, count[0])
        words[block] = max(count[2] + 1.0, count[4] / 2)
        linked[block] = min(float(link_characters[block]), characters[block])
        stop_shares[block] = count[1] / words[block]
        stops[block] = stop_shares[block] * words[block]
        commas[block] = count[5]
        kinds[block] = kinds_of_tags[tag[element[block]]]
        paragraphs[block] = words[block] if kinds[block] & PARAGRAPH else 0.0
        link_shares[block] = linked[block] / characters[block]
        prose[block] = words[block] if words[block] >= PROSE_WORDS and link_shares[block] < 0.5 else 0.0
    w, c, l, s = _sums(words), _sums(characters), _sums(linked), _sums(stops)  # noqa: E741
    p, of_paragraphs = _sums(prose), _sums(paragraphs)
    total = max(1.0, w[number])

    # Blocks of one shape, and elements of one shape.
    shapes = _largest(shape) + 1
    alike, alike_words, alike_links = np.zeros(shapes), np.zeros(shapes), np.zeros(shapes)
    alike_characters, shape_counts, shape_words = np.zeros(shapes), np.zeros(shapes), np.zeros(shapes)
    for block in range(number):
        kind = shape[element[block]]
        alike[kind] += 1
        alike_words[kind] += words[block]
        alike_links[kind] += linked[block]
        alike_characters[kind] += characters[block]
    held_words, held_prose, held_link_shares = np.empty(elements), np.empty(elements), np.empty(elements)
    for one in range(elements):
        begin, end = first[one], last[one]
        held_words[one], held_prose[one] = w[end] - w[begin], p[end] - p[begin]
        held_link_shares[one] = (l[end] - l[begin]) / max(1.0, c[end] - c[begin])
        shape_counts[shape[one]] += 1
        shape_words[shape[one]] += held_words[one]
    of_elements = np.empty((elements, AROUND))
    for one in range(elements):
        begin, end = first[one], last[one]
        held, blocks, row, kind = held_words[one], float(end - begin), of_elements[one], shape[one]
        row[0], row[1], row[2] = math.log1p(held), held / total, held_link_shares[one]
        row[3], row[4] = math.log1p(blocks), math.log1p(held / max(1.0, blocks))
        row[5] = (of_paragraphs[end] - of_paragraphs[begin]) / max(1.0, held)
        row[6] = (s[end] - s[begin]) / max(1.0, held)
        row[7], row[8] = math.log1p(float(children[one])), math.log1p(shape_counts[kind])
        row[9], row[10] = math.log1p(shape_words[kind] / shape_counts[kind]), w[begin]

    # The parts with the prose, and the densest one.
    parts = np.empty(len(SHARES), np.int64)
    for share in range(len(SHARES)):
        parts[share] = _innermost(held_prose, SHARES[share] * p[number], depth)
    scores = _scores(words, characters, commas, held_link_shares, element, parent, kinds)
    best = 0
    for one in range(elements):
        best = one if scores[one] > scores[best] else best
    highest = max(1.0, scores[best])
    dense_begin, dense_end = (first[best], last[best]) if scores[best] > 0 else (0, 0)
    second, is_second_known = 0.0, False
    opened = np.zeros(number + 1)
    for one in range(elements):
        if one != best and (not is_second_known or scores[one] > second):
            second, is_second_known = scores[one], True
        # Readability takes elements beside the best, too, if they have a fifth of its score.
        is_beside = parent[one] == parent[best] and scores[one] >= max(10.0, highest / 5)
        if one == best:
            is_beside = scores[best] > 0
        if is_beside and one > 0:
            opened[first[one]] += 1
            opened[last[one]] -= 1
    dense_share = (w[dense_end] - w[dense_begin]) / w[number]

    # The prose before each block and behind it.
    before, behind = np.empty(number, np.int64), np.empty(number, np.int64)
    first_prose, last_prose = -1, -1
    for block in range(number):
        if prose[block] > 0:
            first_prose = block if first_prose < 0 else first_prose
            last_prose = block
        before[block] = last_prose
    following = last_prose
    for block in range(number - 1, -1, -1):
        following = block if prose[block] > 0 else following
        behind[block] = following

    width = said.shape[0] + 28 + AROUND * len(LEVELS) + 4 * len(SHARES) + 9 + 4 + 4 * len(AHEAD) + 3 * len(REACHES)
    width += 3 * hint_count + landmark_count
    page = np.zeros(11 + hint_count + landmark_count + len(of_html))
    rows = np.empty((number, width + len(page)), np.float32)
    title, heading, inside_beside = -1, -1, 0.0
    for block in range(number):
        if title < 0 and kinds[block] & TITLE:
            title = block
    around = np.empty(max(DENSE_LEVELS, LEVELS[-1]) + 1, np.int64)
    for block in range(number):
        row, count, own = rows[block], classes[block], element[block]
        around[0] = own
        for level in range(1, len(around)):
            around[level] = parent[around[level - 1]]
        kind = shape[own]
        # What it says, and how it is written.
        row[0], row[1] = math.log1p(words[block]), math.log1p(characters[block])
        row[2], row[3], row[4] = characters[block] / words[block], stop_shares[block], count[3]
        row[5], row[6] = _ENDS[count[7]], count[7] == ord("?")
        row[7] = ord("a") <= count[6] and count[6] <= ord("z")
        at = 8
        for what in range(said.shape[0]):
            row[at + what] = said[what, block]
        at += said.shape[0]
        row[at], row[at + 1] = math.log1p(float(links[block])), link_shares[block]
        row[at + 2] = min(1.0, bold_characters[block] / characters[block])
        row[at + 3], row[at + 4], row[at + 5] = tag[own], unseen[own], depth[own]
        # Where it stands.
        at += 6
        row[at], row[at + 1] = w[block] / total, block / number
        row[at + 2], row[at + 3] = math.log1p(float(block)), math.log1p(float(number - 1 - block))
        row[at + 4] = block - title if title >= 0 else FAR
        away = math.log1p(abs(w[block] - w[title])) if title >= 0 else FAR
        row[at + 5] = away if title < 0 else away * ((block > title) - (block < title))
        # Its heading.
        at += 6
        heading = block if kinds[block] & HEADING else heading
        if heading >= 0:
            row[at], row[at + 1] = block - heading, tag[element[heading]]
            row[at + 2], row[at + 3] = math.log1p(words[heading]), said[0, heading]
        else:
            row[at], row[at + 1], row[at + 2], row[at + 3] = -1.0, 0.0, -1.0, 0.0
        # Its likeness to others on the page.
        at += 4
        mean = alike_words[kind] / alike[kind]
        row[at], row[at + 1] = math.log1p(alike[kind]), math.log1p(mean)
        row[at + 2] = (alike_links[kind] / alike[kind]) / (alike_characters[kind] / alike[kind])
        row[at + 3] = alike[kind] * mean / total
        # The elements around it.
        at += 4
        for level in LEVELS:
            of_level = of_elements[around[level]]
            for what in range(AROUND - 1):
                row[at + what] = of_level[what]
            row[at + AROUND - 1] = (w[block] - of_level[AROUND - 1]) / max(1.0, held_words[around[level]])
            at += AROUND
        # The parts with the prose.
        for part in parts:
            begin, end = first[part], last[part]
            row[at], row[at + 1] = begin <= block and block < end, (block - begin) / max(1, end - begin)
            row[at + 2], row[at + 3] = held_words[part] / total, depth[own] - depth[part]
            at += 4
        # The densest part.
        is_inside = dense_begin <= block and block < dense_end
        inside_beside += opened[block]
        largest = scores[own]
        for level in range(1, DENSE_LEVELS + 1):
            largest = max(largest, scores[around[level]])
        row[at], row[at + 1] = is_inside, depth[own] - depth[best] if is_inside else -1.0
        row[at + 2] = (block - dense_begin) / max(1, dense_end - dense_begin)
        row[at + 3] = inside_beside > 0
        row[at + 4], row[at + 5] = scores[around[1]] / highest, scores[around[2]] / highest
        row[at + 6], row[at + 7], row[at + 8] = largest / highest, dense_share, second / highest
        # The prose around it.
        at += 9
        if first_prose >= 0:
            row[at], row[at + 1] = block - first_prose, block - last_prose
            row[at + 2] = block - (before[block] if before[block] >= 0 else first_prose)
            row[at + 3] = behind[block] - block
        else:
            row[at], row[at + 1], row[at + 2], row[at + 3] = FAR, FAR, FAR, FAR
        # Its neighbours.
        at += 4
        for ahead in AHEAD:
            near = block + ahead
            if number > 2 and near >= 0 and near < number:
                row[at], row[at + 4] = math.log1p(words[near]), link_shares[near]
                row[at + 8], row[at + 12] = tag[element[near]], depth[element[near]]
            else:
                row[at], row[at + 4], row[at + 8], row[at + 12] = -1.0, -1.0, -1.0, -1.0
            at += 1
        at += 3 * len(AHEAD)
        for reach in REACHES:
            low, high = max(0, block - reach), min(number, block + reach + 1)
            near_words = w[high] - w[low]
            row[at] = math.log1p(near_words / (high - low))
            row[at + 1] = (l[high] - l[low]) / max(1.0, c[high] - c[low])
            row[at + 2] = (s[high] - s[low]) / max(1.0, near_words)
            at += 3
        # Names and landmarks.
        near_hints = hints[own] | hints[around[1]] | hints[around[2]]
        middle = near_hints | hints[around[3]] | hints[around[4]]
        for bit in range(hint_count):
            is_in = all_hints[own] >> bit & 1
            row[at], row[at + 1], row[at + 2] = near_hints >> bit & 1, is_in, middle >> bit & 1
            page[11 + bit] += is_in * words[block]
            at += 3
        for bit in range(landmark_count):
            is_in = landmarks[own] >> bit & 1
            row[at + bit] = is_in
            page[11 + hint_count + bit] += is_in * words[block]
        page[5] += words[block] >= LONG_WORDS
        page[7] += said[1, block]
        page[8] += kinds[block] & HEADING > 0
        page[9] += count[7] == ord("?")
        page[10] = max(page[10], math.log1p(alike[kind]))

    # The page as a whole.
    page[0], page[1], page[2] = math.log1p(total), math.log1p(float(number)), l[number] / max(1.0, c[number])
    page[3], page[4], page[6] = total / number, p[number] / total, of_paragraphs[number] / total
    page[5], page[7], page[8], page[9] = page[5] / number, page[7] / number, page[8] / number, page[9] / number
    for bit in range(11, 11 + hint_count + landmark_count):
        page[bit] /= total
    for what in range(len(of_html)):
        page[11 + hint_count + landmark_count + what] = of_html[what]
    for block in range(number):
        for what in range(len(page)):
            rows[block, width + what] = page[what]
    return rows, words


@compiled(types.float32[:, ::1](types.float32[:, ::1], _FLOATS, _FLOATS, *[_NUMBERS] * 6))
def with_context(
    rows: Any, words: Any, odds: Any, element: Any, parent: Any, depth: Any, shape: Any, first: Any, last: Any
) -> Any:
    """(blocks, features and context) of a page.

    Args:
        rows: (blocks, features).
        words: of each block.
        odds: the logarithm of the odds that each is main text.
        element, parent, depth, shape, first, last: of the page, as `Blocks` has them.
    """
    number, elements, width = len(element), len(parent), rows.shape[1]
    likely, of_text, gains = np.empty(number), np.empty(number), np.empty(number)
    for block in range(number):
        # Without the last digits of `exp`, which differ between machines.
        likely[block] = np.rint(2**20 / (1 + math.exp(-odds[block]))) / 2**20
        of_text[block] = likely[block] * words[block]
        gains[block] = (likely[block] - 0.5) * words[block]
    w, t, g = _sums(words), _sums(of_text), _sums(gains)
    expected = max(_TINY, t[number])
    shapes = _largest(shape) + 1
    alike, alike_words, alike_text = np.zeros(shapes), np.zeros(shapes), np.zeros(shapes)
    for block in range(number):
        kind = shape[element[block]]
        alike[kind] += 1
        alike_words[kind] += words[block]
        alike_text[kind] += of_text[block]
    held_words, held_text = np.empty(elements), np.empty(elements)
    for one in range(elements):
        held_words[one], held_text[one] = w[last[one]] - w[first[one]], t[last[one]] - t[first[one]]
    # The run of blocks with the most words that are more likely text than not, less those that are not.
    begin, end, lowest, most = 0, 0, 0, 0.0
    for place in range(1, number + 1):
        if g[place] < g[lowest]:
            lowest = place
        if g[place] - g[lowest] > most:
            begin, end, most = lowest, place, g[place] - g[lowest]
    parts = np.empty(len(CONTEXT_SHARES), np.int64)
    for share in range(len(CONTEXT_SHARES)):
        parts[share] = _innermost(held_text, CONTEXT_SHARES[share] * t[number], depth)

    columns = 1 + len(AHEAD) + len(CONTEXT_REACHES) + 5 + 2 * len(CONTEXT_LEVELS) + 4 + 2 * len(CONTEXT_SHARES)
    wide = np.empty((number, width + columns), np.float32)
    around = np.empty(CONTEXT_LEVELS[-1] + 1, np.int64)
    for block in range(number):
        row, kind = wide[block], shape[element[block]]
        for what in range(width):
            row[what] = rows[block, what]
        row[width] = odds[block]
        at = width + 1
        for ahead in AHEAD:
            near = block + ahead
            row[at] = likely[near] if near >= 0 and near < number else -1.0
            at += 1
        for reach in CONTEXT_REACHES:
            low, high = max(0, block - reach), min(number, block + reach + 1)
            row[at] = (t[high] - t[low]) / max(_TINY, w[high] - w[low])
            at += 1
        mean_words, mean_text = alike_words[kind] / alike[kind], alike_text[kind] / alike[kind]
        row[at], row[at + 1] = t[block] / expected, mean_text / max(_TINY, mean_words)
        row[at + 2] = alike[kind] * mean_text / expected
        row[at + 3], row[at + 4] = t[number] / w[number], math.log1p(t[number])
        at += 5
        around[0] = element[block]
        for level in range(1, len(around)):
            around[level] = parent[around[level - 1]]
        for level in CONTEXT_LEVELS:
            one = around[level]
            row[at], row[at + 1] = held_text[one] / max(_TINY, held_words[one]), held_text[one] / expected
            at += 2
        row[at], row[at + 1], row[at + 2] = 1.0, 0.0, 0.0
        if block < begin:
            row[at], row[at + 1], row[at + 2] = 0.0, block - begin, -math.log1p(w[begin] - w[block])
        elif block >= end:
            row[at], row[at + 1], row[at + 2] = 0.0, block - end + 1, math.log1p(w[block + 1] - w[end])
        row[at + 3] = (t[end] - t[begin]) / expected
        at += 4
        for part in parts:
            row[at] = first[part] <= block and block < last[part]
            row[at + 1] = held_text[part] / max(_TINY, held_words[part])
            at += 2
    return wide
