"""gigatoken, another engine for the same tokenizers: many times as fast as tiktoken, and checked against it.

It splits texts by its own code instead of a regular expression, and keeps each word that it has met with its tokens:
290 MB of text per second on one core where tiktoken does 12. Its memory grows by some 100 bytes for each new word,
which is why a fresh one is made after so much text (`RENEW_BYTES`; 0.2 s).

It is a young program: whoever uses it compares it with tiktoken on some of his own texts before he trusts it, and
on a few more now and then (`check`).
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from indexed_tokens.reader import IndexedTokensError
from indexed_tokens.tokenizer import Tokenizer
from indexed_tokens.tokenizer_files import tokenizer_json

RENEW_BYTES = 128 << 20
"""Characters of text after which what it remembers of words is given up."""

HARD_TEXTS = (
    "",
    " ",
    "a",
    "<|endoftext|>",
    "a <|endoftext|> b",
    "it's I'LL 'S we'd've",
    "  two  spaces\n\n \t lines \r\n x ",
    "\u00a0\u2003\u3000x\u0085y\u2028z\u200b",
    "caf\u00e9 cafe\u0301 \u00df\u1e9e",
    "\u00b2\u00bd\u2167 \u0661\u0662 1234567890 3.14",
    "\u65e5\u672c\u8a9e \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "\x00\x1c\x1f\x7f",
    "half \ud800 of a pair",
    "x = {'a': [1, 2], \"b\": None}  # $%&!?...",
    "a" * 2000,
    " " * 5000 + "x",
)
"""Texts on which splits of words have differed between programs."""


class GigatokenEncoder:
    """Text to token ids by gigatoken, as `Tokenizer.encode` does it.

    Args:
        tokenizer: the tokenizer, which also is what `check` compares with.

    Raises IndexedTokensError if gigatoken is not installed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            import gigatoken
        except ImportError:
            raise IndexedTokensError(
                "gigatoken is not installed: install it (`pip install gigatoken`), or leave the encoding to tiktoken."
            ) from None
        self._tokenizer = tokenizer
        # Without the special token: in a document it is plain text.
        self._tables = json.dumps({**tokenizer_json(*tokenizer.tables), "added_tokens": []})
        self._new = gigatoken.Tokenizer.from_json
        self._engine: Any = None
        self._left = 0

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """The token ids of `text`, all of which is taken as plain text: shape (tokens,)."""
        if self._left <= 0:
            self._engine, self._left = self._new(self._tables), RENEW_BYTES
        self._left -= len(text)
        try:
            return self._engine.encode(text)
        except TypeError:
            # Half of a surrogate pair, which is no character; tiktoken writes U+FFFD for it.
            return self._engine.encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def check(self, texts: Iterable[str]) -> None:
        """Raise IndexedTokensError naming the first difference to tiktoken on one of `texts`."""
        for text in texts:
            ours, theirs = self._tokenizer.encode(text), self.encode(text).tolist()
            if ours == theirs:
                continue
            at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            begin = text[:60] + ("..." if len(text) > 60 else "")
            raise IndexedTokensError(
                f"gigatoken {importlib.metadata.version('gigatoken')} and tiktoken differ on the text {begin!r}: token "
                f"{at} is {self._shown(theirs[at : at + 1])}, and should be {self._shown(ours[at : at + 1])}."
            )

    def _shown(self, ids: list[int]) -> str:
        try:
            return f"{ids[0]} ({self._tokenizer.decode(ids)!r})" if ids else "missing"
        except ValueError:
            return f"{ids[0]}, which the vocabulary lacks"
