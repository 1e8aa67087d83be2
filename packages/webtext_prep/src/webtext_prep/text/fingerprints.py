"""MinHash as datasketch defines it, and the arithmetic of banding.

A document is a set of shingles (word or character n-grams); its similarity to another is the Jaccard similarity of
the sets. Signatures are `datasketch.MinHash(num_perm, seed, hashfunc=xxh32, scheme="affine32")`, so that anyone can
check one. They only propose pairs: what decides is the exact similarity of the sets, which are kept as sorted 64-bit
hashes (two different shingles among 10,000 share one with a probability of 3e-12).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from webtext_prep.documents.document import in_batches
from webtext_prep.documents.packed import PackedTexts
from webtext_prep.errors import InputError

SEED = 1
"""datasketch's default seed of the permutations."""
PERMUTATIONS = 128
RECALL = 0.99
"""The share of pairs exactly at the threshold that banding must propose, at the least."""

_BATCH = 1 << 20
"""Characters of texts that are worked on at once: what bounds the memory."""


@dataclass(frozen=True)
class Shingling:
    """What a text is cut into: n-grams of `size` words or characters.

    Attributes:
        kind: `word` or `char`.
        size: 1 to 100.
    """

    kind: str
    size: int

    @classmethod
    def parse(cls, shingle: str) -> Shingling:
        """`word:5` -> Shingling("word", 5). Raises InputError for anything but `word:N` and `char:N`."""
        kind, _, size = shingle.partition(":")
        if kind not in ("word", "char") or not size.isdecimal() or not 1 <= int(size) <= 100:
            raise InputError(f"--shingle {shingle!r} is not known: give word:N or char:N with N from 1 to 100.")
        return cls(kind, int(size))


class Working:
    """What the compiled functions need to cut packed texts into shingles: how, and room to work in."""

    def __init__(self, texts: PackedTexts, shingling: Shingling) -> None:
        from webtext_prep.text import fingerprint_kernels

        size = len(texts.data)
        growth = 1 if size == texts.lengths.sum() else fingerprint_kernels.GROWTH  # ASCII does not grow
        self.most = growth * size + len(texts.ends)  # shingles, and units, there can be
        most = int(np.diff(texts.ends, prepend=0).max(initial=0))
        longest = growth * most + fingerprint_kernels.BEGIN + 16
        if longest > np.iinfo(np.uint32).max:
            raise InputError(f"a document has {most} bytes of text: at most 1 GB is taken.")
        self.space = fingerprint_kernels.Space(np.empty(longest, np.uint8), np.empty(longest, np.uint32))
        self.cut = fingerprint_kernels.ShingleCut(
            shingling.kind == "word",
            shingling.size,
            fingerprint_kernels.alphabet(shingling.kind),
            fingerprint_kernels.alphabet("char"),
        )


def signatures(texts: Sequence[str], shingling: Shingling) -> npt.NDArray[np.uint32]:
    """The MinHash signature of each text, shape (len(texts), PERMUTATIONS). An empty text has the highest values."""
    batches = in_batches(texts, len(texts), _BATCH, len)
    found = [packed_signatures(PackedTexts.of(batch), shingling) for batch in batches]
    return np.concatenate([np.zeros((0, PERMUTATIONS), np.uint32), *found])


def packed_signatures(texts: PackedTexts, shingling: Shingling) -> npt.NDArray[np.uint32]:
    """The same of packed texts."""
    from webtext_prep.text import fingerprint_kernels

    some = Working(texts, shingling)
    return fingerprint_kernels.signatures(texts.data, texts.ends, some.cut, some.space, *_permutations())


def shingle_sets(texts: Sequence[str], shingling: Shingling) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The set of shingles of each text, as sorted distinct 64-bit hashes.

    Returns:
        hashes, shape (shingles of all texts,), one text after the other; and ends, shape (len(texts),): the set of
        text i is `hashes[ends[i - 1] : ends[i]]`, that of the first one `hashes[: ends[0]]`.
    """

    found, found_ends, total = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], 0
    for batch in in_batches(texts, len(texts), _BATCH, len):
        hashes, ends = packed_sets(PackedTexts.of(batch), shingling)
        found.append(hashes)
        found_ends.append(ends + total)
        total += len(hashes)
    return np.concatenate(found), np.concatenate(found_ends)


def packed_sets(texts: PackedTexts, shingling: Shingling) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The same of packed texts."""
    from webtext_prep.text import fingerprint_kernels

    hashes, ends = packed_hashes(texts, shingling)
    starts = np.append(0, ends[:-1])
    for row in np.flatnonzero(~fingerprint_kernels.sort_ranges(hashes, ends)).tolist():
        hashes[starts[row] : ends[row]].sort()
    fingerprint_kernels.join_distinct(hashes, ends)
    return hashes[: ends[-1] if len(ends) else 0].copy(), ends


def hashed(
    texts: Sequence[str], shingling: Shingling
) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
    """In batches, the hashes of the shingles of each text, one text after another in their order, and their ends."""
    for batch in in_batches(texts, len(texts), _BATCH, len):
        yield packed_hashes(PackedTexts.of(batch), shingling)


def packed_hashes(texts: PackedTexts, shingling: Shingling) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The hashes of the shingles of each text, one text after another in their order, and their ends."""
    from webtext_prep.text import fingerprint_kernels

    some = Working(texts, shingling)
    hashes = np.empty(some.most, np.uint64)
    ends = fingerprint_kernels.hashes(texts.data, texts.ends, some.cut, some.space, hashes)
    return hashes[: ends[-1] if len(ends) else 0], ends


def shingle_sequences(texts: Sequence[str], shingling: Shingling) -> list[npt.NDArray[np.uint64]]:
    """The hashes of the shingles of each text, in their order, with those that repeat."""
    return [own.copy() for hashes, ends in hashed(texts, shingling) for own in np.split(hashes, ends[:-1])]


class ShingleSpans(NamedTuple):
    """The shingles of some texts in their order, also repeated ones, and where they lie.

    Attributes:
        hashes: one text after another, shape (shingles,).
        starts, ends: shingle i is what `text[starts[i] : ends[i]]` of its text says.
        text_ends: of each text in these, shape (texts,).
    """

    hashes: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    text_ends: npt.NDArray[np.int64]


def shingle_spans(texts: PackedTexts, shingling: Shingling) -> ShingleSpans:
    """Where the shingles of some texts lie."""
    from webtext_prep.text import fingerprint_kernels

    some = Working(texts, shingling)
    hashes, (starts, lasts) = np.empty(some.most, np.uint64), np.empty((2, some.most), np.int64)
    spans = np.empty((2, len(some.space.units) + 1), np.int64)
    ends = fingerprint_kernels.located_hashes(
        texts.data, texts.ends, some.cut, some.space, spans, hashes, starts, lasts
    )
    count = int(ends[-1]) if len(ends) else 0
    return ShingleSpans(hashes[:count], starts[:count], lasts[:count] + 1, ends)


def ngram_hashes(texts: Sequence[str], orders: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The hashes of all n-grams of 1 to `orders` words of each text, all words, then all pairs, and so on; and where
    those of each text end."""
    from webtext_prep.text import fingerprint_kernels

    packed = PackedTexts.of(texts)
    some = Working(packed, Shingling("word", 1))
    found = np.empty(orders * some.most, np.uint64)
    ends = fingerprint_kernels.ngram_hashes(packed.data, packed.ends, orders, some.cut.alphabet, some.space, found)
    return found[: ends[-1] if len(ends) else 0], ends


def _module_of_datasketch(name: str) -> Any:
    """A module of datasketch without what the package itself imports: SciPy and asyncio, for indices that are not used
    here.

    That is half a second of CPU, and two where Python may not write bytecode. Whoever imports datasketch later gets all
    of it.
    """
    package = "datasketch"
    if package not in sys.modules and (spec := importlib.util.find_spec(package)) is not None:
        sys.modules[package] = importlib.util.module_from_spec(spec)
        try:
            return importlib.import_module(f"{package}.{name}")
        finally:
            del sys.modules[package]
    return importlib.import_module(f"{package}.{name}")


@functools.lru_cache(maxsize=1)
def _permutations() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Factors and addends of datasketch's permutations: a hash becomes factor * hash + addend, modulo 2^32."""
    minhash = _module_of_datasketch("minhash")
    factors, addends = minhash.MinHash(num_perm=PERMUTATIONS, seed=SEED, scheme="affine32").permutations
    return np.ascontiguousarray(factors, np.uint32), np.ascontiguousarray(addends, np.uint32)


def bands_for(threshold: float) -> tuple[int, int]:
    """(bands, rows) with the most rows per band, thus the fewest idle comparisons, that still reach `RECALL`.

    Two sets of similarity s share a band with probability 1 - (1 - s^rows)^bands (Leskovec, Rajaraman, Ullman, Mining
    of Massive Datasets, 3.4). At `threshold` that must be at least `RECALL`.
    """
    best = (PERMUTATIONS, 1)
    for rows in range(1, PERMUTATIONS + 1):
        bands = PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= RECALL:
            best = (bands, rows)
    return best
