"""MinHash as datasketch defines it, and the arithmetic of banding.

A document is a set of shingles (word or character n-grams); its similarity to another is the Jaccard similarity of
the sets. Signatures are `datasketch.MinHash(num_perm, seed, hashfunc=xxh32, scheme="affine32")`, so that anyone can
check one. They only propose pairs: what decides is the exact similarity of the sets, which are kept as sorted 64-bit
hashes (two different shingles among 10,000 share one with a probability of 3e-12).
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep.errors import InputError

SEED = 1
"""datasketch's default seed of the permutations."""
PERMUTATIONS = 128
RECALL = 0.99
"""The share of pairs exactly at the threshold that banding must propose, at the least."""

_WORD = re.compile(r"\w+")


def parse_shingle(shingle: str) -> tuple[str, int]:
    """`word:5` -> ("word", 5). Raises InputError for anything but `word:N` and `char:N`."""
    kind, _, size = shingle.partition(":")
    if kind not in ("word", "char") or not size.isdecimal() or not 1 <= int(size) <= 100:
        raise InputError(f"--shingle {shingle!r} is not known: give word:N or char:N with N from 1 to 100.")
    return kind, int(size)


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
