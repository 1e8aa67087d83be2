"""A traced text as people read it: its passages marked, and below it where each stands.

On a terminal passages are coloured (`command_kit.colours`), elsewhere they stand in brackets. The number after one
leads to its documents. Documents come from anywhere: their control characters are not printed.
"""

from __future__ import annotations

import itertools
import re

from indexed_tokens.tracer import Passage, Source, Trace

COLOURS = ("\x1b[30;43m", "\x1b[30;46m", "\x1b[30;42m", "\x1b[30;45m")
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
LONGEST_SHOWN = 300
"""Characters of a passage in the list."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
        pieces.append(f"{COLOURS[(own[-1] - 1) % len(COLOURS)]}{piece}{PLAIN}" if own and colours else piece)
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
    quoted = f"{DIM}{context}{PLAIN}" if colours else context
    where = _one_line(source.url) if source.url is not None else place
    return [f"    {where}", *([f"        {place}"] if source.url is not None else []), f"        {quoted}"]


def _numbers(numbers: set[int], colours: bool) -> str:
    if not numbers:
        return ""
    shown = f"{{{', '.join(map(str, sorted(numbers)))}}}"
    return f"{DIM}{shown}{PLAIN}" if colours else f"]{shown}"


def _harmless(text: str) -> str:
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def _one_line(text: str) -> str:
    return _harmless(" ".join(text.split()))
