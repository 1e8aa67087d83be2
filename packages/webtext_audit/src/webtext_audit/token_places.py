"""The numbers of documents in token files, which hold no URLs: a document is recognised by its tokens, and where others
have the same ones by its place in the order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from indexed_tokens import IndexedTokens, IndexedTokensError, corpus_tokenizer
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import read_documents, read_documents_with
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.errors import InputError
from webtext_prep.tokens.runs import encoding_refused, held_out_settings, shuffle_key

DEVIATIONS = 7
"""Standard deviations from where a hash says that a document is in a shuffle within which it is looked for first."""


class TokenPlaces:
    """Finds documents in the token files of a `tokenize`.

    Args:
        step: that made them.

    Raises InputError for token files, or a tokenizer, that can't be read.
    """

    def __init__(self, step: Step) -> None:
        self._step, self._settings = step, step.record["settings"]
        try:
            self._tokens, tokenizer = IndexedTokens(step.name), corpus_tokenizer(step.name)
        except IndexedTokensError as error:
            raise InputError(str(error)) from error
        if tokenizer is None:
            raise InputError(f"{step.name} has no tokenizer next to it, so that documents can't be found in it.")
        self._encode = tokenizer.encode
        self._end = [tokenizer.end_of_text] if self._settings["append_eod"] else []

    def find(self, document: Document) -> list[int]:
        """The numbers of a document; several where others can't be told from it, none where it was not encoded."""
        if self._is_refused(document):
            return []
        wanted = np.array([*self._encode(document.text), *self._end], self._tokens.dtype)
        near = self._equal(wanted, *self._expected(document))
        if len(near) == 1:
            return near
        same = self._equal(wanted, 0, len(self._tokens))
        if len(same) < 2:
            return same
        others = sorted(self._same_texts(document.text))
        if len(others) != len(same):  # the input has changed
            return same
        return [number for number, (*_, url) in zip(same, others, strict=True) if url == document.url]

    def _is_refused(self, document: Document) -> bool:
        return bool(encoding_refused(document, **held_out_settings(self._settings)))

    def _expected(self, document: Document) -> tuple[int, int]:
        """The numbers between which a document is for certain, in a shuffle by hashes."""
        count = len(self._tokens)
        if not self._settings["shuffle"]:
            return 0, count
        middle = int(shuffle_key(document, self._settings["seed"]) / 2**64 * count)
        around = int(DEVIATIONS * math.sqrt(count) / 2) + DEVIATIONS
        return max(0, middle - around), min(count, middle + around)

    def _equal(self, wanted: npt.NDArray[np.generic], begin: int, end: int) -> list[int]:
        """The numbers from `begin` to `end` of documents with these tokens."""
        as_long = np.flatnonzero(self._tokens.lengths[begin:end] == len(wanted)) + begin
        return [number for number in as_long.tolist() if np.array_equal(self._tokens[number], wanted)]

    def _same_texts(self, text: str) -> Iterator[tuple[int, int, int, str]]:
        """The encoded documents of the input that have a text: what orders them, and their URLs."""
        own = {shard for source in self._step.inputs for shard in source.shards()}
        for at, file in enumerate(self._step.input_files()):
            rows = read_documents_with(file, [text]) if file in own else enumerate(read_documents(file))
            for row, document in rows:
                if document.text == text and not self._is_refused(document):
                    is_shuffled = self._settings["shuffle"]
                    yield shuffle_key(document, self._settings["seed"]) if is_shuffled else 0, at, row, document.url


def has_input(step: Step) -> bool:
    """Whether the files that a step read are there."""
    try:
        return all(map(storage.is_file, step.input_files()))
    except InputError:
        return False


def joined(step: Step, tokens: Mapping[str, Sequence[int]]) -> list[int] | None:
    """The numbers of documents in token files that `merge-tokens` joined from others; None if that can't be known.

    `tokens` are their numbers in the token files that were joined, by prefix.
    """
    if step.plain_files or any(source.place is None for source in step.inputs):
        return None
    before, numbers = 0, []
    for source in step.inputs:
        numbers += [before + number for number in tokens.get(source.name, [])]
        before += IndexedTokens(source.name).documents
    return numbers
