"""How well compressors do on the text that a model is measured on: what its bits per byte have to be compared with.

A compressor knows nothing but the text itself, a unigram model the frequency of each token: a model that needs more
bits has not learned what stands in the text.
"""

from __future__ import annotations

import gzip
import math
import sys
from typing import Any

from gpt2_train.config.settings import parse_split
from gpt2_train.data.corpus import Corpus
from gpt2_train.evaluation.tasks.held_out_loss import split_pieces
from indexed_tokens import Tokenizer, corpus_tokenizer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_TOKENS = 4_000_000
"""Tokens of the text that are compressed at most, some 15 MB: both take seconds for them, and more gains little."""


def compressed_bits(data: str, split: str, weights: str) -> dict[str, float]:
    """Bits per byte of a split of token files when gzip and zstd compress its text, by their names; empty for no text.

    Args:
        data: the prefix of the token files.
        split: `train`, `valid`, `test` or `all`.
        weights: the shares of the documents, as in `--split`.
    """
    corpus = Corpus(data, parse_split(weights))
    tokenizer = corpus_tokenizer(data) or Tokenizer.gpt2()
    pieces = split_pieces(corpus, split, most=MOST_TOKENS)
    text = b"".join(tokenizer.decode_bytes(piece.tolist()) for piece in pieces)
    if not text:
        return {}
    sizes = {"gzip -9": len(gzip.compress(text, 9)), "zstd -19": len(zstd.compress(text, 19))}
    return {name: 8 * size / len(text) for name, size in sizes.items()}


def unigram_bits(found: dict[str, Any]) -> float | None:
    """Bits per byte of the unigram model beside a held-out loss; None where the text's bytes are not known."""
    if not found.get("bytes") or "unigram_loss" not in found:
        return None
    return float(found["unigram_loss"] * found["tokens"] / math.log(2) / found["bytes"])
