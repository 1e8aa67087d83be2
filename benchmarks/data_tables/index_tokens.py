"""`webtext index-tokens` and what `webtext trace` asks of it: sorting suffixes, and finding a text of 200 tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from indexed_tokens import IndexedTokensWriter
from indexed_tokens.suffix_index import SuffixIndex, documents_with, index_folder, longest_matches, occurrences
from measuring import Row, webtext

TITLE = "index-tokens: documents of 1,000 tokens, in parts of 32 million"
PEERS = ("numba", "numpy")
SORTED_A_SECOND = 1_000_000
"""Tokens that a core should sort in a second: a billion in 17 minutes."""
SECONDS = 1.0
"""The CPU time that one question may take."""
DOCUMENT = 1_000


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """Text of which a tenth is repeated, copies of one page, and questions by texts of both."""
    size = 400_000 if quick else 40_000_000
    random = np.random.default_rng(1)
    texts = np.minimum(random.zipf(1.15, size), 50_000).astype(np.uint16).reshape(-1, DOCUMENT)
    texts[::10] = texts[5]  # every tenth document is the same
    yield from _measured("text, a tenth of it copies", texts, folder / "text")
    yield from _measured("copies of one page", np.broadcast_to(texts[5], texts.shape), folder / "copies")


def _measured(what: str, texts: np.ndarray, prefix: Path) -> Iterator[Row]:
    with IndexedTokensWriter(prefix) as writer:
        for document in texts:
            writer.add(document)
    used = webtext("index-tokens", prefix, "--workers", "1")
    disk = sum(path.stat().st_size for path in index_folder(prefix).glob("*.u32")) / texts.size
    yield Row(
        f"ours: {what}", texts.size / used.cpu, "tokens", goal=SORTED_A_SECOND, peak=used.peak,
        note=f"{disk:.1f} bytes of disk a token",
    )  # fmt: skip
    index = SuffixIndex(prefix)
    query = np.concatenate([texts[5][300:360], texts[7][100:240]]).astype(np.int64)
    seconds = min(_question(index, query) for _ in range(3))
    yield Row(
        f"ours: a question, {what}", 1 / seconds, "questions", goal=1 / SECONDS,
        note=f"{seconds:.3f} s of CPU time, {len(index.parts)} parts",
    )  # fmt: skip


def _question(index: SuffixIndex, query: np.ndarray) -> float:
    """CPU seconds for the longest matches of a text, and the documents of the longest one of them."""
    start = time.process_time()
    lengths = longest_matches([index], query)
    at = int(lengths.argmax())
    documents_with(index, occurrences(index, query[at : at + lengths[at]]), 3)
    return time.process_time() - start
