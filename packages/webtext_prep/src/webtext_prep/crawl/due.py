"""What is left to do for a URL, as its row says: fetch it, fetch it once more, ask an archive for it, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webtext_prep.crawl.settings import FetchSettings
from webtext_prep.extraction.outcomes import is_gone, is_retryable

ANSWERS = "archives"
"""Under it, the row of a URL that is gone says what the archives answered that did not have it."""
PASSES = "passes"
"""Under it, a row says how many passes over the lists have tried its URL."""

Row = Mapping[str, Any]


def is_tried_again(row: Row, settings: FetchSettings) -> bool:
    """Whether the page itself is asked for once more in a later pass."""
    return is_retryable(row["outcome"]) and row.get(PASSES, 0) < settings.passes


def next_archive(row: Row, settings: FetchSettings, after: str = "") -> str | None:
    """The archive to ask for a URL with such a row, after the one that was asked; None if there is none."""
    if not _is_gone(row, settings):
        return None
    answers = row.get(ANSWERS, {})
    for name in settings.archive[settings.archive.index(after) + 1 if after else 0 :]:
        answer = answers.get(name)
        if answer is None or (is_retryable(answer) and row.get(PASSES, 0) < settings.passes):
            return name
    return None


def archives_asked(row: Row, settings: FetchSettings) -> str | None:
    """The archives that were asked for a page that is gone, joined by commas; None for any other row."""
    return ",".join(sorted(row.get(ANSWERS, {}))) if _is_gone(row, settings) else None


def may_end_otherwise(row: Row, settings: FetchSettings) -> bool:
    """Whether a URL may end in another way in a later pass, the live page or what an archive has of it."""
    answers = row.get(ANSWERS, {}) if _is_gone(row, settings) else {}
    return is_retryable(row["outcome"]) or any(is_retryable(answers.get(name, "")) for name in settings.archive)


def _is_gone(row: Row, settings: FetchSettings) -> bool:
    return is_gone(row["outcome"], is_last=row.get(PASSES, 0) >= settings.passes)
