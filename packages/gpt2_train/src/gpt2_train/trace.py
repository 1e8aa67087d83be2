"""`gpt2 trace`: which training documents hold the passages of a text that a model, or anybody, wrote.

The text comes from the command line, a file, or standard input. It is searched in token files that `webtext
index-tokens` has indexed. Needs no torch and no model; a moment for a billion tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TextIO

from command_kit import add_flags, setting, settings_from
from command_kit.colours import has_colours
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.inference import TOKENIZER_HELP
from gpt2_train.prompts import valid_text
from gpt2_train.trace_display import shown
from gpt2_train.tracing import Tracer
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
