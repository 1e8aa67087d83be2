"""Shingles, signatures and similarities as xxhash and datasketch define them: compiled code must equal them."""

import numpy as np
import xxhash
from tests.lazily import Lazily

from webtext_prep.text.words import fold, words_of

datasketch = Lazily("datasketch")


def shingles(text: str, kind: str, size: int) -> set[bytes]:
    """The n-grams of a text as UTF-8, case folded: of its words, or of its characters with white space as one space.

    A text too short for one n-gram is one shingle as a whole, an empty text has none, and punctuation alone is compared
    as it is.
    """
    parts = (words_of(text) or fold(text).split()) if kind == "word" else " ".join(fold(text).split())
    joiner = " " if kind == "word" else ""
    if not parts:
        return set()
    if len(parts) < size:
        return {b"\x00whole\x00" + joiner.join(parts).encode("utf-8", "surrogatepass")}
    return {joiner.join(parts[at : at + size]).encode("utf-8", "surrogatepass") for at in range(len(parts) - size + 1)}


def shingle_hashes(found: set[bytes]) -> np.ndarray:
    """Sorted 64-bit hashes of a set of shingles."""
    return np.unique(np.array([xxhash.xxh3_64_intdigest(shingle) for shingle in found], np.uint64))


def signature(found: set[bytes]) -> np.ndarray:
    """datasketch's signature of a set of shingles."""
    sketch = datasketch.MinHash(num_perm=128, seed=1, hashfunc=xxhash.xxh32_intdigest, scheme="affine32")
    if found:
        sketch.update_batch(list(found))
    return np.asarray(sketch.hashvalues, np.uint32)


def similarity(left: str, right: str, kind: str = "word", size: int = 5) -> float:
    """The Jaccard similarity of the shingles of two texts."""
    a, b = (shingles(text, kind, size) for text in (left, right))
    return len(a & b) / len(a | b) if a | b else 1.0
