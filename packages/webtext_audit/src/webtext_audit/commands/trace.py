"""`webtext trace`: which training documents hold the passages of a text that a model, or anybody, wrote.

The text comes from the command line, a file, or standard input. It is searched in token files that `webtext
index-tokens` has indexed.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, TextIO

from command_kit import setting
from command_kit.colours import has_colours
from indexed_tokens import Tokenizer
from indexed_tokens.traced_text import shown
from indexed_tokens.tracer import Tracer
from webtext_prep.commands import Command
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings


@dataclass(frozen=True)
class TraceCommand(Command):
    """Say which training documents hold the passages of a text, word for word: of what a model wrote, or of any."""

    name: ClassVar[str] = "trace"
    order: ClassVar[int] = 35
    summary: ClassVar[str] = "a text -> the documents of token files that hold its passages, word for word"

    data: tuple[str, ...] = setting(
        (), "token files with an index next to them (`webtext index-tokens`); several are searched together",
        metavar="PREFIX",
    )  # fmt: skip
    text: str | None = setting(None, "the text to look for")
    file: str | None = setting(None, "a file that holds it, in UTF-8; without either it is standard input")
    minimum_tokens: int | None = setting(
        None, "passages of fewer tokens don't count; by default passages that may well be chance", ge=1
    )
    limit: int = setting(3, "documents to name for each passage", ge=0)
    tokenizer: str | None = setting(
        None,
        "tokenizer of token files that have none next to them: a folder with vocab.json and merges.txt, a "
        "tokenizer.json of byte-level BPE, or the name gpt2",
        metavar="DIR|FILE",
    )
    check: bool = setting(False, "first read the whole index, and compare its checksums")

    def __post_init__(self) -> None:
        if self.text is not None and self.file is not None:
            raise InputError("--text and --file are both given: leave out one.")

    def find(self) -> Findings:
        """The passages of the text. Raises InputError for a text, IndexedTokensError for files that can't be used."""
        tracer = Tracer(self.data, Tokenizer.from_path(self.tokenizer) if self.tokenizer is not None else None)
        if self.check:
            for index in tracer.indices:
                index.check()
        trace = tracer.trace(self.read_text(sys.stdin), minimum_tokens=self.minimum_tokens, most=self.limit)
        if hasattr(sys.stdout, "reconfigure"):
            # A character that the terminal's encoding lacks is no reason to lose the text.
            sys.stdout.reconfigure(errors="replace")
        return Findings(shown(trace, colours=has_colours(sys.stdout)), asdict(trace))

    def read_text(self, stdin: TextIO) -> str:
        """The text that the settings name. Raises InputError for one that can't be read, or is empty."""
        if self.text is not None:
            # Undecodable bytes of a command line become lone surrogates, which are no text.
            text = self.text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        else:
            where = self.file or "standard input"
            if self.file is None and stdin.isatty():
                raise InputError("no text: give --text TEXT or --file FILE, or pipe it in.")
            try:
                content = Path(self.file).read_bytes() if self.file is not None else stdin.buffer.read()
                text = content.decode("utf-8-sig")
            except OSError as error:
                raise InputError(f"can't read {where} ({error.strerror}): give another file.") from None
            except UnicodeDecodeError:
                raise InputError(f"{where} is not valid UTF-8: save it as UTF-8.") from None
        if not text.strip():
            raise InputError("the text is empty: there is nothing to look for.")
        return text
