"""Classifiers of documents: a linear one of our own, which `webtext train-filter` learns, and fastText's files.

The file of the linear one: `MAGIC`, the header's length (u32), the header (JSON: settings, what was learned from,
measures, n-grams), the weights (float32), and XXH3 with 64 bits of all that (u64); numbers are little-endian. Files of
fastText's, `.bin` and compressed `.ftz`, are read by the package `fasttext-predict`.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep.errors import InputError
from webtext_prep.text.fingerprints import ngram_hashes
from webtext_prep.text.words import words_of

MAGIC = b"webtext filter 2"
_LENGTH, _CHECKSUM = struct.Struct("<I"), struct.Struct("<Q")

MOST_ORDERS, FEWEST_BITS, MOST_BITS = 5, 8, 28
"""What a linear classifier may have; see `LinearModel`."""

Floats = npt.NDArray[np.float64]


class _Header(msgspec.Struct):
    """What the header of a linear classifier must tell, and the form of what others read of the rest."""

    orders: Annotated[int, msgspec.Meta(ge=1, le=MOST_ORDERS)]
    bits: Annotated[int, msgspec.Meta(ge=FEWEST_BITS, le=MOST_BITS)]
    good: int = 0
    against: int = 0
    auc: float = 0
    good_when: str = ""
    speaks_for: list[tuple[str, float]] = []
    speaks_against: list[tuple[str, float]] = []


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
        """The bytes of the classifier's file."""
        header = msgspec.json.encode({"orders": self.orders, "bits": self.bits, **self.facts}, order="deterministic")
        body = MAGIC + _LENGTH.pack(len(header)) + header + self.weights.astype("<f4").tobytes()
        return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))

    @classmethod
    def decode(cls, data: bytes, name: object) -> LinearModel:
        """The classifier in a file called `name`. Raises InputError for a damaged or foreign one."""
        _refuse_earlier(data, name)
        if not data.startswith(MAGIC):
            raise InputError(f"{name} is no filter: give what `webtext train-filter` wrote.")
        body, begin = data[: -_CHECKSUM.size], len(MAGIC) + _LENGTH.size
        if len(data) < begin or data[-_CHECKSUM.size :] != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
            raise InputError(
                f"{name} is damaged: its checksum differs; train the filter again, or copy the file again."
            )
        end = begin + _LENGTH.unpack_from(data, len(MAGIC))[0]
        try:
            bits = msgspec.json.decode(body[begin:end], type=_Header).bits
            # Compiled code reads weights without looking how many there are.
            if len(body) - end != 4 << bits:
                raise ValueError(f"2 to the power of {bits} weights belong there, and it has {len(body) - end:,} bytes")
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name} is no filter ({error}): give what `webtext train-filter` wrote.") from error
        weights = np.frombuffer(body[end:], "<f4")
        if not np.isfinite(weights.sum(dtype=np.float64)):
            raise InputError(f"{name} is no filter (some weights are not finite): train the filter again.")
        header = msgspec.json.decode(body[begin:end])
        return cls(header.pop("orders"), header.pop("bits"), weights, header)

    def about(self) -> dict[str, Any]:
        """Numbers of good and other documents that it was learned from, and its AUC."""
        return {name: self.facts[name] for name in ("good", "against", "good_when", "auc") if name in self.facts}

    def scores(self, texts: Sequence[str]) -> Floats:
        """The score of each text, from 0 to 1."""
        from webtext_prep.text import classifier_kernels

        return classifier_kernels.scores_of(*buckets_of(texts, self.orders, self.bits), self.weights)


def buckets_of(
    texts: Sequence[str], orders: int, bits: int, *, distinct: bool = True
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The buckets of all n-grams of some texts, one text after the other, and where those of each text end.

    If `distinct`, each is there once in its text.
    """
    from webtext_prep.text import classifier_kernels

    hashes, ends = ngram_hashes(texts, orders)
    found = (hashes >> np.uint64(64 - bits)).astype(np.uint32)
    if distinct:
        classifier_kernels.keep_distinct(found, ends)
    return found[: ends[-1] if len(ends) else 0], ends


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

    def add(self, texts: Sequence[str]) -> None:
        """Look for them in some texts."""
        model = self._model
        buckets, ends = buckets_of(texts, model.orders, model.bits, distinct=False)
        start = 0
        for text, end in zip(texts, ends.tolist(), strict=True):
            own, start = buckets[start:end], end
            places = np.flatnonzero(self._is_wanted[own]).tolist()
            ngrams = ngrams_of(text, model.orders) if places else []
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


def ngrams_of(text: str, orders: int) -> list[str]:
    """All words of a text, case-folded, then all pairs, and so on."""
    words = words_of(text)
    return [" ".join(words[at : at + size]) for size in range(1, orders + 1) for at in range(len(words) - size + 1)]


# How well scores tell two classes apart


def auc(scores: npt.NDArray[np.float64], is_good: npt.NDArray[np.bool_]) -> float:
    """The area under the ROC curve: how often a good document has a higher score than another one; ties count half.

    It is the statistic of Mann and Whitney (1947), from the ranks.
    """
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # equal scores share the mean of their ranks
    good = int(is_good.sum())
    above = float(ranks[is_good].sum()) - good * (good + 1) / 2
    return above / (good * (len(scores) - good))


def precision_at(
    shares: Sequence[float], scores: npt.NDArray[np.float64], is_good: npt.NDArray[np.bool_]
) -> list[float]:
    """For each share of the documents, taken from the highest score down, how much of it is good."""
    best = is_good[np.argsort(-scores, kind="stable")]
    return [float(best[: max(1, round(share * len(best)))].mean()) for share in shares]


# fastText's files


FASTTEXT_MAGIC = (793712314).to_bytes(4, "little")
"""With which each of fastText's files begins."""
_CHECK = """import resource, sys, fasttext
for kind, limit in ((resource.RLIMIT_AS, int(sys.argv[2])), (resource.RLIMIT_CPU, int(sys.argv[3]))):
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
fasttext.load_model(sys.argv[1]).predict('', k=-1)[0] or sys.exit('it has no labels')"""
CHECK_BYTES, CHECK_SECONDS = 1 << 30, 60
"""What reading a file of fastText's may take at the least; a file's own size counts ten times in memory, and a second
for 10 MB. A header may claim any number of words."""
LABELS = tuple(f"__label__{name}" for name in ("hq", "good", "high", "positive", "pos", "1"))
"""What such models call good documents: the first of these that a model has."""


def check_fasttext(path: Path) -> None:
    """Read a file, and ask it once, in a process of its own with bounded memory and time: of a damaged file the reader
    may crash, or not end.

    Raises InputError for a file that can't be used.
    """
    if find_spec("fasttext") is None:
        raise InputError(f"{path} is a model of fastText: install the package fasttext-predict.")
    size = path.stat().st_size
    limits = [str(CHECK_BYTES + 10 * size), str(CHECK_SECONDS + size // 10_000_000)]
    done = subprocess.run(
        [sys.executable, "-c", _CHECK, str(path), *limits], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] if done.returncode > 0 else ["it crashes"]
        if done.returncode == -signal.SIGXCPU:
            reason = ["it takes too long"]
        raise InputError(f"fastText can't read {path} ({(reason or ['no reason'])[0]}): copy the file again.")


class FastTextModel:
    """A classifier of fastText's; a text's score is the probability of one label.

    Args:
        path: its file, which `check_fasttext` has read.
        label: the label of good documents; empty for the first of `LABELS` that it has.

    Raises InputError for a label that it lacks.
    """

    def __init__(self, path: Path, label: str = "") -> None:
        import fasttext

        self._model: Any = fasttext.load_model(str(path))
        known = self._probabilities([""])[0]
        names = [label, f"__label__{label}"] if label else LABELS
        self.label = next((name for name in names if name in known), "")
        if not self.label:
            shown = ", ".join(sorted(known)[:10]) or "none"
            said = f"no label {label}" if label else f"none of the labels {', '.join(LABELS)}"
            raise InputError(f"{path} has {said}: name that of good documents with --label (it has {shown}).")

    def about(self) -> dict[str, Any]:
        """The label whose probability is the score."""
        return {"label": self.label}

    def scores(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """The score of each text, from 0 to 1."""
        lines = [text.encode("utf-8", "ignore").decode("utf-8").replace("\n", " ") for text in texts]
        return np.array([found.get(self.label, 0.0) for found in self._probabilities(lines)], np.float64)

    def _probabilities(self, lines: Sequence[str]) -> list[dict[str, float]]:
        found = (self._model.predict(line, k=-1, threshold=-1.0) for line in lines)
        return [dict(zip(labels, map(float, values), strict=True)) for labels, values in found]


# Which classifier a file holds


FILE = "model.filter"
"""What `webtext train-filter` writes into its output."""

Classifier = LinearModel | FastTextModel


def classifier_file(given: str) -> Path:
    """The file of a classifier, given itself or as the output of `webtext train-filter`.

    Raises InputError for one that is not there, or holds none.
    """
    path = Path(given)
    path = path / FILE if path.is_dir() else path
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise InputError(
            f"can't read {path} ({error.strerror}): give --model the output of `webtext train-filter`, or a file of "
            "fastText's."
        ) from error
    _refuse_earlier(start, path)
    if start != MAGIC and not start.startswith(FASTTEXT_MAGIC):
        raise InputError(f"{path} is no classifier: give --model what `webtext train-filter` or fastText wrote.")
    return path


def _refuse_earlier(start: bytes, name: object) -> None:
    # These counted other words: `\w+`, with no vowel signs, and a clause of Chinese as one word.
    if start.startswith(b"webtext filter 1"):
        raise InputError(
            f"{name} was trained by an earlier version, which cut texts into other words: train the filter again."
        )


def is_fasttext(path: Path) -> bool:
    """Whether a file of a classifier is one of fastText's."""
    with path.open("rb") as file:
        return file.read(len(FASTTEXT_MAGIC)) == FASTTEXT_MAGIC


def read_classifier(path: Path, label: str = "") -> Classifier:
    """The classifier in a file, where `label` names good documents in one of fastText's. Raises InputError."""
    if is_fasttext(path):
        return FastTextModel(path, label)
    return LinearModel.decode(path.read_bytes(), path)
