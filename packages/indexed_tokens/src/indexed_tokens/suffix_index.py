"""The index of a pair of token files, in which any sequence of tokens is found: suffix arrays, and documents' URLs.

It lies in the folder `PREFIX.suffixes` next to the files. The documents are divided into parts of some ten million
tokens; of each part one file holds the positions of its tokens in the order of the suffixes that begin there. A suffix
ends with its document. Parts are searched one after another and never joined, so that building one takes memory for a
part alone, and any number of processes can build them. A lookup is a binary search in each, in mapped files: some
fifty pages a part of any size.

`index.json` is written last. It names what the index was made from: token files that have changed since are refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import mmap
import operator
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit import parse_json, write_json
from indexed_tokens.checksums import checksum_of_file
from indexed_tokens.reader import IndexedTokens, IndexedTokensError, bin_path, idx_path, prefix_of

FORMAT = 1
SEAL = "index.json"
URLS, URL_ENDS = "urls.txt", "url-ends.u64"
POSITION = np.dtype("<u4")
"""A token's place in its part."""
_AT_ONCE = 1 << 20


def index_folder(path: str | Path) -> Path:
    """`corpus_text_document`, or one of its token files -> `corpus_text_document.suffixes`."""
    return Path(f"{prefix_of(path)}.suffixes")


def part_name(number: int) -> str:
    """The file of a part."""
    return f"part-{number:05}.u32"


def document_begins(tokens: IndexedTokens) -> npt.NDArray[np.int64]:
    """The number of tokens before each document, and of all, shape (documents + 1,).

    Raises IndexedTokensError for sequences that do not lie back to back, or tokens that are no whole numbers.
    """
    if tokens.dtype.kind not in "iu":
        raise IndexedTokensError(f"{tokens.prefix} stores tokens as {tokens.dtype}: token ids are whole numbers.")
    begins = np.empty(len(tokens) + 1, np.int64)
    begins[0] = 0
    np.cumsum(tokens.lengths, dtype=np.int64, out=begins[1:])
    for at in range(0, len(tokens), _AT_ONCE):
        some = slice(at, min(at + _AT_ONCE, len(tokens)))
        if not np.array_equal(tokens.offsets[some], begins[some] * tokens.dtype.itemsize):
            raise IndexedTokensError(
                f"the sequences of {bin_path(tokens.prefix)} do not lie back to back: write it again with "
                "`webtext tokenize` or Megatron-LM's preprocessing."
            )
    found: npt.NDArray[np.int64] = begins[tokens.document_index]
    return found


@dataclass(frozen=True)
class Part:
    """Some documents whose suffixes are sorted together.

    Attributes:
        documents: the first, and one after the last.
        tokens: the same of their tokens.
        crc32: of the file; None before it is written.
    """

    documents: tuple[int, int]
    tokens: tuple[int, int]
    crc32: int | None = None

    @property
    def size(self) -> int:
        """The number of tokens."""
        return self.tokens[1] - self.tokens[0]


def divide(begins: npt.NDArray[np.int64], most: int) -> list[Part]:
    """Whole documents in parts of at most `most` tokens; a longer document is a part by itself.

    Args:
        begins: see `document_begins`.
        most: tokens in a part.
    """
    parts: list[Part] = []
    documents, first = len(begins) - 1, 0
    while first < documents:
        last = int(np.searchsorted(begins, begins[first] + most, side="right")) - 1
        last = min(max(last, first + 1), documents)
        parts.append(Part((first, last), (int(begins[first]), int(begins[last]))))
        first = last
    return parts


@dataclass(frozen=True)
class Seal:
    """The content of `index.json`.

    Attributes:
        tokens: `IndexedTokens.identity()` of the token files.
        parts: in the order of their documents.
        urls: CRC-32 of the two files of URLs; None where the documents' URLs are not known.
    """

    tokens: dict[str, Any]
    parts: tuple[Part, ...]
    urls: tuple[int, int] | None

    def write(self, folder: Path) -> None:
        """Write the seal to the folder of an index, which is complete by that. Raises OSError."""
        write_json(folder / SEAL, {"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Seal:
        """The index that was written. Raises IndexedTokensError where there is no finished index, or a damaged one."""
        path, prefix = folder / SEAL, str(folder).removesuffix(".suffixes")
        try:
            found = parse_json(path.read_bytes())
            if found.pop("format") != FORMAT:
                raise IndexedTokensError(f"{path} was written by a newer program: use that, or make it again.")
            parts = tuple(Part(_pair(p["documents"]), _pair(p["tokens"]), p["crc32"]) for p in found.pop("parts"))
            urls = found.pop("urls")
            return cls(parts=parts, urls=None if urls is None else _pair(urls), **found)
        except FileNotFoundError:
            raise IndexedTokensError(f"{prefix} has no index: run `webtext index-tokens {prefix}` first.") from None
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise IndexedTokensError(f"{path} is damaged ({error}): make it again with --restart.") from error

    def covers(self, begins: npt.NDArray[np.int64]) -> bool:
        """Whether the parts are all documents, one after another; see `document_begins`."""
        ends = [0, *(part.documents[1] for part in self.parts)]
        if ends != sorted(ends) or ends[-1] != len(begins) - 1:
            return False
        places = [((first, last), (int(begins[first]), int(begins[last]))) for first, last in itertools.pairwise(ends)]
        return places == [(part.documents, part.tokens) for part in self.parts]


def _pair(values: Sequence[Any]) -> tuple[int, int]:
    """Two whole numbers. Raises TypeError or ValueError."""
    first, second = map(operator.index, values)
    return first, second


def checksum(data: npt.NDArray[Any] | bytes) -> int:
    """The CRC-32 of a file with these contents."""
    return zlib.crc32(data if isinstance(data, bytes) else data.data)


class SuffixIndex:
    """The index of one pair of token files, opened for lookups.

    Args:
        path: the prefix of the token files, or the path of either.

    Attributes:
        tokens: the token files.
        begins: see `document_begins`.
        parts: each is sorted as one.
        positions: for each part, where its suffixes begin, from the part's first token on, in their order: u32 of
            shape (tokens of the part,).
        text: all tokens of the `.bin`, mapped.

    Raises IndexedTokensError if there is no index, it is damaged, or the token files have changed since.
    """

    def __init__(self, path: str | Path) -> None:
        self.tokens = IndexedTokens(path)
        self.prefix = self.tokens.prefix
        self.folder = index_folder(self.prefix)
        seal = Seal.read(self.folder)
        if seal.tokens != self.tokens.identity():
            raise IndexedTokensError(
                f"{self.folder} was made from other token files than {bin_path(self.prefix)} and "
                f"{idx_path(self.prefix).name} are now: run `webtext index-tokens {self.prefix}` again."
            )
        self.parts, self._urls_crc32 = seal.parts, seal.urls
        self.begins = document_begins(self.tokens)
        if not seal.covers(self.begins):
            raise IndexedTokensError(f"{self.folder / SEAL} does not cover all tokens: make it again with --restart.")
        self.text = mapped(bin_path(self.prefix), self.tokens.dtype, int(self.begins[-1]))
        self.positions = [
            mapped(self.folder / part_name(number), POSITION, part.size) for number, part in enumerate(self.parts)
        ]
        if self._urls_crc32 is not None:
            self._url_ends = mapped(self.folder / URL_ENDS, np.dtype("<u8"), self.tokens.documents)
            size = int(self._url_ends[-1]) if self.tokens.documents else 0
            self._urls = mapped(self.folder / URLS, np.dtype("u1"), size)

    def document_of(self, places: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The numbers of the documents that hold the tokens at `places` of the `.bin`."""
        return np.searchsorted(self.begins, np.asarray(places, np.int64), side="right") - 1

    def url(self, document: int) -> str | None:
        """The URL of a document; None where the index has none. Raises IndexError for one that is not there."""
        if not 0 <= document < self.tokens.documents:
            raise IndexError(f"document {document} of {self.tokens.documents} in {self.prefix}")
        if self._urls_crc32 is None:
            return None
        begin, end = int(self._url_ends[document - 1]) if document else 0, int(self._url_ends[document])
        # Each ends with a newline.
        return self._urls[begin : end - 1].tobytes().decode("utf-8", errors="replace")

    def check(self) -> None:
        """Read all of it and compare checksums. Raises IndexedTokensError naming the file that is damaged."""
        files = [(part_name(number), part.crc32) for number, part in enumerate(self.parts)]
        if self._urls_crc32 is not None:
            files += zip((URLS, URL_ENDS), self._urls_crc32, strict=True)
        for name, wanted in files:
            if checksum_of_file(self.folder / name).crc32 != wanted:
                raise IndexedTokensError(f"{self.folder / name} is damaged: make the index again with --restart.")


def mapped(path: Path, dtype: np.dtype[Any], size: int) -> npt.NDArray[Any]:
    """A file of `size` numbers, mapped for reading here and there. Raises IndexedTokensError if it is another size."""
    try:
        with path.open("rb") as file:
            there = file.seek(0, 2)
            if there < size * dtype.itemsize or (there != size * dtype.itemsize and path.suffix != ".bin"):
                raise IndexedTokensError(
                    f"{path} has {there:,} bytes where {size * dtype.itemsize:,} belong: make the index again with "
                    "--restart."
                )
            if not size:
                return np.zeros(0, dtype)
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise IndexedTokensError(
            f"can't read {path} ({error.strerror}): make the index again with --restart."
        ) from error
    if hasattr(memory, "madvise"):  # not on every system
        memory.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(memory, dtype, size)


Ints = npt.NDArray[np.int64]
FIRST_COMPARED, MOST_COMPARED = 4, 64
"""Tokens that are compared at once: few at first, as most searches differ soon."""
STRIDE = 64
"""Distance of the positions of a text that are searched first."""
RANGE_AT_ONCE = 1 << 20


Occurrences = tuple[int, range]
"""A sequence's finds in one part: the part's number, and the places in its order of the suffixes that begin with it."""


def longest_matches(indices: Sequence[SuffixIndex], query: npt.ArrayLike) -> Ints:
    """The number of tokens from each position of a text on that stand in a document of any index, shape (n,).

    Where a match ends never comes before where that of the position before ends. So positions between two whose matches
    end at one place need no search: a text that was copied whole costs little.

    Args:
        indices: the searched ones.
        query: token ids, shape (n,).

    Raises IndexedTokensError for a damaged index.
    """
    query = np.asarray(query, np.int64)
    size = len(query)
    ends = np.arange(size)

    def search(places: Ints) -> None:
        limits = np.full(len(places), size)
        for index in indices:
            for part in range(len(index.parts)):
                _, left, right = _bisect(index, part, query, places, limits, is_behind=False)
                ends[places] = np.maximum(ends[places], places + np.maximum(left, right))

    if not size:
        return ends
    search(np.union1d(np.arange(0, size, STRIDE), [size - 1]))
    step = STRIDE
    while step > 1:
        step //= 2
        places = np.arange(step, size - 1, 2 * step)
        after = np.minimum(places + step, size - 1)
        is_same = ends[places - step] == ends[after]
        ends[places[is_same]] = ends[after[is_same]]
        search(places[~is_same])
    return ends - np.arange(size)


def occurrences(index: SuffixIndex, query: npt.ArrayLike) -> list[Occurrences]:
    """All places of an index at which a sequence stands, part by part. Raises IndexedTokensError for a damaged one."""
    query = np.asarray(query, np.int64)
    begin, end = np.array([0]), np.array([len(query)])
    found = []
    for part in range(len(index.parts)):
        low = int(_bisect(index, part, query, begin, end, is_behind=False)[0][0])
        high = int(_bisect(index, part, query, begin, end, is_behind=True)[0][0])
        if low < high:
            found.append((part, range(low, high)))
    return found


def documents_with(index: SuffixIndex, found: Sequence[Occurrences], most: int) -> tuple[int, list[tuple[int, int]]]:
    """(number of documents that hold occurrences, the first of them, each with its first occurrence).

    Memory is that of a million occurrences and of a bit for each document, for any number of occurrences.

    Returns:
        the number of documents, and at most `most` pairs of a document and a place in the `.bin`, in token ids.
    """
    holds = np.zeros(index.tokens.documents, bool)
    first: dict[int, int] = {}
    for part, entries in found:
        for at in range(entries.start, entries.stop, RANGE_AT_ONCE):
            positions = index.positions[part][at : min(at + RANGE_AT_ONCE, entries.stop)]
            places = np.sort(positions.astype(np.int64)) + index.parts[part].tokens[0]
            documents, where = np.unique(index.document_of(places), return_index=True)
            holds[documents] = True
            for document, place in zip(documents[:most].tolist(), places[where[:most]].tolist(), strict=True):
                first[document] = min(place, first.get(document, place))
    return int(holds.sum()), sorted(first.items())[:most]


def _bisect(
    index: SuffixIndex, part: int, query: Ints, begins: Ints, ends: Ints, *, is_behind: bool
) -> tuple[Ints, Ints, Ints]:
    """The places of the sequences `query[begins:ends]` in the order of a part's suffixes.

    Args:
        index: which.
        part: the number of the part.
        query: a text.
        begins: of each sequence in it, shape (k,).
        ends: one after the last token of each.
        is_behind: after the suffixes that begin with the sequence, rather than before them.

    Returns:
        how many suffixes come before each; and how many tokens the last of these, and the one after it, have in
        common with the sequence: each of shape (k,).
    """
    positions, size = index.positions[part], index.parts[part].size
    low, high = np.zeros(len(begins), np.int64), np.full(len(begins), size)
    common_low, common_high = np.zeros_like(low), np.zeros_like(low)
    todo = np.flatnonzero(low < high)
    while len(todo):
        middle = (low[todo] + high[todo]) // 2
        places = positions[middle].astype(np.int64)
        if len(places) and int(places.max()) >= size:
            raise IndexedTokensError(f"{index.folder / part_name(part)} is damaged: make the index again.")
        known = np.minimum(common_low[todo], common_high[todo])
        common, is_before = _compare(index, part, places, query, begins[todo], ends[todo], known, is_behind=is_behind)
        low[todo[is_before]], common_low[todo[is_before]] = middle[is_before] + 1, common[is_before]
        high[todo[~is_before]], common_high[todo[~is_before]] = middle[~is_before], common[~is_before]
        todo = todo[low[todo] < high[todo]]
    return low, common_low, common_high


def _compare(
    index: SuffixIndex, part: int, places: Ints, query: Ints, begins: Ints, ends: Ints, known: Ints, *, is_behind: bool
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Suffixes next to sequences, the first `known` tokens of which are the same, all of shape (k,).

    Returns how many tokens they have in common, and which suffixes come before their sequence.
    """
    begin, end = index.parts[part].tokens
    places = places + begin
    limits = np.minimum(index.begins[index.document_of(places) + 1], end)
    # As many tokens as there are of both.
    shared = np.minimum(limits - places, ends - begins)
    common = np.minimum(known, shared)
    todo, width = np.flatnonzero(common < shared), FIRST_COMPARED
    while len(todo):
        steps = common[todo][:, None] + np.arange(width)
        is_there = steps < shared[todo][:, None]
        steps = np.where(is_there, steps, 0)
        same = is_there & (_at(index.text, places[todo][:, None] + steps) == query[begins[todo][:, None] + steps])
        run = np.where(same.all(axis=1), width, same.argmin(axis=1))
        common[todo] += run
        todo = todo[(run == width) & (common[todo] < shared[todo])]
        width = min(2 * width, MOST_COMPARED)
    is_ended = common == ends - begins
    is_short = ~is_ended & (common == limits - places)
    differ = ~is_ended & ~is_short
    is_before = np.where(is_ended, is_behind, is_short)
    at = common[differ]
    is_before[differ] = _at(index.text, places[differ] + at) < query[begins[differ] + at]
    return common, is_before


def _at(text: npt.NDArray[Any], places: Ints) -> Ints:
    return text[places].astype(np.int64)
