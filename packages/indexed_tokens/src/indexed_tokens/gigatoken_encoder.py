"""The encoder of whole corpora: gigatoken, many times as fast as tiktoken, and equal to it.

It splits texts by its own code instead of a regular expression, and keeps each word that it has met with its tokens:
430 MB of text per second on one core where tiktoken does 12. What it keeps is bounded here: a fresh one is made when it
has grown by so much (`MOST_BYTES`).

tiktoken defines what is right. It knows the letters of Unicode 16, gigatoken those of 17: texts with one of the 4,657
that are new are left to tiktoken. Equal tokens of every code point, and of hundreds of thousands of hostile texts, are
tested for the version that the project pins; another one, on another processor, is compared on some texts (`check`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexed_tokens.reader import IndexedTokensError
from indexed_tokens.tokenizer import Tokenizer
from indexed_tokens.tokenizer_files import tokenizer_json

MOST_BYTES = 128 << 20
"""Memory that it may take for words, about,"""
LOOK_BYTES = 8 << 20
"""and characters of text after which that is looked at: 10 bytes for each, where no word comes twice."""

NEW_LETTERS = re.compile(
    "[\u088f\u0c5c\u0cdc\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1\U00010940-\U00010959\U00010ec5-\U00010ec7"
    "\U00011db0-\U00011ddb\U00011de0-\U00011de9\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6"
    "\U000187f8-\U000187ff\U00018d09-\U00018d1e\U00018d80-\U00018df2\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6e2"
    "\U0001e6e4\U0001e6e5\U0001e6e7-\U0001e6ed\U0001e6f0-\U0001e6f4\U0001e6fe\U0001e6ff\U0002b73a-\U0002b73f"
    "\U0002cea2-\U0002cead\U000323b0-\U00033479]"
)
"""Letters and numbers of Unicode 17 that are none in Unicode 16."""

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


def has_new_letters(text: str, data: bytes) -> bool:
    """Whether `text`, in UTF-8 `data`, has a letter or number that gigatoken knows, and tiktoken does not."""
    # The UTF-8 of each begins with one of these bytes, found at once: to look for two takes ten times as long.
    may_have = b"\xf0" in data or b"\xe0" in data or (b"\xea" in data and b"\xea\x9f" in data)
    return may_have and bool(NEW_LETTERS.search(text))


def split_into_words(text: str) -> Iterator[bytes]:
    """The words of `text` as GPT-2 splits it, in UTF-8."""
    from gigatoken.gigatoken_rs import pretokenizer

    data = text.encode()
    if not has_new_letters(text, data):
        return iter(pretokenizer(data))
    # Split with signs of the same size in place of the new letters.
    plain = NEW_LETTERS.sub(lambda found: "\u2603" if found[0] < "\U00010000" else "\U0001f600", text)
    ends = itertools.accumulate(map(len, pretokenizer(plain.encode())))
    return (data[start:end] for start, end in itertools.pairwise(itertools.chain([0], ends)))


class GigatokenEncoder:
    """Text to token ids by gigatoken, as `Tokenizer.encode` does it.

    Args:
        tokenizer: the tokenizer, which also is what `check` compares with.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._engine = self._fresh()
        self._begin, self._left = _resident_bytes(), LOOK_BYTES

    def _fresh(self) -> Any:
        from gigatoken import Tokenizer as Gigatoken

        return Gigatoken.from_json(self._tables)

    @functools.cached_property
    def _tables(self) -> str:
        """A `tokenizer.json` without the special token: in a document it is plain text."""
        return json.dumps({**tokenizer_json(*self._tokenizer.tables), "added_tokens": []})

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """The token ids of `text`, all of which is taken as plain text: shape (tokens,)."""
        self._left -= len(text)
        if self._left <= 0:
            self._left = LOOK_BYTES
            if _resident_bytes() - self._begin > MOST_BYTES:
                self._engine = self._fresh()
        if text.isascii():
            return self._engine.encode(text)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            # Half of a surrogate pair, which is no character; tiktoken writes U+FFFD for it.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            data = text.encode()
        if has_new_letters(text, data):
            return np.array(self._tokenizer.encode(text), np.uint32)
        return self._engine.encode(data)

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


def _resident_bytes() -> int:
    """The memory of this process, or where the system does not say the most that it had."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)
