"""What a first forest says of all blocks of a page, as features of each for a second one.

The first looks at a block by itself. Whether a short text beside a list of teasers is the main one, or a part of that
list, depends on what the others are taken for: those around it, those of its shape, those in the elements that it lies
in, and the page as a whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from webtext_prep.extraction.blocks import Blocks
from webtext_prep.extraction.features import Floats, mean_of_equal, neighbours, sums

LEVELS = (0, 1, 2, 3, 5, 7)
"""How far up the elements around a block are looked at; 0 is its own."""
SHARES = (0.5, 0.8)
"""The innermost element with this share of the expected text is looked at."""
_LEAST = 1e-9


def context_of(blocks: Blocks, words: Floats, odds: Floats) -> dict[str, Floats]:
    """Features of a page's blocks, of so many `words`, by the logarithm of the odds that each is main text."""
    number, element, parent = len(words), blocks.element, blocks.parent
    place = np.arange(number)
    # Without the last digits of `exp`, which differ between machines.
    likely = np.rint(2**20 / (1 + np.exp(-odds))) / 2**20
    w, t = sums(words), sums(likely * words)
    expected = max(_LEAST, t[-1])
    found = {"odds": odds} | {f"likely {where}": value for where, value in neighbours(likely).items()}
    for reach in (3, 10, 30):
        low, high = np.maximum(0, place - reach), np.minimum(number, place + reach + 1)
        found[f"likely within {reach}"] = (t[high] - t[low]) / np.maximum(_LEAST, w[high] - w[low])
    alike, alike_words, alike_text = mean_of_equal(blocks.shape[element], words, likely * words)
    found |= {
        "text before": t[:-1] / expected,
        "likely if alike": alike_text / np.maximum(_LEAST, alike_words),
        "text alike": alike * alike_text / expected,
        "likely on the page": np.full(number, t[-1] / w[-1]),
        "text words": np.full(number, np.log1p(t[-1])),
    }
    held_words, held_text = w[blocks.last] - w[blocks.first], t[blocks.last] - t[blocks.first]
    around = element
    for level in range(max(LEVELS) + 1):
        if level in LEVELS:
            found[f"likely around {level}"] = held_text[around] / np.maximum(_LEAST, held_words[around])
            found[f"text around {level}"] = held_text[around] / expected
        around = parent[around]
    # The run of blocks with the most words that are more likely text than not, less those that are not.
    gains = sums((likely - 0.5) * words)
    end = int(np.argmax(gains - np.minimum.accumulate(gains)))
    begin = int(np.argmin(gains[: end + 1]))
    before, after = place < begin, place >= end
    away = np.where(before, w[begin] - w[:-1], np.where(after, w[1:] - w[end], 0))
    found |= {
        "in run": (~before & ~after).astype(np.float64),
        "from run": np.where(before, place - begin, np.where(after, place - end + 1, 0)).astype(np.float64),
        "words from run": np.where(before, -1, 1) * np.log1p(away),
        "text in run": np.full(number, (t[end] - t[begin]) / expected),
    }
    for share in SHARES:
        enough = np.flatnonzero(held_text >= share * t[-1])
        part = enough[np.argmax(blocks.depth[enough])]
        inside = (place >= blocks.first[part]) & (place < blocks.last[part])
        found[f"in text {share}"] = inside.astype(np.float64)
        found[f"likely in text {share}"] = np.full(number, held_text[part] / max(_LEAST, held_words[part]))
    return found


def with_context(
    blocks: Blocks, rows: npt.NDArray[np.float32], words: Floats, odds: dict[str, Floats]
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """(names of the context by each of the forests whose `odds` are given, rows of features and that context)."""
    found = {
        f"{forest}: {name}": value
        for forest, of_each in odds.items()
        for name, value in context_of(blocks, words, of_each).items()
    }
    wide = np.empty((len(rows), rows.shape[1] + len(found)), np.float32)
    wide[:, : rows.shape[1]] = rows
    for column, value in enumerate(found.values(), rows.shape[1]):
        wide[:, column] = value
    return list(found), wide
