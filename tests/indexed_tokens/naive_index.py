"""An index of token files by its definition: all suffixes of each part, sorted as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexed_tokens import IndexedTokens, IndexedTokensWriter, Tokenizer, save_corpus_tokenizer
from indexed_tokens.suffix_index import (
    POSITION,
    URL_ENDS,
    URLS,
    Seal,
    checksum,
    divide,
    document_begins,
    index_folder,
    part_name,
)


def sorted_suffixes(documents: Sequence[Sequence[int]]) -> list[int]:
    """The places of all tokens of documents that lie back to back, by the suffixes that begin there."""
    suffixes, begin = [], 0
    for document in documents:
        # In this form whole numbers from 0 on are compared as their bytes are.
        content = np.asarray(document, ">u4").tobytes()
        suffixes += [(content[4 * at :], begin + at) for at in range(len(document))]
        begin += len(document)
    return [place for _, place in sorted(suffixes)]


def write_index(prefix: str | Path, *, part_tokens: int = 1 << 20, urls: Sequence[str] | None = None) -> None:
    """Write the index of the token files at `prefix`."""
    tokens, folder, parts = IndexedTokens(prefix), index_folder(prefix), []
    folder.mkdir(exist_ok=True)
    begins = document_begins(tokens)
    content = np.concatenate([np.zeros(0, tokens.dtype), *tokens])
    for number, part in enumerate(divide(begins, part_tokens)):
        documents = [content[begins[at] : begins[at + 1]] for at in range(*part.documents)]
        order = np.array(sorted_suffixes(documents), POSITION)
        (folder / part_name(number)).write_bytes(order.tobytes())
        parts.append(dataclasses.replace(part, crc32=checksum(order)))
    crc32 = None
    if urls is not None:
        lines = [f"{url}\n".encode() for url in urls]
        ends = np.cumsum([len(line) for line in lines]).astype("<u8").tobytes()
        (folder / URLS).write_bytes(b"".join(lines))
        (folder / URL_ENDS).write_bytes(ends)
        crc32 = checksum(b"".join(lines)), checksum(ends)
    Seal(tokens.identity(), tuple(parts), crc32).write(folder)


def write_indexed(
    prefix: Path,
    documents: Sequence[Sequence[int]],
    *,
    dtype: type = np.uint16,
    part_tokens: int = 1 << 20,
    urls: Sequence[str] | None = None,
) -> Path:
    """Write token files and their index; returns the prefix."""
    with IndexedTokensWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(np.array(document, dtype))
    write_index(prefix, part_tokens=part_tokens, urls=urls)
    return prefix


def make_corpus(prefix: Path, texts: list[str], **options: Any) -> str:
    """Indexed token files of texts by GPT-2's tokenizer, with URLs."""
    tokenizer = Tokenizer.gpt2()
    urls = [f"http://{prefix.name}.org/{number}" for number in range(len(texts))]
    documents = [[*tokenizer.encode(text), tokenizer.end_of_text] for text in texts]
    write_indexed(prefix, documents, urls=urls, **options)
    save_corpus_tokenizer(prefix, tokenizer)
    return str(prefix)
