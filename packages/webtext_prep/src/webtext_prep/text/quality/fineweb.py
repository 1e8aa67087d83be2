"""FineWeb's own rule: lines that end like sentences, are long enough, and do not repeat."""

from __future__ import annotations

from typing import ClassVar

from webtext_prep.text.quality.base import Rule, lines_of, repeated, share
from webtext_prep.text.quality.thresholds import FineWeb as Limits


class FineWeb(Rule):
    """Drop documents made of fragments: FineWeb (Penedo et al. 2024), section 3.6.

    Blank lines don't count. FineWeb applies it after Gopher's rules and part of C4's.
    Drops: few_lines_with_end_mark, short_lines, duplicate_line_characters.
    """

    name: ClassVar[str] = "fineweb"

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()

    def apply(self, text: str) -> tuple[str, str | None]:
        """The reason is the first of the three criteria that is not met."""
        limits, lines = self.limits, lines_of(text)
        ended = sum(line[-1] in limits.end_marks for line in lines)
        if share(ended, len(lines)) <= limits.min_lines_with_end_mark:
            return text, "few_lines_with_end_mark"
        short = sum(len(line) < limits.short_line for line in lines)
        if share(short, len(lines)) >= limits.max_short_lines:
            return text, "short_lines"
        if share(repeated(lines)[1], sum(map(len, lines))) >= limits.max_duplicate_line_characters:
            return text, "duplicate_line_characters"
        return text, None

    def measure(self, text: str) -> dict[str, float | str]:
        """The three shares, each with its limit."""
        limits, lines = self.limits, lines_of(text)
        ended = share(sum(line[-1] in limits.end_marks for line in lines), len(lines))
        short = share(sum(len(line) < limits.short_line for line in lines), len(lines))
        repeats = share(repeated(lines)[1], sum(map(len, lines)))
        return {
            "lines with end mark": f"{ended:.3f}, needs more than {limits.min_lines_with_end_mark:g}",
            "short lines": f"{short:.3f}, needs less than {limits.max_short_lines:g}",
            "characters in repeated lines": f"{repeats:.3f}, needs less than {limits.max_duplicate_line_characters:g}",
        }
