"""GPT-2's byte-pair encoding, with no download: text to token ids and back.

The vocabulary is GPT-2's own, which an installed package carries, or that of any byte-level BPE in a file (see
`tokenizer_files`). The engine is tiktoken, in Rust, given the merges as ranks: some 5 MB of text per second and core.

A tokenizer here knows no special tokens: `<|endoftext|>` inside a document is plain text, and only the code that
joins documents writes token 50256.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import tiktoken

from command_kit import write_text
from indexed_tokens import tokenizer_files
from indexed_tokens.checksums import record_path, recorded_facts
from indexed_tokens.reader import IndexedTokensError, prefix_of
from indexed_tokens.tokenizer_files import END_OF_TEXT, TokenizerTables

GPT2_VOCABULARY_SIZE = 50257
GPT2_FINGERPRINT = "d87e6c52eb5ed462a6b806fdea23a777afd8e5ccef882a07bf7d4cb2dff5c1cf"
GPT2_JSON_SHA256 = "6282c5acb7fb9017fae032e2a932f49ef57fa4aa067bae9ef5c3c7bb4963d9b3"
"""The digest of the file that `Tokenizer.gpt2().save_json` writes: beside token files it is nearly always this one."""

# `PUBLISHED_WORDS`, with possessive quantifiers where they change nothing, and `\s++$` added, which matches what
# `\s+(?!\S)` would at the end of a text.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# `\s+(?!\S)` overflows the regex engine's stack on very long runs of white space, so these are cut out beforehand.
# The class is Unicode's White_Space, which is what the engine's `\s` means (Python's own `\s` holds four more).
_LONG_SPACE = re.compile("[\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]{4000,}")


def byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in GPT-2's vocabulary files: character to byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + count): byte for count, byte in enumerate(others)})
    return alphabet


def _rank_of_tokens(merges: Sequence[tuple[str, str]], single_bytes: Iterable[str]) -> dict[str, int]:
    """Token to the number of the merge that makes it, without the tokens that no text is ever merged to.

    tiktoken joins two neighbours whenever they make a known token; GPT-2 joins pairs that are in the list. Merging
    inside a token goes as it does on the token alone (no merge crosses its bounds before it is made), so that the pair
    joined last there is the only one that ever makes it. Its rank is the token's; a token not reached is left out.
    """
    rank_of_pair = {pair: rank for rank, pair in enumerate(merges)}
    ranks = dict.fromkeys(single_bytes, -1)
    parts: dict[str, tuple[str, str]] = {}

    def meet(left: str, right: str, limit: int) -> bool:
        """Whether `left` and `right` come to stand side by side before merge number `limit`."""
        # Undo the merges on both sides of the seam, the latest first: one across it must not have come before.
        while rank_of_pair.get((left, right), limit) >= limit:
            if ranks[left] > ranks[right]:
                limit = ranks[left]
                left = parts[left][1]
            elif ranks[right] >= 0:
                # Of two equal pairs that overlap the left one, across the seam, would be first.
                limit = ranks[right] + 1
                right = parts[right][0]
            else:
                return True
        return False

    for rank, (left, right) in enumerate(merges):
        is_new = left + right not in ranks and rank_of_pair[left, right] == rank
        if is_new and left in ranks and right in ranks and meet(left, right, rank):
            ranks[left + right] = rank
            parts[left + right] = left, right
    return ranks


def _check_tables(
    vocabulary: dict[str, int],
    merges: Sequence[tuple[str, str]],
    tokens: Sequence[str],
    alphabet: Collection[str],
    name: str,
) -> None:
    """Raise IndexedTokensError where `tokens`, all bytes and merged pairs, are not the tokens of one byte-level BPE."""
    missing = next((token for token in tokens if token not in vocabulary), None)
    if missing is not None:
        raise IndexedTokensError(
            f"{name}: the merges make the token {missing!r}, which the vocabulary lacks: "
            "give a vocabulary and merges of the same tokenizer."
        )
    strange = set("".join(tokens)) - set(alphabet)
    foreign = next((token for token in tokens if not strange.isdisjoint(token)), None) if strange else None
    if foreign is not None:
        raise IndexedTokensError(
            f"{name}: the token {foreign!r} is not written in GPT-2's byte alphabet: "
            "give a byte-level tokenizer's files."
        )
    made = set(alphabet)
    for left, right in merges:
        # Programs disagree on what such a file means, and no training makes one.
        if not made.issuperset((left, right)):
            raise IndexedTokensError(
                f"{name}: the merge {left} {right} comes before the merges that make its parts: "
                "give the merges in the order in which they were learned."
            )
        made.add(left + right)


class Tokenizer:
    """Text to token ids and back, by byte-pair encoding in GPT-2's format.

    >>> Tokenizer.gpt2().encode("Hello world")
    [15496, 995]

    Args:
        vocabulary: token, in the files' byte alphabet, to id.
        merges: the pairs to merge, in the order in which they were learned.
        name: what error messages call it.

    Raises IndexedTokensError if the merges make a token that the vocabulary lacks, a byte has no token, or a merge
    comes before the merges that make its parts.
    """

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], name: str = "vocabulary") -> None:
        self.name = name
        self._vocabulary, self._merges = vocabulary, merges
        alphabet = byte_alphabet()
        single_bytes = sorted(alphabet, key=lambda character: vocabulary.get(character, -1))
        by_rank = [*single_bytes, *("".join(pair) for pair in merges)]
        _check_tables(vocabulary, merges, by_rank, alphabet.keys(), name)
        of_character = str.maketrans(alphabet)
        in_bytes = {token: token.translate(of_character).encode("latin-1") for token in by_rank}
        self._single_bytes = single_bytes
        # The engine's ids are ranks: bytes, then merges in order. GPT-2's own ids are the same; others' may differ.
        ids = [vocabulary[token] for token in by_rank]
        self._id_of_rank = None if ids == list(range(len(ids))) else np.array(ids, dtype=np.int64)
        self._bytes_of_id = {vocabulary[token]: in_bytes[token] for token in by_rank}
        for token, number in vocabulary.items():
            self._bytes_of_id.setdefault(number, token.encode("utf-8"))
        self.vocabulary_size = max(vocabulary.values()) + 1
        """Ids run from 0 to one less than this."""
        self.document_end = vocabulary.get(END_OF_TEXT)
        """The id that ends a document (50256 in GPT-2); None if the vocabulary has none."""

    @functools.cached_property
    def _engine(self) -> tiktoken.Encoding:
        """tiktoken's encoder, made on first use: that takes as long as to read the files."""
        alphabet, singles = byte_alphabet(), self._single_bytes
        ranks = {
            bytes(map(alphabet.__getitem__, token)): len(singles) + rank if rank >= 0 else singles.index(token)
            for token, rank in _rank_of_tokens(self._merges, singles).items()
        }
        return tiktoken.Encoding(self.name, pat_str=_WORDS, mergeable_ranks=ranks, special_tokens={})

    @classmethod
    @functools.lru_cache(maxsize=1)
    def gpt2(cls) -> Tokenizer:
        """GPT-2's own tokenizer, from the installed data files. Raises IndexedTokensError if they are damaged."""
        return cls(*tokenizer_files.read_vocabulary_and_merges(*tokenizer_files.gpt2_files()), "gpt2")

    @classmethod
    def from_path(cls, path: str | Path) -> Tokenizer:
        """The tokenizer in a folder or file, or GPT-2's own for the name `gpt2`.

        Args:
            path: a folder with `tokenizer.json`, or with `vocab.json` and `merges.txt`; one of these files; or
                `gpt2` (a folder of that name is `./gpt2`).

        Raises IndexedTokensError naming what is missing, wrong, or not byte-level BPE as GPT-2's is.
        """
        if path == "gpt2":
            return cls.gpt2()
        files = tokenizer_files.files_of(Path(path))
        tokenizer_files.check_settings_beside(files)
        with contextlib.suppress(OSError):  # which is said of what can't be read below
            if hashlib.sha256(files[0].read_bytes()).hexdigest() == GPT2_JSON_SHA256:
                return cls.gpt2()
        tables = tokenizer_files.read_tables(Path(path))
        return cls.gpt2() if _fingerprint(*tables) == GPT2_FINGERPRINT else cls(*tables, str(path))

    @classmethod
    def from_files(cls, vocabulary: str | Path, merges: str | Path) -> Tokenizer:
        """A tokenizer from `vocab.json` and `merges.txt`. Raises IndexedTokensError naming the file that is wrong."""
        return cls(*tokenizer_files.read_vocabulary_and_merges(Path(vocabulary), Path(merges)), str(vocabulary))

    @property
    def end_of_text(self) -> int:
        """`document_end`. Raises IndexedTokensError if the vocabulary has none."""
        if self.document_end is None:
            raise IndexedTokensError(f"{self.name} has no token {END_OF_TEXT}: add one to vocab.json.")
        return self.document_end

    @functools.cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: a text of more than n times as many has more than n tokens."""
        return max(map(len, self._bytes_of_id.values()))

    @property
    def tables(self) -> TokenizerTables:
        """The content of its files: vocabulary and merges."""
        return TokenizerTables(self._vocabulary, list(self._merges))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A sha256 of everything that decides the encoding; equal for equal tokenizers."""
        return _fingerprint(self._vocabulary, self._merges)

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
        """The bytes that `ids` encode; a single id may be part of a character.

        Raises ValueError for an id outside the vocabulary.
        """
        try:
            return b"".join([self._bytes_of_id[int(number)] for number in ids])
        except KeyError as error:
            raise ValueError(f"token id {error} is not in the vocabulary of {self.vocabulary_size} tokens.") from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text that `ids` encode, with U+FFFD where they do not make valid UTF-8."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def save(self, folder: str | Path) -> None:
        """Write `vocab.json` and `merges.txt` to `folder`, as `from_files` and other GPT-2 tools read them."""
        write_text(Path(folder) / "vocab.json", json.dumps(self._vocabulary, ensure_ascii=False))
        lines = ["#version: 0.2", *(" ".join(pair) for pair in self._merges)]
        write_text(Path(folder) / "merges.txt", "\n".join(lines) + "\n")

    def save_json(self, path: str | Path) -> None:
        """Write a Hugging Face `tokenizer.json` to `path`, atomically; equal tokenizers give equal bytes."""
        found = tokenizer_files.tokenizer_json(self._vocabulary, self._merges)
        write_text(path, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _fingerprint(vocabulary: dict[str, int], merges: Sequence[tuple[str, str]]) -> str:
    ordered = sorted(vocabulary.items(), key=lambda item: item[1])
    return hashlib.sha256(json.dumps([ordered, list(merges)]).encode()).hexdigest()


def tokenizer_path(path: str | Path) -> Path:
    """`corpus_text_document`, or one of its token files -> `corpus_text_document.tokenizer.json`."""
    return Path(f"{prefix_of(path)}.tokenizer.json")


def save_corpus_tokenizer(path: str | Path, tokenizer: Tokenizer) -> Path:
    """Write `tokenizer` next to the token files of that prefix, atomically; returns the file's path.

    Equal tokenizers give equal bytes.
    """
    file = tokenizer_path(path)
    tokenizer.save_json(file)
    return file


def corpus_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer that lies next to the token files of that prefix; None where there is none.

    Raises IndexedTokensError if the file is damaged, or is not the tokenizer that the record next to it names.
    """
    file = tokenizer_path(path)
    if not file.exists():
        return None
    tokenizer = Tokenizer.from_path(file)
    if recorded_facts(path).get("tokenizer", tokenizer.fingerprint) != tokenizer.fingerprint:
        raise IndexedTokensError(
            f"{file} is not the tokenizer that {record_path(path).name} next to it names: it was damaged or replaced; "
            "copy the one that belongs to the token files, or make these again."
        )
    return tokenizer
