"""A search for the documents of indexed token files that hold the passages of a text that a model, or anybody, wrote.

`webtext trace` and `gpt2 generate --trace` ask it. Needs no model; a moment for a billion tokens.

As people read it (`shown`), the text has its passages marked, and below it stands where each is found. On a terminal
passages are coloured, elsewhere they stand in brackets. The number after one leads to its documents. Documents come
from anywhere: their control characters are not printed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit.colours import DIM, Paint, printable
from indexed_tokens.reader import IndexedTokensError
from indexed_tokens.suffix_index import SuffixIndex, documents_with, longest_matches, occurrences
from indexed_tokens.tokenizer import Tokenizer, corpus_tokenizer

PERPLEXITY = 20
"""Perplexity of a text, per token of GPT-2, to a good model of its language: about that of GPT-2 itself on web text."""
CONTEXT_TOKENS = 12
"""Tokens that are shown on both sides of a passage in its document."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A document that holds a passage.

    Attributes:
        data: the prefix of its token files.
        document: its number in them.
        url: None where the index knows none.
        token: the place of the passage in it, in tokens.
        before: what stands before the passage.
        after: what stands after it.
    """

    data: str
    document: int
    url: str | None
    token: int
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Passage:
    """A part of a text that stands in the corpus.

    Attributes:
        begin: its first character in the text.
        end: one after its last.
        tokens: how many it has.
        text: its characters.
        occurrences: how often it stands in the corpus.
        documents: in how many documents.
        sources: the first of them.
    """

    begin: int
    end: int
    tokens: int
    text: str
    occurrences: int
    documents: int
    sources: list[Source]


@dataclasses.dataclass(frozen=True)
class Trace:
    """The passages of a text that stand in the corpus.

    Attributes:
        text: the text that was searched, without the prompt.
        tokens: how many it has.
        minimum_tokens: shorter passages are not counted.
        verbatim_tokens: how many of its tokens are in any passage.
        passages: in the order in which they begin; they may overlap, but none lies within another.
        longest: where no passage is long enough, the first of the longest ones that stand in the corpus.
    """

    text: str
    tokens: int
    minimum_tokens: int
    verbatim_tokens: int
    passages: list[Passage]
    longest: Passage | None = None


def chance_length(corpus_tokens: int, text_tokens: int) -> int:
    """The tokens from which on a passage is hardly in a corpus by chance.

    A passage of L tokens has a probability of about 1 / PERPLEXITY^L. With each of the places of the text beside
    each of the corpus, one such passage is expected where corpus · text = PERPLEXITY^L. Set phrases come more often.

    >>> chance_length(1_000_000_000, 200)
    9
    """
    return max(3, math.ceil(math.log(max(2, corpus_tokens) * max(1, text_tokens), PERPLEXITY)))


class Tracer:
    """Finds passages of texts in indexed token files.

    Args:
        prefixes: the token files; several are searched as one corpus.
        tokenizer: the one that made them, where none lies next to them.

    Raises IndexedTokensError for token files or an index that is missing, damaged or out of date, for files of
    different tokenizers, of another one than the given, or without any.
    """

    def __init__(self, prefixes: Sequence[str], tokenizer: Tokenizer | None = None) -> None:
        if not prefixes:
            raise IndexedTokensError("no --data: give token files that `webtext index-tokens` has indexed.")
        self.indices = [SuffixIndex(prefix) for prefix in dict.fromkeys(prefixes)]
        self.tokenizer = _common_tokenizer(self.indices, tokenizer)

    @property
    def corpus_tokens(self) -> int:
        """Tokens in all files together."""
        return sum(int(index.begins[-1]) for index in self.indices)

    def trace(self, text: str, *, prompt: str = "", minimum_tokens: int | None = None, most: int = 3) -> Trace:
        """The passages of `text` that stand in the corpus.

        Args:
            text: what to look for.
            prompt: what stands before it, and is not searched.
            minimum_tokens: passages of fewer tokens don't count; `chance_length` by default.
            most: documents to name for each passage.
        """
        ids, bounds = self._encode(text, prompt)
        lengths = longest_matches(self.indices, ids)
        least = chance_length(self.corpus_tokens, len(ids)) if minimum_tokens is None else minimum_tokens
        ends = np.arange(len(ids)) + lengths
        is_longest = ends > np.concatenate([[-1], ends[:-1]])
        chosen = np.flatnonzero(is_longest & (lengths >= max(1, least)))
        is_verbatim = np.zeros(len(ids), bool)
        for first in chosen:
            is_verbatim[first : ends[first]] = True

        def passage(first: int) -> Passage:
            last = int(ends[first])
            return self._passage(text, ids[first:last], int(bounds[0][first]), int(bounds[1][last - 1]), most)

        longest = passage(int(lengths.argmax())) if not len(chosen) and lengths.any() else None
        return Trace(text, len(ids), least, int(is_verbatim.sum()), [*map(passage, chosen.tolist())], longest)

    def _encode(self, text: str, prompt: str) -> tuple[list[int], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """The tokens of `text`, and at which of its characters each begins and ends."""
        ids = self.tokenizer.encode(prompt + text)
        skipped = len(prompt.encode())
        if not prompt and text[:1].strip():
            # Inside a document the first word has a space before it, which makes another token: which one is here, 32
            # tokens tell.
            spaced = self.tokenizer.encode(f" {text}")
            firsts = [longest_matches(self.indices, some[:32])[0] for some in (ids, spaced)]
            if _size(self.tokenizer, spaced[: firsts[1]]) - 1 > _size(self.tokenizer, ids[: firsts[0]]):
                ids, skipped = spaced, 1
        sizes = np.array([_size(self.tokenizer, [number]) for number in ids], np.int64)
        ends = np.cumsum(sizes)
        begins = ends - sizes
        # A token that holds the end of the prompt and the beginning of the text is left out.
        own = int(np.searchsorted(begins, skipped)) if prompt else 0
        return ids[own:], _as_characters(text, begins[own:] - skipped, ends[own:] - skipped)

    def _passage(self, text: str, ids: Sequence[int], begin: int, end: int, most: int) -> Passage:
        begin += len(text[begin:end]) - len(text[begin:end].lstrip())  # the space before a word is part of its token
        total = documents = 0
        sources: list[Source] = []
        for index in self.indices:
            found = occurrences(index, ids)
            total += sum(len(entries) for _, entries in found)
            count, first = documents_with(index, found, most)
            documents += count
            sources += [self._source(index, *one, len(ids)) for one in first[: most - len(sources)]]
        return Passage(begin, end, len(ids), text[begin:end], total, documents, sources)

    def _source(self, index: SuffixIndex, document: int, place: int, length: int) -> Source:
        begin, end = (int(index.begins[at]) for at in (document, document + 1))
        before = index.text[max(begin, place - CONTEXT_TOKENS) : place]
        after = index.text[place + length : min(end, place + length + CONTEXT_TOKENS)]
        shown = (self._decode(some) for some in (before, after))
        return Source(str(index.prefix), document, index.url(document), place - begin, *shown)

    def _decode(self, tokens: npt.NDArray[Any]) -> str:
        known = tokens[tokens < self.tokenizer.vocabulary_size].tolist()
        end = self.tokenizer.document_end
        return self.tokenizer.decode([token for token in known if token != end])


def _common_tokenizer(indices: Sequence[SuffixIndex], given: Tokenizer | None) -> Tokenizer:
    found = {index.prefix: corpus_tokenizer(index.prefix) for index in indices}
    first: Tokenizer | None = None
    for prefix, beside in found.items():
        if given is not None and beside is not None and given.fingerprint != beside.fingerprint:
            raise IndexedTokensError(
                f"--tokenizer is another than {prefix}.tokenizer.json, which made the token files: leave it out."
            )
        tokenizer = beside or given
        if tokenizer is None:
            raise IndexedTokensError(
                f"{prefix} has no tokenizer next to it: put the one that made it there as {prefix}.tokenizer.json, or "
                "use `webtext trace --tokenizer`."
            )
        if first is not None and first.fingerprint != tokenizer.fingerprint:
            raise IndexedTokensError(
                f"{prefix} and {indices[0].prefix} were made with different tokenizers: trace one after another."
            )
        first = first or tokenizer
    assert first is not None
    return first


def _size(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    return len(tokenizer.decode_bytes(ids))


def _as_characters(
    text: str, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bytes of a text as numbers of its characters; one that only a part of is inside counts as outside."""
    content = np.frombuffer(text.encode(), np.uint8)
    is_first = np.append((content & 0xC0) != 0x80, True)
    # The number of characters that begin before each byte, the one after the last included.
    before = np.cumsum(is_first) - is_first
    begins, ends = (np.clip(places, 0, len(content)) for places in (begins, ends))
    return before[begins], before[ends] - ~is_first[ends]


# As people read it

LONGEST_SHOWN = 300
"""Characters of a passage in the list."""
COLOURS = ("30;43", "30;46", "30;42", "30;45")


def shown(trace: Trace, *, colours: bool) -> str:
    """A text with its passages marked, and where each stands; of a text without any, that alone."""
    told = described(trace, colours=colours)
    return f"{marked(trace, colours=colours)}\n\n{told}" if trace.passages else told


def marked(trace: Trace, *, colours: bool) -> str:
    """The text with its passages marked, each followed by its number, or by several numbers where passages overlap."""
    edges = sorted({0, len(trace.text), *(edge for one in trace.passages for edge in (one.begin, one.end))})
    pieces: list[str] = []
    numbers: set[int] = set()
    for begin, end in itertools.pairwise(edges):
        own = [number for number, one in enumerate(trace.passages, 1) if one.begin <= begin and end <= one.end]
        if own and not numbers and not colours:
            pieces.append("[")
        if not own:
            pieces.append(_numbers(numbers, colours))
            numbers = set()
        numbers.update(own)
        piece = _harmless(trace.text[begin:end])
        pieces.append(Paint(colours)(piece, COLOURS[(own[-1] - 1) % len(COLOURS)]) if own else piece)
    return "".join([*pieces, _numbers(numbers, colours)])


def described(trace: Trace, *, colours: bool) -> str:
    """The summary: how much of the text stands in the corpus, and where each passage does."""
    if not trace.passages:
        none = f"No passage of {trace.minimum_tokens} tokens or more stands in the corpus word for word"
        if trace.longest is None:
            return f"{none}, and no shorter one either."
        return f"{none}; the longest has {trace.longest.tokens}: {_one_line(trace.longest.text)!r}."
    share = trace.verbatim_tokens / trace.tokens
    count = len(trace.passages)
    lines = [
        f"{trace.verbatim_tokens:,} of {trace.tokens:,} tokens ({share:.0%}) stand in the corpus word for word, in "
        f"{count:,} passage{'s' if count > 1 else ''} of {trace.minimum_tokens} tokens or more."
    ]
    for number, passage in enumerate(trace.passages, 1):
        lines += ["", *_passage(number, passage, colours)]
    return "\n".join(lines)


def _passage(number: int, passage: Passage, colours: bool) -> list[str]:
    text = passage.text if len(passage.text) <= LONGEST_SHOWN else passage.text[:LONGEST_SHOWN] + "..."
    times = "once" if passage.occurrences == 1 else f"{passage.occurrences:,} times in {passage.documents:,} documents"
    times = times.replace("in 1 documents", "in one document")
    lines = [f"{{{number}}} {passage.tokens:,} tokens, {times}: {_one_line(text)}"]
    lines += [line for source in passage.sources for line in _source(source, colours)]
    if passage.documents > len(passage.sources):
        lines.append(f"    and {passage.documents - len(passage.sources):,} more")
    return lines


def _source(source: Source, colours: bool) -> list[str]:
    place = f"document {source.document:,} of {source.data}, token {source.token:,}"
    context = f"{_one_line(source.before)} [...] {_one_line(source.after)}".strip()
    where = _one_line(source.url) if source.url is not None else place
    return [
        f"    {where}",
        *([f"        {place}"] if source.url is not None else []),
        f"        {Paint(colours)(context, DIM)}",
    ]


def _numbers(numbers: set[int], colours: bool) -> str:
    if not numbers:
        return ""
    shown = f"{{{', '.join(map(str, sorted(numbers)))}}}"
    return Paint(colours)(shown, DIM) if colours else f"]{shown}"


def _harmless(text: str) -> str:
    return printable(text.replace("\r\n", "\n"))


def _one_line(text: str) -> str:
    return _harmless(" ".join(text.split()))
