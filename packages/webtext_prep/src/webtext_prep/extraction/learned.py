"""Main text by a learned choice among a page's blocks: a forest says of each how likely it belongs to the text.

Which blocks are kept is then decided for the page as a whole, so that the expected F1 of its words is greatest: with
right probabilities that is all above half of that F1 (Lipton, Elkan, Naryanaswamy 2014, "Optimal Thresholding of
Classifiers to Maximize F1 Measure"). The forest's parameters lie in `learned.json`, made by
`benchmarks/learn_extraction.py` from pages with human-reviewed text.
"""

from __future__ import annotations

import functools
from importlib import resources

import numpy as np
import numpy.typing as npt

from webtext_prep.extraction.blocks import Blocks, blocks_of
from webtext_prep.extraction.features import features_of
from webtext_prep.extraction.forest import Forest

CAUTION = 1.15
"""The threshold over half of the expected F1: probabilities are somewhat high on pages of sites never seen."""
LEAST = 0.2
"""No block that is less likely is kept, unless nothing else is."""


@functools.lru_cache(maxsize=1)
def parameters() -> Forest:
    """The forest that comes with this package."""
    return Forest.parse(resources.files(__package__).joinpath("learned.json").read_text(encoding="utf-8"))


def chosen(probabilities: npt.NDArray[np.float64], words: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which blocks of a page are its main text, by their probabilities and numbers of words."""
    order = np.argsort(-probabilities, kind="stable")
    kept, right = np.cumsum(words[order]), np.cumsum((probabilities * words)[order])
    best = float((2 * right / np.maximum(1e-9, kept + right[-1])).max())
    return np.asarray(probabilities > min(max(LEAST, CAUTION * best / 2), float(probabilities.max()) - 1e-12))


def written(blocks: Blocks, kept: npt.NDArray[np.bool_]) -> str:
    """The kept blocks, a line each; the cells of a table's row share one."""
    lines: list[str] = []
    row = -1
    for number in np.flatnonzero(kept):
        if blocks.row[number] >= 0 and blocks.row[number] == row:
            lines[-1] += f" | {blocks.texts[number]}"
        else:
            lines.append(blocks.texts[number])
        row = blocks.row[number]
    return "\n".join(lines)


def main_text(page: str, url: str) -> str:
    """The main text of a page's HTML; "" where it has none."""
    blocks = blocks_of(page)
    if blocks is None or not blocks.texts:
        return ""
    _, rows, words = features_of(blocks, page, url)
    return written(blocks, chosen(parameters().probabilities(rows), words))
