"""Dumps of Reddit submissions and their rows, in any schema: Pushshift's old one, its v2, or Arctic Shift's.

Only the fields that are wanted are decoded, 1.4 us for a row of 1.5 kB; a dictionary of all of them takes 4 times as
long, `json.loads` 8 times. A row that does not have the usual types (no score, a number as text, null) is read once
more, field by field. What the schemas hold follows the files themselves and the schemas that Arctic Shift publishes of
every month (github.com/ArthurHeitmann/arctic_shift, `schemas/RS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from command_kit import parse_json
from webtext_prep.documents.document import without_surrogates
from webtext_prep.documents.formats.compression import bare_name, compression_of, read_placed_chunks
from webtext_prep.documents.formats.lines import line_blocks, read_range, without_start
from webtext_prep.documents.records.base import Unreadable
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import without_any_credentials

BLOCK_BYTES = 1 << 20
"""Bytes of lines that are parsed between two looks at the clock."""
SUFFIXES = (".jsonl", ".ndjson", ".json")
KINDS = (
    "dumps of Reddit submissions, not comments (RS_2015-01.zst, news_submissions.zst, .jsonl; .gz, .xz, .bz2, .zst or "
    "plain)"
)


def is_dump(path: Location) -> bool:
    """Whether the name may be that of a dump of submissions: comments (RC_*, *_comments) are left out.

    Dumps have no suffix but that of their compression, or that of JSON lines; an uncompressed one without any begins
    with `RS_`.
    """
    name = bare_name(path).lower()
    stem, dot, suffix = name.rpartition(".")
    stem = stem if dot else name
    if stem.startswith("rc_") or stem.endswith("_comments"):
        return False
    if dot:
        return f".{suffix}" in SUFFIXES
    return bool(compression_of(path)) or name.startswith("rs_")


def read_blocks(location: Location, span: tuple[int, int] | None, skip: int) -> Iterator[tuple[bytes, int]]:
    """The lines of a dump in blocks of about 1 MiB, each with how many bytes of the file were read by then.

    Args:
        location: the dump.
        span: read only the lines that begin between these two places; of a file that `has_ranges`.
        skip: bytes of text to leave out, which earlier blocks had.

    Raises InputError as `read_placed_chunks` does.
    """
    place = 0

    def chunks() -> Iterator[bytes]:
        nonlocal place
        if span is None:
            for chunk, place in read_placed_chunks(location):  # noqa: B007 - the generator around this one reads it
                yield chunk
        else:
            for chunk in read_range(location, *span):
                place += len(chunk)
                yield chunk

    for block in line_blocks(location, without_start(chunks(), skip), BLOCK_BYTES):
        yield block, place


REDDIT = "https://www.reddit.com"
_WEB = ("http://", "https://")


class Submission(msgspec.Struct, gc=False):
    """The fields of a submission that are used, as the dumps call them; texts are escaped as there."""

    url: str
    score: int
    over_18: bool
    is_self: bool
    id: str = ""
    title: str = ""
    subreddit: str = ""
    created_utc: int | float | str = 0
    url_overridden_by_dest: str | None = None
    removed_by_category: str | None = None
    promoted: bool | None = None

    @property
    def created(self) -> int:
        """Seconds since 1970, UTC; 0 where it is not known."""
        try:
            return int(self.created_utc)
        except (ValueError, OverflowError):
            return _whole(self.created_utc) or 0


_decode = msgspec.json.Decoder(Submission).decode


def read_rows(block: bytes) -> Sequence[Submission | Unreadable | None]:
    """For each line of `block` its row, or why it is none; None for an empty line."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        return [_decode(line) for line in lines]
    except (msgspec.DecodeError, UnicodeError):  # an odd row among some hundreds
        return [_read_row(line) for line in lines]


def _read_row(line: bytes) -> Submission | Unreadable | None:
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeError):
        return read_any_row(line)


def read_any_row(line: bytes) -> Submission | Unreadable | None:
    """The row in one line, whose numbers may be texts, and whose fields may be absent or null; None if it is empty."""
    if not line.strip():
        return None
    try:
        row = parse_json(line)
    except ValueError:
        return Unreadable("not valid JSON")
    if not isinstance(row, dict):
        return Unreadable("not a JSON object")
    if "url" not in row or not {"title", "is_self", "over_18", "num_comments"} & row.keys():
        # A comment may have a URL in some dumps, but has no title.
        return Unreadable("not a submission", f"its keys are {', '.join(sorted(row)[:8])}")
    score = _whole(row.get("score"))
    if score is None:
        score = (_whole(row.get("ups")) or 0) - (_whole(row.get("downs")) or 0)
    found = {
        "url": _text(row["url"]),
        "score": score,
        "over_18": _truth(row.get("over_18")),
        "is_self": _truth(row.get("is_self")) or _text(row.get("domain")).startswith("self."),
        **{name: _text(row.get(name)) for name in ("id", "title", "subreddit")},
        "created_utc": _whole(row.get("created_utc")) or 0,
        **{name: _text(row.get(name)) or None for name in ("url_overridden_by_dest", "removed_by_category")},
        "promoted": _truth(row.get("promoted")) or None,
    }
    # Some dumps hold halves of characters.
    return msgspec.convert(without_surrogates(found), Submission)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None or isinstance(value, dict | list) else str(value)


def _whole(value: Any) -> int | None:
    """A number that may be given as a text, without its fraction."""
    try:
        return int(float(value)) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _truth(value: Any) -> bool:
    return value.lower() in ("true", "1") if isinstance(value, str) else bool(value)


def unescaped(text: str) -> str:
    """A text of a dump as it was written: Reddit's interface escapes `&`, `<` and `>`, and nothing else.

    >>> unescaped("http://example.org/?a=1&amp;b=2")
    'http://example.org/?a=1&b=2'
    """
    if "&" not in text:
        return text
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def url_of(row: Submission) -> str:
    """The URL that a submission links to, as it was submitted, without user name and password; empty if it has none.

    Links into Reddit are relative in some dumps; here they are whole.
    """
    url = row.url
    if not url.startswith(_WEB):
        url = url.strip()
        if url.startswith("/") and not url.startswith("//"):
            other = row.url_overridden_by_dest or ""
            url = other if other.startswith(_WEB) else REDDIT + url
    url = unescaped(url).strip()
    return without_any_credentials(url) if "@" in url else url


def link_or_own_url(row: Submission) -> str:
    """What a submission links to, or its own page on Reddit if it links to nothing."""
    return url_of(row) or f"{REDDIT}/comments/{row.id}"
