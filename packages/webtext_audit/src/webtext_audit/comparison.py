"""What became of an output's documents in another one: which changed, how much shorter or longer they are, samples.

Documents are matched by URL. Each output is read twice: once for a hash and the length of each text, 20 bytes for a
document in memory, and once for the texts of the samples.
"""

from __future__ import annotations

import difflib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import find_inputs
from webtext_prep.documents.folders.shards import is_document_shard, read_documents

CHANGES = {"less than half": 0.5, "half to 90%": 0.9, "90% to 110%": 1.1, "110% to twice": 2.0}
"""Upper bounds of what a text's length is of what it was, each by its name."""
MORE = "more than twice"
SHOWN_LINES = 12
"""Changed lines that are shown of a sample."""
SHOWN_CHARACTERS = 160
"""Characters that are shown of a changed line."""
SEED = int.from_bytes(b"compare")
"""The key of `keyed_hash`: no other use of a hash chooses by the same one."""


@dataclass(frozen=True)
class Texts:
    """The texts of an output, by URL: the first one of each.

    Attributes:
        urls: hashes, ascending.
        texts: hashes.
        lengths: characters.
    """

    urls: npt.NDArray[np.uint64]
    texts: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, path: str) -> Texts:
        """Those of the document shards at a path. Raises InputError."""
        urls, texts, lengths = array("Q"), array("Q"), array("I")
        for document in _documents(path):
            urls.append(keyed_hash(document.id))
            texts.append(keyed_hash(document.text))
            lengths.append(len(document.text))
        found, first = np.unique(np.array(urls, np.uint64), return_index=True)
        return cls(found, np.array(texts, np.uint64)[first], np.array(lengths, np.uint32)[first])


def _documents(path: str) -> Iterator[Document]:
    for shard in find_inputs([path], accepts=is_document_shard, kinds="document shards").files:
        yield from read_documents(shard)


def keyed_hash(text: str) -> int:
    """A text's hash: it tells texts apart, and of URLs chooses the samples."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), SEED)


def compare(new: str, old: str, samples: int) -> dict[str, Any]:
    """Counts and samples of how the documents of `new` differ from those of `old`. Raises InputError.

    The samples are those of the changed documents whose URLs have the lowest hashes.
    """
    after, before = Texts.of(new), Texts.of(old)
    shared, here, there = np.intersect1d(after.urls, before.urls, assume_unique=True, return_indices=True)
    has_changed = after.texts[here] != before.texts[there]
    was, now = (of.lengths[at][has_changed].astype(np.float64) for of, at in ((before, there), (after, here)))
    places = np.digitize(now / np.maximum(was, 1), list(CHANGES.values()))
    counts = np.bincount(places, minlength=len(CHANGES) + 1).tolist()
    return {
        "documents": len(after.urls),
        "not_in_old": len(after.urls) - len(shared),
        "only_in_old": len(before.urls) - len(shared),
        "same_text": len(shared) - int(has_changed.sum()),
        "changed": int(has_changed.sum()),
        "of_the_changed": dict(zip([*CHANGES, MORE], counts, strict=True)),
        "characters": {"old": int(before.lengths.sum()), "new": int(after.lengths.sum())},
        "samples": _samples(new, old, frozenset(shared[has_changed][:samples].tolist())),
    }


def _samples(new: str, old: str, chosen: frozenset[int]) -> list[dict[str, Any]]:
    """The documents with these hashes of URLs, and what lines of theirs came and went."""
    texts: list[dict[int, Document]] = [{}, {}]
    for found, path in zip(texts, (old, new), strict=True):
        for document in _documents(path) if chosen else ():
            key = keyed_hash(document.id)
            if key in chosen:
                found.setdefault(key, document)
                if len(found) == len(chosen):
                    break
    before, after = texts
    return [
        {
            "url": after[key].url,
            "characters": f"{len(before[key].text):,} -> {len(after[key].text):,}",
            "text": "\n".join(_changed_lines(before[key].text, after[key].text)),
        }
        for key in sorted(chosen)
    ]


def _changed_lines(before: str, after: str) -> Iterator[str]:
    """The lines that went, behind `-`, and that came, behind `+`."""
    old, new = before.split("\n"), after.split("\n")
    lines = [
        line
        for what, begin, end, new_begin, new_end in difflib.SequenceMatcher(
            None, old, new, autojunk=False
        ).get_opcodes()
        if what != "equal"
        for line in (*(f"- {gone}" for gone in old[begin:end]), *(f"+ {come}" for come in new[new_begin:new_end]))
    ]
    for line in lines[:SHOWN_LINES]:
        yield line[:SHOWN_CHARACTERS]
    if len(lines) > SHOWN_LINES:
        yield f"... and {len(lines) - SHOWN_LINES:,} more lines"
