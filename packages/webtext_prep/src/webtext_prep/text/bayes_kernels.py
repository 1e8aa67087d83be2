"""langdetect's algorithm (Nakatani 2010) in machine code: the n-grams of a text, and trials with a few of them each.

Everything that decides is taken from langdetect when a process starts: its profiles, how it normalizes characters, its
constants, and Python's random numbers for its seed. The kernels do its floating-point operations in its order, so that
probabilities are equal to its own to the last bit.
"""

from __future__ import annotations

import math
import random
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webtext_prep.text.compiled import compiled
from webtext_prep.text.contamination import hash_table

Codes = NDArray[np.uint32]
Floats = NDArray[np.float64]

_BASIC_PLANE = 0x10000
_CASED_PLANES = 0x20000
"""No character above has a case, and langdetect normalizes none above the basic plane."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_RANDOM_NUMBERS = 1 << 15
"""More than seven trials of a thousand draws need, but for the unluckiest lengths of texts."""
_COMPENSATED = sys.version_info >= (3, 12)
"""Python's `sum` of floats keeps the rounding errors since 3.12 (Neumaier's algorithm)."""


class Trials:
    """langdetect's answers for one loaded factory of profiles and a seed.

    Args:
        factory: a `langdetect.DetectorFactory` with its profiles; nothing of it is kept.
    """

    def __init__(self, factory: Any) -> None:
        from langdetect.detector import Detector
        from langdetect.utils.ngram import NGram

        self.languages = factory.get_lang_list()
        words = [word for word in factory.word_lang_prob_map if 1 <= len(word) <= NGram.N_GRAM]
        self._profiles = np.array([factory.word_lang_prob_map[word] for word in words], np.float64)
        packed = _packed(words)
        self._rows = hash_table(packed * _FACTOR >> np.uint64(32), 2 * len(packed))
        self._keys = np.where(self._rows >= 0, packed[self._rows], np.uint64(0))  # no word is packed to 0
        self._normalized = np.array([ord(NGram.normalize(chr(code))) for code in range(_BASIC_PLANE)], np.uint32)
        self._is_upper = np.array([chr(code).isupper() for code in range(_CASED_PLANES)])
        source = random.Random(factory.seed)
        self._numbers = np.array([source.getrandbits(32) for _ in range(_RANDOM_NUMBERS)], np.uint32)
        detector = factory.create()
        # It means to count them as Latin, but compares the number of a block with its name: 1.0.9 and earlier versions.
        detector.text = "a\u1ea1\u1ea1\u1ea1"
        detector.cleaning_text()
        self._extended_is_latin = "a" in detector.text
        self._trials, self._alpha, self._length = detector.n_trial, detector.alpha, detector.max_text_length
        self._detector, self._ngram = Detector, NGram

    def probabilities(self, text: str) -> Floats | None:
        """The mean probability of each language, shape (languages,); None for a text without n-grams that it knows.

        Raises OverflowError if it needs more random numbers than there are.
        """
        ngrams = self._ngrams(text)
        if not len(ngrams):
            return None
        total = np.zeros(len(self.languages))
        at, spare = 0, None
        for _ in range(self._trials):
            if spare is None:
                normal, spare = self._normals(at)
                at += 4
            else:
                normal, spare = spare, None
            alpha = self._alpha + normal * self._detector.ALPHA_WIDTH
            at = _trial(
                ngrams, self._profiles, alpha / self._detector.BASE_FREQ, self._numbers, at, self._trials,
                self._detector.ITERATION_LIMIT, self._detector.CONV_THRESHOLD, _COMPENSATED, total,
            )  # fmt: skip
            if at < 0 or at + 4 > len(self._numbers):
                raise OverflowError("not enough random numbers")
        return total

    def _ngrams(self, text: str) -> NDArray[np.int32]:
        """The rows of the profiles for each n-gram of a text, in the order of `Detector._extract_ngrams`."""
        # The expressions are as slow as they look, and most texts have nothing for them.
        if "http" in text:
            text = self._detector.URL_RE.sub(" ", text)
        if "@" in text:
            text = self._detector.MAIL_RE.sub(" ", text)
        if not text.isascii():
            text = self._ngram.normalize_vi(text)
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)[: self._length]
        return _extract(codes, self._normalized, self._is_upper, self._keys, self._rows, self._extended_is_latin)

    def _normals(self, at: int) -> tuple[float, float]:
        """Two results of `random.gauss(0, 1)` from the four random numbers at `at`."""
        numbers = self._numbers[at : at + 4].tolist()
        first, second = (
            ((high >> 5) * 67108864.0 + (low >> 6)) * (1.0 / 9007199254740992.0)
            for high, low in (numbers[:2], numbers[2:])
        )
        angle, radius = first * math.tau, math.sqrt(-2.0 * math.log(1.0 - second))
        return math.cos(angle) * radius, math.sin(angle) * radius


def _packed(words: list[str]) -> NDArray[np.uint64]:
    """Words of up to three characters as one number each, shape (words,)."""
    padded = "".join([word.ljust(3, "\0") for word in words]).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(padded, np.uint32).reshape(-1, 3).astype(np.uint64)
    return codes[:, 0] | codes[:, 1] << np.uint64(21) | codes[:, 2] << np.uint64(42)


@compiled
def _slot(word: np.uint64, size: int) -> Any:
    return np.int64((word * _FACTOR) >> np.uint64(32)) & (size - 1)


@compiled
def _extract(
    text: Codes,
    normalized: Codes,
    is_upper: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    rows: NDArray[np.int64],
    extended_is_latin: bool,
) -> NDArray[np.int32]:
    """`Detector.append`, `cleaning_text` and `_extract_ngrams`: rows of known n-grams of one to three characters.

    With `extended_is_latin` the letters of Latin Extended Additional don't count as letters of another script.
    """
    latin = others = 0
    last = np.uint32(0)
    for code in text:  # a run of spaces counts as one, none of which counts here
        if 65 <= code <= 122:
            latin += 1
        elif code >= 0x300 and not (extended_is_latin and 0x1E00 <= code <= 0x1EFF):
            others += 1
    without_latin = latin * 2 < others
    found = np.empty(3 * len(text), np.int32)
    count = 0
    space = np.uint64(32)
    first, second, third, length = np.uint64(0), np.uint64(0), space, 1  # the last characters, `third` the newest
    capitals = was_upper = False
    for code in text:
        doubled = code == 32 and last == 32
        last = code
        if doubled or (without_latin and 65 <= code <= 122):
            continue
        if code < len(normalized):
            code = normalized[code]
        upper = is_upper[code] if code < len(is_upper) else False
        if third == space:
            first, second, third, length, capitals, was_upper = np.uint64(0), np.uint64(0), space, 1, False, False
            if code == 32:
                continue
        first, second, third = second, third, np.uint64(code)
        length = min(length + 1, 3)
        capitals = upper and (capitals or was_upper)
        was_upper = upper
        if capitals:
            continue
        for size in range(1, length + 1):
            if size == 1:
                key = third
            elif size == 2:
                key = second | third << np.uint64(21)
            else:
                key = first | second << np.uint64(21) | third << np.uint64(42)
            if key == space:
                continue
            slot = _slot(key, len(keys))
            while keys[slot] and keys[slot] != key:
                slot = (slot + 1) & (len(keys) - 1)
            if keys[slot]:
                found[count] = rows[slot]
                count += 1
    return found[:count]


@compiled
def _trial(
    ngrams: NDArray[np.int32],
    profiles: Floats,
    weight: float,
    numbers: NDArray[np.uint32],
    at: int,
    trials: int,
    limit: int,
    converged: float,
    compensated: bool,
    total: Floats,
) -> int:
    """One trial of `Detector._detect_block`: adds its share to `total`; the place of the next random number, or -1."""
    languages = len(total)
    bits = 0
    while len(ngrams) >> bits:
        bits += 1
    probability = np.full(languages, 1.0 / languages)
    step = 0
    while True:
        # `random.choice`
        chosen: Any = len(ngrams)
        while chosen >= len(ngrams):
            if at >= len(numbers):
                return -1
            chosen = np.int64(numbers[at] >> np.uint32(32 - bits))
            at += 1
        profile = profiles[ngrams[chosen]]
        for language in range(languages):
            probability[language] *= weight + profile[language]
        if step % 5 == 0:
            whole = _sum(probability, compensated)
            largest = 0.0
            for language in range(languages):
                probability[language] /= whole
                largest = max(largest, probability[language])
            if largest > converged or step >= limit:
                break
        step += 1
    for language in range(languages):
        total[language] += probability[language] / trials
    return at


@compiled
def _sum(values: Floats, compensated: bool) -> float:
    """Python's `sum`."""
    total, lost = values[0], 0.0
    for place in range(1, len(values)):
        value = values[place]
        after = total + value
        if compensated:
            if abs(total) >= abs(value):
                lost += (total - after) + value
            else:
                lost += (value - after) + total
        total = after
    return total + lost
