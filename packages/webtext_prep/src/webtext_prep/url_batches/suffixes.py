"""The public suffix list of tldextract as a table, and the registered name of a host by it, in compiled code.

tldextract stays what defines a registered name: the suffixes are the ones that it uses, the walk over them is its own
(`_PublicSuffixListTLDExtractor.suffix_index`), and what needs more than comparing labels, such as names in Punycode and
addresses, is left to it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from webtext_prep.compiled import compiled
from webtext_prep.documents.urls import suffix_list
from webtext_prep.near_duplicates.hashes import Bytes
from webtext_prep.url_batches.tables import Table, find, table_of

_ROOT = 0


class Suffixes(NamedTuple):
    """The tree of suffixes, labels from the right; node 0 is its root, and node n + 1 entry n of `labels`.

    Attributes:
        labels: node and label to the node below it.
        ends: whether a suffix ends at a node.
        wildcards: whether `*` lies below a node.
        exceptions: node and label for which a suffix `!label` lies below the node.
    """

    labels: Table
    ends: Any
    wildcards: Any
    exceptions: Table


@functools.lru_cache(maxsize=1)
def suffixes() -> Suffixes:
    """The suffixes that tldextract uses."""
    nodes: dict[tuple[int, bytes], int] = {}
    last = set()
    for suffix in sorted(suffix_list().tlds):
        node = _ROOT
        for label in suffix.encode().split(b".")[::-1]:
            node = nodes.setdefault((node, label), len(nodes) + 1)
        last.add(node)
    with_wildcard = {node for node, label in nodes if label == b"*"}
    numbers = range(len(nodes) + 1)
    return Suffixes(
        table_of(nodes),
        np.array([node in last for node in numbers], np.bool_),
        np.array([node in with_wildcard for node in numbers], np.bool_),
        table_of((node, label[1:]) for node, label in nodes if label.startswith(b"!")),
    )


NOT_KNOWN = -1
"""What `registered_name` gives for a host that tldextract itself must be asked about."""


@compiled
def registered_name(tree: Suffixes, data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Where in the host `data[start:end]` the registered name begins, and where its suffix does (`end` without one).

    Both are NOT_KNOWN where tldextract must be asked: a label in Punycode, an address, or nothing but a suffix. The
    host is in lower case, of letters, digits, hyphens, underscores and dots, and no label of it is empty.
    """
    node, suffix, label_end, labels = _ROOT, end, end, 0
    matched = end  # where the last label that was found begins
    while label_end > start:
        label = label_end
        while label > start and data[label - 1] != 46:
            label -= 1
        if label_end - label >= 4 and data[label] == 120 and data[label + 1] == 110 and data[label + 2] == 45:
            return NOT_KNOWN, NOT_KNOWN
        labels += 1
        entry = find(tree.labels, node, data, label, label_end)
        if entry < 0:
            if tree.wildcards[node]:
                suffix = matched if find(tree.exceptions, node, data, label, label_end) >= 0 else label
            break
        node, matched = entry + 1, label
        if tree.ends[node]:
            suffix = label
        label_end = label - 1
    if suffix == start:
        return NOT_KNOWN, NOT_KNOWN
    if suffix == end:
        if 48 <= data[end - 1] <= 57:  # may be an address
            return NOT_KNOWN, NOT_KNOWN
        return _label_before(data, start, end), end
    return _label_before(data, start, suffix - 1), suffix


@compiled
def _label_before(data: Bytes, start: int, end: int) -> int:
    while end > start and data[end - 1] != 46:
        end -= 1
    return end
