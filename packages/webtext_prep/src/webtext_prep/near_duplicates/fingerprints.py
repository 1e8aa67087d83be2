"""MinHash as datasketch defines it, and the arithmetic of banding.

A document is a set of shingles (word or character n-grams); its similarity to another is the Jaccard similarity of
the sets. Signatures are `datasketch.MinHash(num_perm, seed, hashfunc=xxh32, scheme="affine32")`, so that anyone can
check one. They only propose pairs: what decides is the exact similarity of the sets, which are kept as sorted 64-bit
hashes (two different shingles among 10,000 share one with a probability of 3e-12).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep.errors import InputError, WebtextError

SEED = 1
"""datasketch's default seed of the permutations."""
PERMUTATIONS = 128
RECALL = 0.99
"""The share of pairs exactly at the threshold that banding must propose, at the least."""

_WORD = re.compile(r"\w+")
_VISIBLE = re.compile(r"\S+")


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


def parse_shingle(shingle: str) -> tuple[str, int]:
    """`word:5` -> ("word", 5). Raises InputError for anything but `word:N` and `char:N`."""
    found = Shingling.parse(shingle)
    return found.kind, found.size


def shingles(text: str, kind: str, size: int) -> set[bytes]:
    """The n-grams of `text` as UTF-8, case folded and with white space (and for words, punctuation) put aside.

    A text too short for one n-gram is one shingle as a whole, so that short texts are alike only if they are equal.
    An empty text has none.
    """
    folded = text.casefold()
    parts: Any = _WORD.findall(folded) if kind == "word" else " ".join(folded.split())
    if kind == "word" and not parts:
        # Nothing but punctuation: compare it as it is.
        parts = folded.split()
    if not parts:
        return set()
    joiner = " " if kind == "word" else ""
    if len(parts) < size:
        return {b"\x00whole\x00" + joiner.join(parts).encode("utf-8", "surrogatepass")}
    return {joiner.join(parts[at : at + size]).encode("utf-8", "surrogatepass") for at in range(len(parts) - size + 1)}


def shingle_hashes(found: set[bytes]) -> npt.NDArray[np.uint64]:
    """Sorted 64-bit hashes of a set of shingles, shape (n,)."""
    hashes = np.fromiter((xxhash.xxh3_64_intdigest(shingle) for shingle in found), np.uint64, len(found))
    return np.unique(hashes)


def signatures(texts: Sequence[str], shingling: Shingling) -> npt.NDArray[np.uint32]:
    """The MinHash signature of each text, shape (len(texts), PERMUTATIONS). An empty text has the highest values."""
    found = np.empty((len(texts), PERMUTATIONS), np.uint32)
    for row, text in enumerate(texts):
        found[row] = signature(shingles(text, shingling.kind, shingling.size))
    return found


def shingle_sets(texts: Sequence[str], shingling: Shingling) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The set of shingles of each text, as sorted distinct 64-bit hashes.

    Returns:
        hashes, shape (shingles of all texts,), one text after the other; and ends, shape (len(texts),): the set of
        text i is `hashes[ends[i - 1] : ends[i]]`, that of the first one `hashes[: ends[0]]`.
    """
    sets = [shingle_hashes(shingles(text, shingling.kind, shingling.size)) for text in texts]
    ends = np.cumsum([len(entry) for entry in sets], dtype=np.int64)
    return np.concatenate(sets) if sets else np.zeros(0, np.uint64), ends


def shingle_spans(
    text: str, shingling: Shingling
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The shingles of a text in their order, with those that repeat, and where they lie.

    Returns:
        hashes, starts, ends, each of shape (shingles,): shingle i is what `text[starts[i] : ends[i]]` says.
    """
    # Case folding is defined character by character: where each character of the folded text comes from.
    folded, origins = [], []
    for at, character in enumerate(text):
        for result in character.casefold():
            folded.append(result)
            origins.append(at)
    whole = "".join(folded)
    pattern = _WORD if shingling.kind == "word" else _VISIBLE
    found = [match.span() for match in pattern.finditer(whole)]
    if shingling.kind == "word" and not found:
        found = [match.span() for match in _VISIBLE.finditer(whole)]
    joiner = " "
    if shingling.kind == "char":
        joiner = ""
        runs, found = found, []
        for start, end in runs:
            if found:
                found.append((found[-1][1], start))
            found += [(at, at + 1) for at in range(start, end)]
    if not found:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    parts = [whole[start:end] for start, end in found]
    if shingling.kind == "char":
        parts = [" " if part.isspace() else part for part in parts]
    count = max(len(parts) - shingling.size + 1, 1)
    hashes = np.zeros(count, np.uint64)
    for at in range(count):
        shingle = joiner.join(parts[at : at + shingling.size]).encode("utf-8", "surrogatepass")
        if len(parts) < shingling.size:
            shingle = b"\x00whole\x00" + shingle
        hashes[at] = xxhash.xxh3_64_intdigest(shingle)
    firsts = np.array([origins[start] for start, _ in found])
    lasts = np.array([origins[end - 1] + 1 for _, end in found])
    return hashes, firsts[:count], lasts[min(shingling.size, len(found)) - 1 :]


def check_against_datasketch(texts: Sequence[str], shingling: Shingling) -> None:
    """Raise WebtextError unless signatures and sets of these texts are those of datasketch and of `shingles`."""
    hashes, ends = shingle_sets(texts, shingling)
    sets = np.split(hashes, ends[:-1]) if len(ends) else []
    for text, found, own in zip(texts, signatures(texts, shingling), sets, strict=True):
        expected = shingles(text, shingling.kind, shingling.size)
        if not (np.array_equal(found, signature(expected)) and np.array_equal(own, shingle_hashes(expected))):
            raise WebtextError(
                f"internal error: compiled fingerprints of {shingling.kind}:{shingling.size} differ from those of "
                f"datasketch for the text {text[:80]!r}: please report it."
            )


def jaccard(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]) -> float:
    """|A and B| / |A or B| of two sets given as sorted arrays of distinct values; 1.0 for two empty sets."""
    if not len(left) or not len(right):
        return float(len(left) == len(right))
    common = int(np.isin(left, right, assume_unique=True, kind="sort").sum())
    return common / (len(left) + len(right) - common)


@functools.lru_cache(maxsize=4)
def _empty(permutations: int) -> Any:
    from datasketch import MinHash

    return MinHash(num_perm=permutations, seed=SEED, hashfunc=xxhash.xxh32_intdigest, scheme="affine32")


def signature(found: set[bytes], permutations: int = PERMUTATIONS) -> npt.NDArray[np.uint32]:
    """The MinHash signature of a set of shingles, shape (permutations,)."""
    sketch = _empty(permutations).copy()
    if found:
        sketch.update_batch(list(found))
    return np.asarray(sketch.hashvalues, dtype=np.uint32)


def bands_for(threshold: float, permutations: int = PERMUTATIONS, recall: float = RECALL) -> tuple[int, int]:
    """(bands, rows) with the most rows per band, thus the fewest idle comparisons, that still find what is asked.

    Two sets of similarity s share a band with probability 1 - (1 - s^rows)^bands (Leskovec, Rajaraman, Ullman, Mining
    of Massive Datasets, 3.4). At `threshold` that must be at least `recall`.
    """
    best = (permutations, 1)
    for rows in range(1, permutations + 1):
        bands = permutations // rows
        if 1 - (1 - threshold**rows) ** bands >= recall:
            best = (bands, rows)
    return best
