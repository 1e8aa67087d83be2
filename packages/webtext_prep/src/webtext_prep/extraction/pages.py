"""One page to its outcome row and its document, from any source: a download, a web archive, a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from webtext_prep.documents.document import Document
from webtext_prep.extraction.edge_refusals import is_challenge
from webtext_prep.extraction.gone_pages import gone_outcome
from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.extraction.processes.pool import ExtractorPool
from webtext_prep.opt_outs import decisions
from webtext_prep.opt_outs.decisions import KEYS, NOTHING, Decision
from webtext_prep.text.provenance_marks import has_credentials, without_marks
from webtext_prep.urls.urls import domain_of

CAPTURE = ("archive", "captured_at")
"""The metadata of a page that a web archive had: which one, and the time of the capture."""
MARKS_REMOVED = "marks_removed"
"""Under it a row says how many marks of where a text comes from it had."""
_OF_TEXT = ("title", "kind", "kind_probability", "text_share", "domain", "final_url", "content_credentials")
PAGE_METADATA = (*_OF_TEXT, *CAPTURE, *KEYS)
"""The metadata that a document has from its page; all other comes from the list that named it."""


@dataclass(frozen=True, slots=True)
class Page:
    """The bytes of a page and what its source says of them.

    Attributes:
        url: the URL by which it was asked for, which its document keeps.
        body: its bytes, decompressed.
        charset: as an HTTP header says, or None.
        is_html: whether it is HTML, or else plain text.
        final_url: where redirects led, or None if there were none.
        status: the HTTP status, or None where the source does not know it.
        headers: of its answer, as far as they are known.
    """

    url: str
    body: bytes
    charset: str | None = None
    is_html: bool = True
    final_url: str | None = None
    status: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


def outcome_row(url: str, outcome: str, *, status: int | None, final_url: str | None) -> dict[str, Any]:
    """The row of a URL as it begins, whether or not there is a page."""
    known = {"url": url, "outcome": str(outcome), "status": status, "final_url": final_url}
    return {name: value for name, value in known.items() if value is not None}


def count(row: Mapping[str, Any], notes: Counter[str]) -> None:
    """Count what the owner of a page says, as a row of the outcomes has it, and the marks in its text."""
    if MARKS_REMOVED in row:
        notes[MARKS_REMOVED] += row[MARKS_REMOVED]
    decisions.count(row, notes)


async def make_row(
    page: Page, pool: ExtractorPool, decision: Decision = NOTHING
) -> tuple[dict[str, Any], Document | None]:
    """The outcome row of a page, and its document if there is text; both with what its owner says of training."""
    address = page.url if page.final_url is None else page.final_url
    parsed = await pool.extract(page.body, address, page.charset, is_html=page.is_html)
    outcome, (text, marks) = parsed.outcome, without_marks(parsed.text)
    if page.is_html and outcome in (PageOutcome.OK, PageOutcome.EMPTY, PageOutcome.OTHER_KIND):
        outcome = gone_outcome(page.url, page.final_url, parsed.title, text, page.body) or outcome
        if is_challenge(parsed.title, text, page.body):
            outcome = PageOutcome.CHALLENGE
    row = outcome_row(page.url, outcome, status=page.status, final_url=page.final_url)
    row |= {"bytes": len(page.body), **decision.row} | ({MARKS_REMOVED: marks} if marks else {})
    parts = {"kind": parsed.kind, "kind_probability": parsed.kind_probability, "detail": parsed.detail}
    row |= {name: value for name, value in parts.items() if value}
    if outcome != PageOutcome.OK:
        return row, None
    # A file has no domain.
    said = {
        "title": parsed.title,
        "kind": parsed.kind,
        "kind_probability": parsed.kind_probability,
        "text_share": parsed.text_share,
        "domain": domain_of(address),
        "final_url": page.final_url,
        "content_credentials": has_credentials(parsed.text, page.body),
    }
    known = {name: value for name, value in said.items() if value}
    return row, Document(page.url, text, known | decision.metadata)
