"""The pages that are held out of training, by a hash of their URL.

It is of the URL alone, so that a page stays on its side whatever becomes of the corpus: more pages, a stricter filter,
another deduplication, other extraction of its text. With a larger share the pages of a smaller one are held out, too.
"""

from __future__ import annotations

import xxhash

from webtext_prep.urls.urls import url_key

HELD_OUT = "held_out"
"""The reason to drop a page that is held out; also the folder, or the end of the prefix, where it goes instead."""
_SEED = 0x68656C64


def is_held_out(url: str, share: float) -> bool:
    """Whether the page of a URL, or of a `Document.id`, is among the `share` (0 to 1) of all that are held out.

    >>> [is_held_out("http://example.com/a", share) for share in (0.0, 1.0)]
    [False, True]
    """
    if not share:
        return False
    return xxhash.xxh3_64_intdigest(url_key(url).encode("utf-8", "surrogatepass"), _SEED) < share * 2**64


def held_out_reason(url: str, share: float, *, is_only: bool = False) -> str:
    """Why a page is not written to an output that holds out a share, or holds only held-out pages; empty if it is."""
    if is_held_out(url, share) == is_only:
        return ""
    return f"not_{HELD_OUT}" if is_only else HELD_OUT
