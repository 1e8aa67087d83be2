"""`gpt2 trace`: which training documents hold the passages of a text that a model, or anybody, wrote.

The text comes from the command line, a file, or standard input. It is searched in token files that `webtext
index-tokens` has indexed. Needs no torch and no model; a moment for a billion tokens.

On a terminal passages are coloured (`command_kit.colours`), elsewhere they stand in brackets. The number after one
leads to its documents. Documents come from anywhere: their control characters are not printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import sys
from pathlib import Path
from typing import TextIO

from command_kit import add_flags, setting, settings_from
from command_kit.colours import has_colours
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import TOKENIZER_HELP
from gpt2_train.inference.prompts import valid_text
from gpt2_train.inference.tracing import Passage, Source, Trace, Tracer
from indexed_tokens import Tokenizer

EXAMPLE = """\
example:
  gpt2 trace --data corpus_text_document --text "In the beginning was line 12 of a text."
  gpt2 trace --data corpus_text_document other_text_document --file letter.txt --minimum-tokens 12
"""


@dataclasses.dataclass(frozen=True)
class TraceSettings:
    """The settings of `gpt2 trace`. Raises Gpt2UsageError where one is missing or two don't fit together."""

    data: tuple[str, ...] = setting(
        (), "token files with an index beside them (`webtext index-tokens`); several are searched together",
        metavar="PREFIX",
    )  # fmt: skip
    text: str | None = setting(None, "the text to look for")
    file: str | None = setting(None, "a file that holds it, in UTF-8; without either it is standard input")
    minimum_tokens: int | None = setting(
        None, "passages of fewer tokens don't count; by default those that may well be chance", ge=1
    )
    limit: int = setting(3, "name so many documents of each passage", ge=0)
    tokenizer: str | None = setting(
        None,
        TOKENIZER_HELP.replace("to use instead of the checkpoint's own", "of token files that have none beside them"),
        metavar="DIR|FILE",
    )
    check: bool = setting(False, "first read the whole index, and compare its checksums")

    def __post_init__(self) -> None:
        if self.text is not None and self.file is not None:
            raise Gpt2UsageError("--text and --file are both given: leave out one.")


SETTINGS = TraceSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 trace` to its parser."""
    parser.epilog = EXAMPLE
    parser.add_argument("--config", metavar="FILE.toml", help="read settings from a TOML file; flags win over it")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    add_flags(parser, TraceSettings)


def run(arguments: argparse.Namespace) -> int:
    """Carry out `gpt2 trace`; returns the exit code. Raises Gpt2UsageError and IndexedTokensError."""
    settings = settings_from(TraceSettings, arguments, command="trace", config=arguments.config)
    tokenizer = Tokenizer.from_path(settings.tokenizer) if settings.tokenizer is not None else None
    tracer = Tracer(settings.data, tokenizer)
    if settings.check:
        for index in tracer.indices:
            index.check()
    text = read_text(settings, sys.stdin)
    trace = tracer.trace(text, minimum_tokens=settings.minimum_tokens, most=settings.limit)
    if arguments.json:
        print(json.dumps(trace.as_dict(), ensure_ascii=False))
        return 0
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    print(shown(trace, colours=has_colours(sys.stdout)))
    return 0


def read_text(settings: TraceSettings, stdin: TextIO) -> str:
    """The text that the settings name. Raises Gpt2UsageError for one that can't be read, or is empty."""
    if settings.text is not None:
        text = valid_text(settings.text)
    else:
        where = settings.file or "standard input"
        if settings.file is None and stdin.isatty():
            raise Gpt2UsageError("no text: give --text TEXT or --file FILE, or pipe it in.")
        try:
            content = Path(settings.file).read_bytes() if settings.file is not None else stdin.buffer.read()
            text = content.decode("utf-8-sig")
        except OSError as error:
            raise Gpt2UsageError(f"can't read {where} ({error.strerror}): give another file.") from None
        except UnicodeDecodeError:
            raise Gpt2UsageError(f"{where} is not valid UTF-8: save it as UTF-8.") from None
    if not text.strip():
        raise Gpt2UsageError("the text is empty: there is nothing to look for.")
    return text


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
    """The text with its passages marked, each followed by its number, or by those of several that overlap."""
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
    """How much of the text stands in the corpus, and where each passage does."""
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
