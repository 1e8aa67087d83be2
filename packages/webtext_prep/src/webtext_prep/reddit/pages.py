"""All submissions of one page as one row of a list of URLs: which URL stands for them, and what is known of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from webtext_prep.documents.document import Document, decode_document
from webtext_prep.reddit.rows import Submission, unescaped
from webtext_prep.urls.urls import clean_metadata


class Link(msgspec.Struct, array_like=True, gc=False):
    """What is kept of a submission: its fields, with texts as they were written.

    Attributes:
        key: the hash of its page's key, in hexadecimal digits.
        url: the page.
        score: votes for it less votes against it.
        subreddit: where it was submitted.
        title: what it was called there.
        id: of the submission; empty where it is not known.
        created: when, in seconds since 1970; 0 where it is not known.
    """

    key: str
    url: str
    score: int
    subreddit: str
    title: str
    id: str
    created: int


class Page(msgspec.Struct, omit_defaults=True, gc=False):
    """A row of the list: what is known of a page from its submissions. The fields are the keys of the row.

    Attributes:
        url: as the submission with the highest score has it.
        reddit_score: the sum of the scores of all its submissions.
        reddit_submissions: how many they are.
        reddit_title: of the submission with the highest score.
        reddit_subreddits: where it was submitted, that with the highest score first.
        reddit_id: of the submission with the highest score.
        reddit_first_submitted: when it was first submitted, such as `2005-06-23T18:43:53Z`.
    """

    url: str
    reddit_score: int
    reddit_submissions: int
    reddit_title: str = ""
    reddit_subreddits: tuple[str, ...] = ()
    reddit_id: str = ""
    reddit_first_submitted: datetime | None = None


_encoder = msgspec.json.Encoder()
encode_link = _encoder.encode
encode_pages = _encoder.encode_lines
"""Pages as lines of a URL list."""
decode_links = msgspec.json.Decoder(Link).decode_lines


def link_of(row: Submission, url: str, key: str = "") -> Link:
    """A submission of `url`, whose page has that key."""
    title = unescaped(row.title)
    if "@" in title:
        title = clean_metadata({"title": title})["title"]
    return Link(key, url, row.score, row.subreddit, title, row.id, row.created)


def best_of(links: Sequence[Link]) -> Link:
    """The one with the highest score, of those the earliest; nothing depends on their order."""
    return min(links, key=_rank)


def page_of(best: Link, links: Sequence[Link]) -> Page:
    """The page that was submitted so: with URL, title and id of the `best` submission, and what all of them tell."""
    if len(links) == 1:
        time = _time(best.created) if best.created else None
        return Page(best.url, best.score, 1, best.title, _names(best.subreddit), best.id, time)
    first = min((link.created for link in links if link.created), default=0)
    score, time = sum(link.score for link in links), _time(first) if first else None
    return Page(best.url, score, len(links), best.title, _subreddits(links), best.id, time)


@functools.lru_cache(maxsize=1 << 12)
def _names(subreddit: str) -> tuple[str, ...]:
    # Made once, not for each page: the garbage collector would look at all of them.
    return (subreddit,) if subreddit else ()


def document_of(page: Page) -> Document:
    """A page as a row of a URL list."""
    return decode_document(_encoder.encode(page))


def without_repeats(links: Sequence[Link]) -> tuple[Sequence[Link], Sequence[Link]]:
    """`links` with each submission once, and the others: dumps overlap, and hold some rows twice.

    Of those with one id the highest score counts. Submissions without an id are different ones.
    """
    if len({link.id for link in links}) == len(links):
        return links, ()
    best: dict[str, Link] = {}
    for link in links:
        other = best.get(link.id)
        if link.id and (other is None or link.score > other.score):
            best[link.id] = link
    kept = [link for link in links if not link.id or best[link.id] is link]
    return kept, [link for link in links if link.id and best[link.id] is not link]


def _rank(link: Link) -> tuple[int, int, str, str, str]:
    return -link.score, link.created, link.id, link.url, link.title


def _subreddits(links: Sequence[Link]) -> tuple[str, ...]:
    """The subreddits, by the sum of scores there."""
    scores: dict[str, int] = {}
    for link in links:
        if link.subreddit:
            scores[link.subreddit] = scores.get(link.subreddit, 0) + link.score
    return tuple(sorted(scores, key=lambda name: (-scores[name], name)))


def _time(seconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
