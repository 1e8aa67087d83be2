"""The end of a command's output: the summary of a stage, or what a command that writes no documents has found."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any, TextIO

from command_kit import duration
from command_kit.colours import BOLD, DIM, GREEN, PLAIN, YELLOW, Paint, display_width, padded
from command_kit.command import in_words
from webtext_prep.running.tasks import Tally

DIGEST = re.compile("[0-9a-f]{64}")
"""A SHA-256, of which people are shown the beginning; `--json` and the records have all of it."""


@dataclass
class Summary:
    """The end of one run of one stage.

    Attributes:
        stage: its command.
        output: where it wrote.
        tally: what became of all documents.
        facts: what else it tells (tokens, bytes).
        seconds: how long this run took.
        resumed: whether an earlier run had done all of it.
        unit: the things counted.
        companions: the runs that belong to it.
    """

    stage: str
    output: str
    tally: Tally
    facts: dict[str, Any]
    seconds: float = 0.0
    resumed: bool = False
    unit: str = "documents"
    companions: list[Summary] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that `--json` prints: stage, in, out, dropped, seconds, and the stage's own facts."""
        return {
            **({"companions": [one.as_dict() for one in self.companions]} if self.companions else {}),
            **self.facts,
            "stage": self.stage,
            **self.tally.as_dict(),
            "seconds": round(self.seconds, 3),
            "resumed": self.resumed,
            "output": self.output,
        }

    def table(self, paint: Paint = PLAIN) -> str:
        """The closing table: in, out, dropped by reason."""
        done = "already done" if self.resumed else duration(self.seconds)
        dropped = sorted(self.tally.dropped.items(), key=lambda item: (-item[1], item[0]))
        rows = [
            (f"{self.unit} in", self.tally.read, ()),
            *([("added: further pieces", self.tally.added, ())] if self.tally.added else []),
            ("out", self.tally.kept, (GREEN,)),
            *((f"  dropped: {reason}", count, (DIM,)) for reason, count in dropped),
        ]
        lines = [f"{paint(self.stage, BOLD)}  {self.output}  {paint(f'({done})', DIM)}"]
        width = max(display_width(name) for name, *_ in rows)
        for name, count, codes in rows:
            share = f"{count / self.tally.read:7.1%}" if self.tally.read else ""
            lines.append("  " + paint(f"{padded(name, width)}  {count:>12,}  {share}", *codes))
        lines += [f"  {name.replace('_', ' ')}: {count:,}" for name, count in sorted(self.tally.notes.items())]
        for name, value in self.facts.items():
            shown = ""
            if isinstance(value, str):
                shown = value[:8] if DIGEST.fullmatch(value) else value
            elif isinstance(value, int | float):
                shown = f"{value:,}"
            elif isinstance(value, list) and all(isinstance(entry, str) for entry in value):
                shown = ", ".join(value)
            lines += [f"  {name.replace('_', ' ')}: {shown}"] if shown else []
        lines += [f"  {paint('note:', YELLOW)} {in_words(sentence)}" for sentence in self.tally.problems]
        return "\n".join([*lines, *(one.table(paint) for one in self.companions)])


def show(summary: Summary, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Print the closing table to standard error, and with `as_json` one JSON object to standard output."""
    stream = stream or sys.stderr
    print(summary.table(Paint.of(stream)), file=stream)
    if as_json:
        print(json.dumps(summary.as_dict(), ensure_ascii=False))


@dataclass(frozen=True)
class Findings:
    """Findings of a command that writes no documents.

    Attributes:
        text: for people, several lines.
        values: the same for JSON.
        exit_code: of the command; 1 where it could not find out all that was asked.
    """

    text: str
    values: dict[str, Any]
    exit_code: int = 0


def show_findings(found: Findings, *, as_json: bool) -> None:
    """Print to standard output, as text or as one JSON object."""
    print(json.dumps(found.values, ensure_ascii=False) if as_json else found.text)
