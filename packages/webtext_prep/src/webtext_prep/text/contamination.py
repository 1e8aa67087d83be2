"""The n-grams of evaluation texts, as arrays that a compiled function looks words up in.

Evaluation sets come in files of any kind that `webtext merge` reads. Of a record every text in it counts (a question,
its choices, its context); of a text each run of `size` words is an n-gram, or the whole text where it has fewer, but
at least `least`. A character that is a word, of Chinese or Thai, counts as the share of a word that it says
(`words.SHARES`), so that n-grams of all scripts say as much: with 13 words 21 characters of Chinese, 39 of Thai.
n-grams are kept as numbers of words, and compared word by word: nothing is left to a hash.

Passages are cut out of a text by the rules of the GPT-3 paper as Megatron-LM wrote them down. Around each n-gram
`margin` characters on both sides go, and from there on the rest of the sentence; the text falls into pieces, and short
ones go, too. (Brown et al. 2020, appendix C; Megatron-LM, tools/openwebtext/filter_ngrams.py.)
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.raw_files import kinds_of_raw_files, reader_of
from webtext_prep.documents.records.base import Keys, Record, SourceFile, Unreadable
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location
from webtext_prep.text import fingerprints
from webtext_prep.text.fingerprints import Shingling
from webtext_prep.text.words import WHOLE_WORD, shares, words_of

_TEXTS = "texts"


EvaluationText = tuple[str, str]
"""Where a text of an evaluation set is, `lambada.jsonl, line 3`, and what it says."""


@dataclass(frozen=True)
class _EveryText(Keys):
    """Of each record, every text under the chosen keys, or under any key if none is chosen."""

    def record(self, value: Any, place: str, url: str) -> Record:
        """See `Keys`."""
        if self.text and isinstance(value, MutableMapping):
            chosen = [value[key] for key in self.text if key in value]
            if not chosen:
                reason = f"none of the keys {', '.join(self.text)}"
                found = ", ".join(sorted(map(str, value))[:8])
                return Record(place, Unreadable(reason, f"but {found or 'none'}"), url)
            value = chosen
        return Record(place, Document(url, "", {_TEXTS: list(_strings(value))}), url)


def _strings(value: Any) -> Iterator[str]:
    """Every string inside a JSON value, in order."""
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, MutableMapping):
            waiting.extend(reversed(list(entry.values())))
        elif isinstance(entry, list | tuple):
            waiting.extend(reversed(entry))


def read_evaluation(files: Sequence[Path], keys: Sequence[str]) -> Iterator[EvaluationText]:
    """Every text of the evaluation files, in order. Raises InputError naming the file and place that can't be read."""
    for path in files:
        reader = reader_of(path)
        if reader is None:
            raise InputError(f"--evaluation {path} has the wrong suffix: here {kinds_of_raw_files()} are read.")
        for record in reader.read(SourceFile(path, path.name), _EveryText(tuple(keys), ())):
            place = f"{path.name}, {record.place}" if record.place else path.name
            if isinstance(record.document, Unreadable):
                raise InputError(f"--evaluation {path}, {record.place or 'as a whole'}: {record.document}.")
            for text in record.document.metadata.get(_TEXTS, [record.document.text]):
                yield place, text


@dataclass(frozen=True)
class NGrams:
    """Distinct n-grams of evaluation texts, and the table to find them by.

    Attributes:
        vocabulary: word to number.
        words: numbers of the words of all texts, one text after another, shape (words,), int32.
        starts: where in `words` each n-gram first stands, shape (n-grams,), int64.
        sizes: words of each n-gram, shape (n-grams,), int32.
        table: open-addressing hash table of n-gram numbers, -1 where empty; its length is a power of two.
        texts: number of the text in which each n-gram first stands, shape (n-grams,), int32.
        places: where each text is.
        beginnings: how each text begins.
        left_out: how many texts are too short to be looked for, and how many records have no other text; `save` keeps
            neither.
        screen: hashes of all runs of as many words as the smallest n-gram has, in the same kind of table, uint64: a
            document without one of them holds no n-gram.
    """

    vocabulary: dict[str, int]
    words: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    table: npt.NDArray[np.int64]
    texts: npt.NDArray[np.int32]
    places: list[str]
    beginnings: list[str]
    screen: npt.NDArray[np.uint64]
    left_out: tuple[int, int] = (0, 0)

    _ARRAYS = ("words", "starts", "sizes", "table", "texts", "screen")
    _LISTS = ("vocabulary", "places", "beginnings")
    SHOWN = 200
    """Characters of an evaluation text that `beginnings` keeps."""

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, found: Iterator[EvaluationText], size: int, least: int) -> NGrams:
        """The n-grams of evaluation texts: runs of `size` words, whole texts of `least` to `size` words: `_spans`."""
        vocabulary: dict[str, int] = {}
        numbers: list[npt.NDArray[np.int32]] = []
        spans: list[list[tuple[int, int]]] = []
        kept: list[EvaluationText] = []
        left_out, records = 0, set[str]()
        for place, text in found:
            words = words_of(text)
            own = _spans(words, size, least)
            if not own:
                left_out += bool(words)
                records.add(place)
                continue
            numbers.append(
                np.fromiter((vocabulary.setdefault(word, len(vocabulary)) for word in words), np.int32, len(words))
            )
            spans.append(own)
            kept.append((place, text))
        joined = np.concatenate([np.zeros(0, np.int32), *numbers])
        starts, sizes, texts = _distinct(numbers, spans)
        table = hash_table(ngram_hashes(joined, starts, sizes), 2 * len(joined))
        runs = Shingling("word", int(sizes.min()) if len(sizes) else size)
        hashes = fingerprints.shingle_sets([text for _, text in kept], runs)[0]
        hashes = np.unique(np.maximum(hashes, np.uint64(1)))  # 0 is an empty slot
        slots = hash_table(hashes, 2 * len(hashes))
        screen = np.where(slots >= 0, np.append(hashes, np.uint64(0))[slots], np.uint64(0))
        places = [place for place, _ in kept]
        beginnings = [" ".join(text[: cls.SHOWN].split()) for _, text in kept]
        short = left_out, len(records.difference(places))
        return cls(vocabulary, joined, starts, sizes, table, texts, places, beginnings, screen, short)

    def text_of(self, number: int) -> str:
        """The words of an n-gram, with a space between two of them."""
        start = int(self.starts[number])
        own = self.words[start : start + int(self.sizes[number])]
        return " ".join(self._spelled[word] for word in own)

    @functools.cached_property
    def _spelled(self) -> list[str]:
        return list(self.vocabulary)

    def suspects(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text may hold an n-gram: true of all that do, and few others. Costs a tenth of `find`."""
        from webtext_prep.text import contamination_kernels

        runs = fingerprints.hashed(texts, Shingling("word", int(self.sizes.min())))
        return [found for own in runs for found in contamination_kernels.any_in(*own, self.screen).tolist()]

    def hits(self, text: str, chosen: npt.NDArray[np.bool_] | None = None) -> list[tuple[int, int]]:
        """First word and number of each n-gram in a text, in order; at each word the longest alone.

        `chosen` says which n-grams count, shape (n-grams,); all of them if None.
        """
        from webtext_prep.text.contamination_kernels import find

        words = words_of(text)
        own = np.fromiter(map(self.vocabulary.get, words, itertools.repeat(-1)), np.int32, len(words))
        chosen = np.ones(len(self), np.bool_) if chosen is None else chosen
        found = find(own, self.words, self.starts, self.sizes, self.table, self._lengths, chosen)
        return list(zip(*(array.tolist() for array in found), strict=True))

    @functools.cached_property
    def _lengths(self) -> npt.NDArray[np.int64]:
        """The sizes of n-grams that there are, falling."""
        return np.unique(self.sizes)[::-1].astype(np.int64)

    def save(self, place: Location) -> None:
        """Write all of it to one file."""
        lists: dict[str, Any] = {name: _packed(list(getattr(self, name))) for name in self._LISTS}
        with storage.create(place, durable=False) as stream:
            np.savez(stream, **lists, **{name: getattr(self, name) for name in self._ARRAYS})

    @classmethod
    def load(cls, place: Location) -> NGrams:
        """Read n-grams that `save` wrote at `place`."""
        with np.load(storage.local_path(place), allow_pickle=False) as file:
            lists: dict[str, Any] = {name: _unpacked(file[name]) for name in cls._LISTS}
            vocabulary = {word: number for number, word in enumerate(lists.pop("vocabulary"))}
            return cls(vocabulary, **lists, **{name: file[name] for name in cls._ARRAYS})


def _spans(words: list[str], size: int, least: int) -> list[tuple[int, int]]:
    """Where n-grams of a text begin, and how many words each has: the fewest that say as much as `size` words, or all
    of a text that says as much as `least`; none of a shorter one."""
    said = np.append(0, np.cumsum(shares(words)))
    ends = np.searchsorted(said, said[:-1] + size * WHOLE_WORD)
    starts = np.flatnonzero(ends < len(said))
    if not len(starts):
        return [(0, len(words))] if words and said[-1] >= least * WHOLE_WORD else []
    return list(zip(starts.tolist(), (ends[starts] - starts).tolist(), strict=True))


def _distinct(
    numbers: Sequence[npt.NDArray[np.int32]], spans: Sequence[list[tuple[int, int]]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Where each different n-gram first stands in the words of all texts, its size, and in which text that is."""
    rows: dict[tuple[int, ...], tuple[int, int, int]] = {}
    begin = 0
    for text, (own, found) in enumerate(zip(numbers, spans, strict=True)):
        words = own.tolist()
        for start, size in found:
            rows.setdefault(tuple(words[start : start + size]), (begin + start, size, text))
        begin += len(words)
    starts, sizes, texts = np.array([*rows.values()], np.int64).reshape(-1, 3).T
    return starts.copy(), sizes.astype(np.int32), texts.astype(np.int32)


def ngram_hashes(
    words: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
) -> npt.NDArray[np.uint64]:
    """FNV-1a over whole words, with a last mixing step (that of MurmurHash3)."""
    values = np.full(len(starts), 0xCBF29CE484222325, np.uint64)
    for at in range(int(sizes.max(initial=0))):
        has = sizes > at
        values[has] = (values[has] ^ words[starts[has] + at].astype(np.uint64)) * np.uint64(0x100000001B3)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    return values ^ (values >> np.uint64(33))


def hash_table(hashes: npt.NDArray[np.uint64], room: int) -> npt.NDArray[np.int64]:
    """Open addressing with linear probing: the position of a hash in `hashes` in each slot, or -1."""
    table = np.full(1 << max(4, room.bit_length()), -1, np.int64)
    waiting, slots = np.arange(len(hashes)), (hashes & np.uint64(len(table) - 1)).astype(np.int64)
    while len(waiting):
        is_free = table[slots] < 0
        table[slots[is_free]] = waiting[is_free]  # of several the last one gets the slot
        is_left = table[slots] != waiting
        waiting, slots = waiting[is_left], (slots[is_left] + 1) & (len(table) - 1)
    return table


def _packed(values: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Strings as bytes, each ended by a zero byte. None of them holds one: white space was joined, words are words."""
    joined = "".join(value.replace("\0", " ") + "\0" for value in values)
    return np.frombuffer(joined.encode("utf-8", "surrogatepass"), np.uint8)


def _unpacked(values: npt.NDArray[np.uint8]) -> list[str]:
    return values.tobytes().decode("utf-8", "surrogatepass").split("\0")[:-1]


# What is cut out of a text


_TERMINALS = (
    r"!.?\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367"
    r"\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f"
    r"\u1b7d-\u1b7f\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u2e60"
    r"\u2e61\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1"
    r"\uabeb\ufe12\ufe15\ufe16\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61"
)
"""The marks below U+10000 that end sentences in any script: Sentence_Terminal in PropList.txt of Unicode 16."""
_HIGH_TERMINALS = (
    r"\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047\U00011048\U000110be-\U000110c1"
    r"\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c"
    r"\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642"
    r"\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42\U00011ef7"
    r"\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U00016d6e\U00016d6f"
    r"\U00016e98\U0001bc9f\U0001da88"
)
"""The others."""
_HIGH = r"\U00010000-\U0010ffff"
"""All characters from U+10000 on. `re` looks up a set of lower ones at once, and goes through the ranges of higher ones
for each character: a search for one range, and then a look back, take a fifth of the time."""
_CLOSING = (
    r")\]}\u00bb\u2019\u201d\u203a\u3009\u300b\u300d\u300f\u3011\u3015\u3017\u3019\u301b\u301e\u301f"
    r"\ufe42\ufe44\uff09\uff3d\uff5d\uff63"
)
_REST = rf"(?<=[{_TERMINALS}{_HIGH_TERMINALS}])[{_TERMINALS}{_HIGH_TERMINALS}]*(?:[{_CLOSING}]|[\"'](?!\w))*"
SENTENCE_END = re.compile(rf"[{_TERMINALS}{_HIGH}]{_REST}")
"""The end of a sentence, with the quotes and brackets that close behind it."""
LINE_END = re.compile(rf"[{_TERMINALS}{_HIGH}\n](?:(?<=\n)|{_REST})")
"""Of a sentence or a line: lists and poems have no other."""


def cut(
    text: str, hits: Sequence[tuple[int, int]], margin: int, shortest: int, ends: re.Pattern[str] = SENTENCE_END
) -> tuple[list[str], list[int]]:
    """Cut `hits`, (start, end) in order of their starts, out of `text`; pieces of `shortest` characters or fewer go.

    Returns the pieces that stay, in order; and the number of each hit that was cut out: the others lay in what an
    earlier one took along.
    """
    pieces, used, rest = [], [], 0
    for number, (start, end) in enumerate(hits):
        if start < rest:
            continue
        used.append(number)
        before = _last_end(text, rest, start - margin, ends)
        if before - rest > shortest:
            pieces.append(text[rest:before])
        rest = _next_end(text, end + margin, ends)
        if len(text) - rest <= shortest:
            break
    else:
        pieces.append(text[rest:])
    return [piece.strip() for piece in pieces], used


def joined(text: str, hits: Sequence[tuple[int, int]], ends: re.Pattern[str]) -> list[tuple[int, int]]:
    """Hits, put together where one begins in the cut of an earlier one."""
    found: list[tuple[int, int]] = []
    rest = 0
    for start, end in hits:
        if found and start < rest:
            start, end = found[-1][0], max(found.pop()[1], end)
        found.append((start, end))
        rest = _next_end(text, end, ends)
    return found


def _last_end(text: str, begin: int, before: int, ends: re.Pattern[str]) -> int:
    """Behind the last end of a sentence that begins at or before `before`; `begin` if there is none after it."""
    until = max(begin, before) + 1
    while until > begin + 1:  # backwards, a stretch of characters at a time
        start = max(begin + 1, until - 400)
        starts = [found.start() for found in ends.finditer(text, start, until)]
        # The search ended at `until`, the end of a sentence may not.
        if starts and (found := ends.match(text, starts[-1])) is not None:
            return found.end()
        until = start
    return begin


def _next_end(text: str, behind: int, ends: re.Pattern[str]) -> int:
    """Behind the first end of a sentence at or after `behind`; the end of the text if there is none."""
    found = ends.search(text, behind)
    return found.end() if found else len(text)
