"""Learns which blocks of a page are its main text, and kinds of pages; writes the parameters of `--extractor learned`.

    ./uvw run --group peers tools/learn_extraction.py FOLDER ...
    ./uvw run --group peers tools/learn_extraction.py FOLDER ... --folds work/folds.json
    ./uvw run --group peers tools/learn_extraction.py FOLDER ... --without-each work/without.json

Folders are as `extraction_pages.py` says. The same ones give the same parameters, byte for byte. With `--folds`, what
the extractor finds on each page is written instead, its text and kind: learned from the pages of other domains alone;
with `--without-each`, learned from the other folders alone.
"""

from __future__ import annotations

import argparse
import functools
import html
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from extraction_pages import ReviewedPage, match_of_set, part_of, reviewed_pages, words_of
from webtext_prep.extraction.html.markup import written
from webtext_prep.extraction.learned import PARAMETERS
from webtext_prep.extraction.learned.blocks import TAGS, Blocks, blocks_of
from webtext_prep.extraction.learned.choice import CONTEXT, Parameters, with_context, without_url
from webtext_prep.extraction.learned.features import FEATURES, PAGE_FEATURES, features_of
from webtext_prep.extraction.learned.forest import Forest
from webtext_prep.text.decoding import readable, title_of

# The same sums in the same order, however many cores there are.
SAME_BYTES = {"seed": 1, "deterministic": True, "verbose": -1}
FIRST_TREES = 100
SECOND_TREES = 150
KNOWN_KIND = 2
"""What a page of a known kind weighs in the second forest, where another weighs 1."""
PARTS = 2
"""The second forest learns from what first ones say of pages of domains that they don't know: each of these is learned
from all but one of so many parts of the domains."""
SETTINGS = {
    **SAME_BYTES,
    # By columns: a tree looks at few of them.
    "force_col_wise": True,
    "objective": "cross_entropy",
    "learning_rate": 0.14,
    "num_leaves": 31,
    "min_data_in_leaf": 100,
    "min_sum_hessian_in_leaf": 1.0,
    "feature_fraction": 0.15,
    "bagging_fraction": 0.6,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "max_bin": 63,
}
SECOND_SETTINGS = SETTINGS | {"learning_rate": 0.08, "feature_fraction": 0.3, "lambda_l2": 20.0}
KIND_TREES = 60
"""Of each kind."""
KIND_SETTINGS = {
    **SAME_BYTES,
    "force_row_wise": True,
    "objective": "multiclass",
    "learning_rate": 0.1,
    "num_leaves": 7,
    "min_data_in_leaf": 8,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 2.0,
}
BARE = 0.25
"""What a bare copy of a page weighs, of whatever kind: where nothing else says it, the commonest is likeliest."""
OWN_TAGS = frozenset(("p", "li", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "dt", "dd"))
"""What a block of a bare copy keeps of its markup; all others are paragraphs."""
TAG_NAMES = {number: name for name, number in TAGS.items()}
RUN = 4
"""A block is compared with the text by runs of so many words."""
COPY_WORDS = 6
"""A block of so many words is looked for as often as it stands in the text; later copies are not main text."""
LEAST_WORDS = 20
"""Pages with a shorter text weigh as if they had so many words."""
LEAST_SHARE = 0.15
"""Pages of which the text is a smaller share weigh as if it were this one."""
SEGMENTS_SHARE = 0.3
"""The share of a page that is taken for its text where only segments are known."""
SEGMENT_WORDS = 30
"""No block with a segment weighs more than one of so many words."""
SEGMENT_CHARACTERS = 20


def labels_of(blocks: list[list[str]], reviewed: str) -> npt.NDArray[np.float64]:
    """The share of each block's words, as `words_of` gives them, that belong to the reviewed text.

    A block of fewer than RUN words may stand there by chance: it counts if it is a line of the text near blocks that
    belong to it, or if most of the blocks around it do.
    """
    wanted = words_of(reviewed)
    whole = f" {' '.join(wanted)} "
    runs = {tuple(wanted[at : at + RUN]) for at in range(len(wanted) - RUN + 1)}
    lines = {" ".join(words_of(line)) for line in reviewed.split("\n")}
    labels, short = np.zeros(len(blocks)), []
    seen: Counter[str] = Counter()
    for number, words in enumerate(blocks):
        joined = " ".join(words)
        is_there = bool(words) and f" {joined} " in whole
        if len(words) < RUN:
            short += [number] if is_there else []
            continue
        if is_there:
            labels[number] = 1
        else:
            covered = np.zeros(len(words), bool)
            for at in range(len(words) - RUN + 1):
                if tuple(words[at : at + RUN]) in runs:
                    covered[at : at + RUN] = True
            labels[number] = covered.mean()
        if len(words) >= COPY_WORDS and labels[number] > 0:
            seen[joined] += 1
            if seen[joined] > max(1, whole.count(f" {joined} ")):
                labels[number] = 0
    long = np.array([number for number, words in enumerate(blocks) if len(words) >= RUN], np.int64)
    for number in short:
        at = int(np.searchsorted(long, number))
        near = labels[long[max(0, at - 2) : at + 2]]
        share = float(near.mean()) if len(near) else 0.0
        is_line = " ".join(blocks[number]) in lines
        labels[number] = float(share >= 0.5 or (is_line and share > 0.1))
    return labels


def labels_by_segments(texts: list[str], page: ReviewedPage) -> npt.NDArray[np.float64]:
    """1 for a block with a segment that must be in the text, 0 for one with a segment that must not; else NaN.

    A block of SEGMENT_CHARACTERS that is a part of a segment counts, too; one with both kinds does not.
    """
    wanted, unwanted = ([" ".join(one.split()) for one in part] for part in (page.wanted, page.unwanted))

    def is_in(text: str, segments: list[str]) -> bool:
        return any(one in text or (len(text) >= SEGMENT_CHARACTERS and text in one) for one in segments)

    labels = np.full(len(texts), np.nan)
    for number, text in enumerate(" ".join(text.split()) for text in texts):
        must, must_not = is_in(text, wanted), is_in(text, unwanted)
        if must != must_not:
            labels[number] = must
    return labels


class Example:
    """A page as it is learned from: its blocks with features (`rows`), labels, NaN where none is known, and weights."""

    def __init__(self, page: ReviewedPage) -> None:
        source = readable(page.html, None)
        found = blocks_of(source)
        self.page = page
        self.blocks: Blocks | None = found if found is not None and found.texts else None
        if self.blocks is None:
            return
        self.title = title_of(source)
        self.features = features_of(self.blocks, source, page.url, self.title)
        words = [words_of(text) for text in self.blocks.texts]
        counts = np.array([len(block) for block in words], np.float64)
        if page.text is None:
            self.labels = labels_by_segments(self.blocks.texts, page)
            least = SEGMENTS_SHARE * counts.sum()
            counts = np.minimum(counts, SEGMENT_WORDS)
        else:
            self.labels = labels_of(words, page.text)
            least = max(len(words_of(page.text)), LEAST_SHARE * counts.sum())
        # A word weighs what it changes of the page's F1.
        self.weights = np.where(np.isnan(self.labels), 0, counts + 0.5) / max(LEAST_WORDS, least)

    @property
    def wanted_words(self) -> float:
        """How many words its text has, or the page where nobody has said what its text is."""
        assert self.blocks is not None
        labels = self.labels if self.weights.any() or self.page.text is not None else np.ones(len(self.labels))
        return float(np.nansum(labels * self.features.words))

    @functools.cached_property
    def bare(self) -> npt.NDArray[np.float32] | None:
        """The features of a page that is its main text alone, in half of them an `<article>`; None without a text."""
        if self.blocks is None or self.page.text is None or not (self.labels > 0.5).any():
            return None
        parts = []
        for number in np.flatnonzero(self.labels > 0.5):
            tag = TAG_NAMES.get(int(self.blocks.tag[self.blocks.element[number]]), "p")
            text, linked = self.blocks.texts[number], int(self.blocks.link_characters[number])
            link = f"<a>{html.escape(text[:linked])}</a>" if linked else ""
            own = tag if tag in OWN_TAGS else "p"
            parts.append(f"<{own}>{link}{html.escape(text[linked:])}</{own}>")
        around = ("body", "article")[part_of(self.page.name, 2, 8)]
        copy = "\n".join((f"<{around}>", *parts, f"</{around}>"))
        blocks = blocks_of(copy)
        if blocks is None or not blocks.texts:
            return None
        return features_of(blocks, copy, self.page.url, title_of(readable(self.page.html, None))).of_page

    def extracted(self, parameters: Parameters) -> tuple[str, str]:
        """(text, kind) that parameters make of it."""
        if self.blocks is None:
            return "", ""
        kind, _ = self.kind(parameters)
        return written(self.blocks, parameters.kept(self.blocks, self.features, kind, self.title)), kind

    def kind(self, parameters: Parameters) -> tuple[str, float]:
        """(kind, how likely it is) that parameters say of it."""
        return parameters.kind(self.features, has_url=bool(self.page.url))


def forest_of(
    examples: list[Example],
    rows: list[npt.NDArray[np.float32]],
    trees: int,
    settings: Mapping[str, Any] = SETTINGS,
    known_kind: float = 1,
) -> list[dict[str, Any]]:
    """Trees that say by rows how likely a block is main text; a page of a known kind weighs `known_kind`."""
    number_of = Counter(example.page.group for example in examples)
    sums: Counter[str] = Counter()
    for example in examples:
        sums[example.page.group] += example.weights.sum()
    # A page weighs as much as one of any other set or language.
    scales = {group: 1000 * number / sums[group] for group, number in number_of.items()}
    known = [example.weights > 0 for example in examples]
    labels = np.concatenate([example.labels[chosen] for example, chosen in zip(examples, known, strict=True)])
    weights = np.concatenate(
        [
            example.weights[chosen] * scales[example.page.group] * (known_kind if example.page.kind else 1)
            for example, chosen in zip(examples, known, strict=True)
        ]
    )
    chosen_rows = np.concatenate([of_page[chosen] for of_page, chosen in zip(rows, known, strict=True)])
    data = lightgbm.Dataset(chosen_rows, labels, weight=weights, params={"max_bin": settings["max_bin"]})
    return trees_of(lightgbm.train(dict(settings), data, trees))


def first_forest(examples: list[Example]) -> tuple[list[dict[str, Any]], list[npt.NDArray[np.float64]]]:
    """A first forest learned from all examples, and what such ones say of pages whose domain they don't know."""

    def learned(some: list[Example]) -> list[dict[str, Any]]:
        return forest_of(some, [example.features.rows for example in some], FIRST_TREES)

    trees = learned(examples)
    of_parts = []
    for part in range(PARTS):
        others = [one for one in examples if part_of(one.page.domain, PARTS, 8) != part]
        of_parts.append(Forest.of(FEATURES, learned(others) if others else trees))  # all may be of one domain
    return trees, [of_parts[part_of(one.page.domain, PARTS, 8)].sums(one.features.rows) for one in examples]


def learned_from(examples: list[Example]) -> str:
    """The file of parameters."""
    used = [example for example in examples if example.blocks is not None and example.weights.any()]
    of_kinds = [example for example in examples if example.blocks is not None and example.page.kind]
    first, says = first_forest(used)
    rows = []
    for example, odds in zip(used, says, strict=True):
        assert example.blocks is not None
        rows.append(with_context(example.blocks, example.features.rows, example.features.words, odds))
    second = forest_of(used, rows, SECOND_TREES, SECOND_SETTINGS, KNOWN_KIND)
    pages, kinds, weights = pages_of_kinds(of_kinds)
    pages_alone = without_url(pages) if kinds else pages
    parts = {
        "features": json.dumps(FEATURES),
        "first": as_lines(first),
        "context": json.dumps(CONTEXT),
        "second": as_lines(second),
        "page_features": json.dumps(PAGE_FEATURES),
        "kinds": forests_as_lines(forests_of_kinds(pages, kinds, weights)),
        "kinds_without_url": forests_as_lines(forests_of_kinds(pages_alone, kinds, weights)),
    }
    return ",\n".join(f"{json.dumps(name)}: {part}" for name, part in parts.items()).join(("{", "}\n"))


def pages_of_kinds(
    examples: list[Example],
) -> tuple[npt.NDArray[np.float32], list[str], npt.NDArray[np.float64]]:
    """The features of pages, their kinds, and what each weighs.

    A page without its text, as some that are built by scripts, says nothing of its kind. Of a page that somebody has
    read a kind weighs between as much as any other and as often as it occurs. Those of which only the kind is known are
    chosen by those who have them, and of one domain alike: all of a kind weigh as much as those that have been read,
    each domain the same. They have less around their text than pages of other kinds, and that is no sign of a kind: a
    bare copy of each page that has been read says so.
    """
    chosen = [example for example in examples if example.wanted_words >= LEAST_WORDS]
    kinds = [example.page.kind for example in chosen]
    is_read = np.array([example.weights.any() for example in chosen], bool)
    counts = Counter(kind for kind, read in zip(kinds, is_read, strict=True) if read)
    mean = sum(counts.values()) / max(1, len(counts))
    of_kind = {kind: np.sqrt(mean / count) for kind, count in counts.items()}
    of_domain = Counter((one.page.kind, one.page.domain) for one, read in zip(chosen, is_read, strict=True) if not read)
    domains = Counter(kind for kind, _ in of_domain)
    weights = []
    for example, kind, read in zip(chosen, kinds, is_read, strict=True):
        weight = float(of_kind.get(kind, 1.0))
        if not read:
            weight *= max(1, counts[kind]) / (domains[kind] * of_domain[kind, example.page.domain])
        weights.append(weight)
    rows = [example.features.of_page for example in chosen]
    for example in chosen:
        if (bare := example.bare) is not None:
            rows.append(bare)
            kinds.append(example.page.kind)
            weights.append(BARE)
    return np.array(rows, np.float32), kinds, np.array(weights)


def forests_of_kinds(
    pages: npt.NDArray[np.float32], kinds: list[str], weights: npt.NDArray[np.float64]
) -> dict[str, list[dict[str, Any]]]:
    """Trees of each kind, given the features of pages, their kinds and weights."""
    names = sorted(set(kinds))
    if len(names) < 2:
        return {}
    numbers = np.array([names.index(kind) for kind in kinds])
    data = lightgbm.Dataset(pages, numbers, weight=weights)
    trees = trees_of(lightgbm.train({**KIND_SETTINGS, "num_class": len(names)}, data, KIND_TREES))
    return {kind: trees[number :: len(names)] for number, kind in enumerate(names)}


def forests_as_lines(forests: Mapping[str, list[dict[str, Any]]]) -> str:
    """Forests by name as JSON, a line for each tree."""
    return ",\n".join(f"{json.dumps(name)}: {as_lines(trees)}" for name, trees in forests.items()).join(("{\n", "}"))


def as_lines(trees: list[dict[str, Any]]) -> str:
    """Trees as JSON, a line each."""
    return ",\n".join(json.dumps(tree, separators=(",", ":")) for tree in trees).join(("[\n", "\n]"))


def trees_of(model: lightgbm.Booster) -> list[dict[str, Any]]:
    """All trees of a model of LightGBM's as `Forest.of` reads them."""
    return [tree_of(tree["tree_structure"]) for tree in model.dump_model()["tree_info"]]


def tree_of(structure: dict[str, Any]) -> dict[str, Any]:
    """One tree. Numbers are rounded to what decides."""
    nodes: list[list[Any]] = []
    leaves: list[float] = []

    def add(part: dict[str, Any]) -> int:
        if "leaf_value" in part:
            leaves.append(round(part["leaf_value"], 4))
            return -len(leaves)
        number = len(nodes)
        node: list[Any] = [part["split_feature"], float(f"{part['threshold']:.6g}"), 0, 0]
        nodes.append(node)
        node[2:] = [add(part["left_child"]), add(part["right_child"])]
        return number

    add(structure)
    return {"nodes": nodes, "leaves": leaves}


def examples_of(folders: list[Path]) -> list[Example]:
    """All pages of folders."""
    examples = [Example(page) for folder in folders for page in reviewed_pages(folder)]
    print(f"{len(examples):,} pages, {sum(len(example.labels) for example in examples if example.blocks):,} blocks")
    return examples


def unseen(examples: list[Example], own_part: Callable[[ReviewedPage], object]) -> dict[str, tuple[str, str]]:
    """[text, kind] of each page, by parameters learned from the pages of all other parts."""
    found: dict[str, tuple[str, str]] = {}
    for part in sorted({own_part(example.page) for example in examples}, key=str):
        parameters = Parameters.parse(learned_from([one for one in examples if own_part(one.page) != part]))
        tested = [example for example in examples if own_part(example.page) == part]
        found |= {example.page.key: example.extracted(parameters) for example in tested}
        texts = {key: text for key, (text, _) in found.items()}
        for group in sorted({example.page.group for example in tested}):
            pages = [example.page for example in tested if example.page.group == group]
            print(f"without {part}: {group}, {len(pages)} pages, F1 {match_of_set(pages, texts).f1:.4f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument(
        "--output", type=Path, default=Path(str(PARAMETERS)), help="the parameters (default: the package's)"
    )
    parser.add_argument("--folds", type=Path, metavar="FILE", help="write the texts of pages not learned from instead")
    parser.add_argument("--without-each", type=Path, metavar="FILE", help="the same, without each page's whole folder")
    arguments = parser.parse_args()
    examples = examples_of(arguments.folders)
    if arguments.folds is None and arguments.without_each is None:
        arguments.output.write_text(learned_from(examples), encoding="utf-8")
        print(f"written: {arguments.output}")
    if arguments.folds is not None:
        arguments.folds.write_text(json.dumps(unseen(examples, lambda page: page.fold)), encoding="utf-8")
    if arguments.without_each is not None:
        arguments.without_each.write_text(json.dumps(unseen(examples, lambda page: page.folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
