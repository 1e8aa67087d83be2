"""Main text by a learned choice among a page's blocks, and the kind of page that it is.

A forest says of each block how likely it belongs to the text. Which blocks are kept is then decided for the page as a
whole, so that the expected F1 of its words is greatest: with right probabilities that is all above half of that F1
(Lipton, Elkan, Naryanaswamy 2014, "Optimal Thresholding of Classifiers to Maximize F1 Measure"). The kind is that whose
forest has the greatest sum. All parameters lie in `learned.json`, made by `benchmarks/learn_extraction.py` from pages
with human-reviewed text.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt

from command_kit import parse_json
from webtext_prep.extraction.blocks import Blocks, blocks_of
from webtext_prep.extraction.features import Features, features_of
from webtext_prep.extraction.forest import Forest

CAUTION = 1.15
"""The threshold over half of the expected F1: probabilities are somewhat high on pages of sites never seen."""
LEAST = 0.2
"""No block that is less likely is kept, unless nothing else is."""


@dataclass(frozen=True)
class Parameters:
    """What has been learned.

    Attributes:
        text: how likely a block belongs to the main text.
        kinds: of each kind of page a forest; the greatest sum wins.
    """

    text: Forest
    kinds: Mapping[str, Forest]

    @classmethod
    def parse(cls, text: str) -> Parameters:
        """From a JSON object with `features` and `trees`, `page_features`, and `kinds`: of each its trees."""
        read = parse_json(text)
        kinds = {kind: Forest.of(read["page_features"], trees) for kind, trees in read["kinds"].items()}
        return cls(Forest.of(read["features"], read["trees"]), kinds)

    def kept(self, features: Features) -> npt.NDArray[np.bool_]:
        """Which blocks of a page are its main text."""
        return chosen(self.text.probabilities(features.rows), features.words)

    def kind(self, features: Features) -> str:
        """The kind of page."""
        _, values = features.of_page
        return max(self.kinds, key=lambda kind: float(self.kinds[kind].sums(values[None])[0]))


@functools.lru_cache(maxsize=1)
def parameters() -> Parameters:
    """The weights that come with this package."""
    return Parameters.parse(resources.files(__package__).joinpath("learned.json").read_text(encoding="utf-8"))


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


def main_text(page: str, url: str, title: str) -> tuple[str, str]:
    """(main text, kind) of a page's HTML; both are "" where it has no text."""
    blocks = blocks_of(page)
    if blocks is None or not blocks.texts:
        return "", ""
    features = features_of(blocks, page, url, title)
    return written(blocks, parameters().kept(features)), parameters().kind(features)
