"""Tokenizing: the whole stage beside the engines alone, on the same documents."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tiktoken

from indexed_tokens import Tokenizer
from indexed_tokens.tokenizer_files import PUBLISHED_WORDS, tokenizer_json
from measuring import Row, documents, rate_of, webtext, write_json_lines

TITLE = "tokenize: documents of 3 kB, GPT-2's tokenizer"
PEERS = ("tiktoken", "tokenizers", "gigatoken")
GOAL = 100
"""MB a second."""
STARTED = 5_000
"""After so many documents everything is loaded; the rates of the whole stage are those from there on."""


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """The engines alone and whether they agree, the stage, and its memory by the number of shards."""
    found = documents(STARTED + 1_000 if quick else 60_000)
    texts = [row["text"] for row in found]
    some = texts[:200] if quick else texts[:2000]
    alone = list(_engines(some))
    yield from alone
    yield from _stages(found, folder, alone[-1].rate or 0, 8 if quick else 256)


def _engines(texts: list[str]) -> Iterator[Row]:
    ours = Tokenizer.gpt2()
    expected = [ours.encode(text) for text in texts]
    ranks = {ours.decode_bytes([number]): number for number in range(50256)}
    plain = tiktoken.Encoding("plain", pat_str=PUBLISHED_WORDS, mergeable_ranks=ranks, special_tokens={})
    kinds: dict[str, Callable[[], Callable[[str], Any]]] = {
        "tiktoken alone, GPT-2's plain regular expression": lambda: plain.encode_ordinary,
        "ours: Tokenizer.encode (tiktoken)": lambda: ours.encode,
        "tokenizers alone": _hugging_face,
        "gigatoken alone": _gigatoken,
    }
    for name, opened in kinds.items():
        encode = opened()
        unequal = sum(list(encode(text)) != ids for text, ids in zip(texts, expected, strict=True))
        few = texts if "gigatoken" in name else texts[:500]
        yield _row(name, encode, few, f"{unequal} of {len(texts):,} documents with other tokens")


def _row(name: str, encode: Callable[[str], Any], texts: list[str], note: str) -> Row:
    size = sum(len(text.encode()) for text in texts)
    return rate_of(name, lambda: [encode(text) for text in texts], len(texts), size=size, note=note)


def _without_special_tokens() -> str:
    return json.dumps({**tokenizer_json(*Tokenizer.gpt2().tables), "added_tokens": []})


def _hugging_face() -> Callable[[str], Any]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    found = tokenizers.Tokenizer.from_str(_without_special_tokens())
    return lambda text: found.encode(text).ids


def _gigatoken() -> Callable[[str], Any]:
    import gigatoken

    return gigatoken.Tokenizer.from_json(_without_special_tokens()).encode


def _stages(found: list[dict[str, str]], folder: Path, alone: float, many: int) -> Iterator[Row]:
    size = sum(len(row["text"].encode()) for row in found)
    first = write_json_lines(folder / "first" / "part-00000.jsonl.zst", found[:STARTED]).parent
    for shards in (1, many):
        source = folder / f"in-{shards}"
        for number in range(shards):
            write_json_lines(source / f"part-{number:05}.jsonl.zst", found[number::shards])
        place = folder / f"out-{shards}"
        place.mkdir()
        start = webtext("tokenize", "--input", first, "--output", place / "first", "--workers", "1")
        used = webtext("tokenize", "--input", source, "--output", place / "all", "--workers", "1")
        seconds = used.cpu - start.cpu
        rate = (len(found) - STARTED) / seconds
        speed = size * rate / len(found) / 1e6
        yield Row(
            "ours: the whole stage" + (f", {shards} shards" if shards > 1 else ""),
            rate, megabytes=speed, goal=GOAL * rate / speed, peak=used.peak,
            note=f"{rate / alone:.2f} of it alone, after {start.cpu:.1f} s of start-up and {STARTED:,} documents"
            + _bytes_of(folder, place),
        )  # fmt: skip


def _bytes_of(folder: Path, place: Path) -> str:
    """Whether the token files are those of one shard: equal keys come in the same order in both."""
    expected, found = (f / "all_text_document.bin" for f in (folder / "out-1", place))
    return "; the same bytes" if expected.read_bytes() == found.read_bytes() else "; OTHER BYTES"
