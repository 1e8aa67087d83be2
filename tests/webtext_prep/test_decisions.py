"""Which documents go: the compiled search finds what comparing all pairs finds, whatever the sets and the buckets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from webtext_prep.dedup import kernels


def simple_rule(
    sets: list[set[int]], keys: list[list[int]], threshold: float, is_old: list[bool] | None = None
) -> list[tuple[int, float]]:
    """The definition: each document in turn against those kept before that share a bucket; -1 for one that stays."""
    is_old = is_old or [False] * len(sets)
    kept: list[int] = []
    found = []
    for document, own in enumerate(sets):
        best = (-1, 0.0)
        for other in kept:
            if not any(a == b for a, b in zip(keys[document], keys[other], strict=True)):
                continue
            if is_old[document] and is_old[other]:
                continue
            common, size = len(own & sets[other]), len(own | sets[other])
            similarity = common / size if size else 1.0
            if similarity >= threshold and similarity > best[1]:
                best = (other, similarity)
        found.append(best)
        if best[0] < 0:
            kept.append(document)
    return found


def arrays_of(sets: list[set[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sets one after another, where each starts, and where it ends."""
    sizes = np.array([len(entry) for entry in sets], dtype=np.int64)
    hashes = np.array([value for entry in sets for value in sorted(entry)], dtype=np.uint64)
    return hashes, np.cumsum(sizes) - sizes, np.cumsum(sizes)


def compiled_rule(sets, keys, threshold, crowded, is_old=None) -> list[tuple[int, float]]:
    keys = np.array(keys, dtype=np.uint64).reshape(len(sets), len(keys[0]) if keys else 1)
    representatives, similarities = kernels.find_duplicates(
        *arrays_of(sets), keys, threshold, is_old=None if is_old is None else np.array(is_old, bool), crowded=crowded
    )
    return list(zip(representatives.tolist(), similarities.tolist(), strict=True))


def spread(value: int) -> int:
    """A hash of a small number: kernels take sets of uniform 64-bit values."""
    value = (value + 1) * 0x9E3779B97F4A7C15 % 2**64
    return value ^ (value >> 31)


@st.composite
def corpora(draw) -> tuple[list[set[int]], list[list[int]]]:
    """Sets that share much with each other, of all sizes, and keys of few bands with few values."""
    count = draw(st.integers(0, 40))
    seed = draw(st.integers(0, 2**32))
    generator = np.random.default_rng(seed)
    most = draw(st.sampled_from([1, 3, 12, 40, 150]))
    templates = [generator.integers(0, 4 * most, most) for _ in range(draw(st.integers(1, 3)))]
    bands, values = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    change = draw(st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.5, 1.0]))
    sets = []
    for _ in range(count):
        values_of = templates[generator.integers(len(templates))][: generator.integers(0, most + 1)].copy()
        changed = generator.random(len(values_of)) < change
        values_of[changed] = generator.integers(0, 8 * most, changed.sum())
        sets.append({spread(int(value)) for value in values_of})
    return sets, generator.integers(0, values, (count, bands)).tolist()


# Thresholds at and close to the similarities that small sets have.
thresholds = st.sampled_from([0.01, 0.3, 1 / 3, 0.5, 0.6, 2 / 3, 0.7, 0.75, 0.8, 0.9, 0.95, 1.0]).flatmap(
    lambda value: st.sampled_from([value, np.nextafter(value, 0), min(np.nextafter(value, 2), 1.0)])
)


@given(corpora(), thresholds, st.sampled_from([0, 1, 3]), st.integers(0, 2**32), st.booleans())
def test_old_documents_are_not_compared_with_each_other(corpus, threshold, crowded, seed, is_sorted):
    sets, keys = corpus
    is_old = np.random.default_rng(seed).integers(0, 2, len(sets)).astype(bool).tolist()
    is_old = sorted(is_old, reverse=bool(seed % 2)) if is_sorted else is_old
    assert compiled_rule(sets, keys, threshold, crowded, is_old) == simple_rule(sets, keys, threshold, is_old)


@given(corpora(), thresholds, st.sampled_from([0, 1, 3, 64]))
def test_it_finds_what_comparing_all_pairs_finds(corpus, threshold, crowded):
    sets, keys = corpus
    assert compiled_rule(sets, keys, threshold, crowded) == simple_rule(sets, keys, threshold)
