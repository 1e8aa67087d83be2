"""The linear classifier that `webtext train-filter` learns: its file, scores of texts, and what speaks for a text.

The file: `MAGIC`, the header's length (u32), the header (JSON: settings, what was learned from, measures, n-grams), the
weights (float32), and XXH3 with 64 bits of all that (u64); numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep.errors import InputError
from webtext_prep.text.classifiers import plain
from webtext_prep.text.fingerprints import Shingling, Texts

MAGIC = b"webtext filter 1"
_LENGTH, _CHECKSUM = struct.Struct("<I"), struct.Struct("<Q")
_WORDS = Shingling("word", 1)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LinearModel:
    """A linear classifier on hashed n-grams of words.

    Attributes:
        orders: n-grams of 1 to this many words count.
        bits: an n-gram's weight is the one that the first bits of its hash number.
        weights: shape (2**bits,), float32.
        facts: what else the header tells.
    """

    orders: int
    bits: int
    weights: npt.NDArray[np.float32]
    facts: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Its file."""
        header = msgspec.json.encode({"orders": self.orders, "bits": self.bits, **self.facts}, order="deterministic")
        body = MAGIC + _LENGTH.pack(len(header)) + header + self.weights.astype("<f4").tobytes()
        return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))

    @classmethod
    def decode(cls, data: bytes, name: object) -> LinearModel:
        """The classifier in a file called `name`. Raises InputError for a damaged or foreign one."""
        if not data.startswith(MAGIC):
            raise InputError(f"{name} is no filter: give what `webtext train-filter` wrote.")
        body, begin = data[: -_CHECKSUM.size], len(MAGIC) + _LENGTH.size
        if len(data) < begin or data[-_CHECKSUM.size :] != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
            raise InputError(
                f"{name} is damaged: its checksum differs; train the filter again, or copy the file again."
            )
        end = begin + _LENGTH.unpack_from(data, len(MAGIC))[0]
        header = msgspec.json.decode(body[begin:end])
        return cls(header.pop("orders"), header.pop("bits"), np.frombuffer(body[end:], "<f4"), header)

    def about(self) -> dict[str, Any]:
        """What it was learned from, and how well it tells that apart."""
        return {name: self.facts[name] for name in ("good", "against", "good_when", "auc") if name in self.facts}

    def scores(self, texts: Sequence[str], *, compiled: bool = True) -> Floats:
        """The score of each text, from 0 to 1; the same whether `compiled` or not."""
        if not compiled:
            own = (np.array(plain.buckets_of(text, self.orders, self.bits), np.uint32) for text in texts)
            return np.array([plain.score(buckets, 0, len(buckets), self.weights) for buckets in own], np.float64)
        from webtext_prep.text.classifiers import kernels

        some = Texts(texts, _WORDS)
        found, table = (np.empty(times * self.orders * len(some.space.units) + 16, np.uint32) for times in (1, 4))
        return kernels.scores_of(
            some.data, some.ends, self.orders, self.bits, some.cut.alphabet, some.space, found, table, self.weights
        )


def buckets_of(
    texts: Sequence[str], orders: int, bits: int, *, compiled: bool = True, distinct: bool = True
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The buckets of all n-grams of some texts, one text after the other, and where those of each text end.

    If `distinct`, each is there once in its text.
    """
    if not compiled:
        own = [plain.buckets_of(text, orders, bits, distinct=distinct) for text in texts]
        return np.array([bucket for of in own for bucket in of], np.uint32), np.cumsum([*map(len, own)], dtype=np.int64)
    from webtext_prep.text.classifiers import kernels

    some = Texts(texts, _WORDS)
    found = np.empty(orders * some.most, np.uint32)
    table = np.empty(4 * orders * len(some.space.units) + 16, np.uint32) if distinct else None
    ends = kernels.buckets_of_all(some.data, some.ends, orders, bits, some.cut.alphabet, some.space, found, table)
    return found[: ends[-1]].copy(), ends


class Speakers:
    """Finds which n-grams speak most for and against a text, by the highest and the lowest weights.

    Only hashes of n-grams are kept in learning, so their words are found in the texts once more: of a bucket's n-grams
    the one that most texts have.

    Args:
        model: the classifier.
        number: n-grams on either side.
    """

    def __init__(self, model: LinearModel, number: int) -> None:
        self._model, order = model, np.argsort(model.weights, kind="stable")
        self._sides = [
            [bucket for bucket in side.tolist() if sign * model.weights[bucket] > 0]
            for sign, side in ((1, order[::-1][:number]), (-1, order[:number]))
        ]
        self._is_wanted = np.zeros(len(model.weights), np.bool_)
        for side in self._sides:
            self._is_wanted[side] = True
        self._texts: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def add(self, texts: Sequence[str], *, compiled: bool = True) -> None:
        """Look for them in some texts."""
        model = self._model
        buckets, ends = buckets_of(texts, model.orders, model.bits, compiled=compiled, distinct=False)
        start = 0
        for text, end in zip(texts, ends.tolist(), strict=True):
            own, start = buckets[start:end], end
            places = np.flatnonzero(self._is_wanted[own]).tolist()
            ngrams = plain.ngrams_of(text, model.orders) if places else []
            for bucket, ngram in {(int(own[at]), ngrams[at]) for at in places}:
                self._texts[bucket][ngram] += 1

    def found(self) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """The n-grams that speak for a text, and against it: each with its weight, the greatest first."""
        first, second = (
            [(self._name(bucket), round(float(self._model.weights[bucket]), 4)) for bucket in side]
            for side in self._sides
        )
        return first, second

    def _name(self, bucket: int) -> str:
        name, _ = min(self._texts[bucket].items(), key=lambda item: (-item[1], item[0]), default=("", 0))
        return name
