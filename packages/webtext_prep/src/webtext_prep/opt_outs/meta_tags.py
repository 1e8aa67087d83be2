"""The `<meta>` tags of a page, found without parsing it: only pages with a word of a signal are looked at.

What stands in comments, scripts and the like is no tag. Linear in the bytes that are looked at: what does not end, ends
with them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

HEAD = 1 << 16
"""Characters of a page in which tags count wherever they stand; further on they do up to the end of the head."""
MAX_TAG = 4096  # characters; a longer tag is passed over
_WORDS = (b"noai", b"tdm-reservation")
_BOMS = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_BEGIN = re.compile(
    r"<(?:!--|(meta|base|noscript|script|style|title|textarea|template|xmp|iframe|body|/head)(?=[\s/>]))", re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"([^\s\"'>/=]++)(?>(?:\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'>]++)))?)")
_INSIDE = re.compile(r"(?>(?:=\s*+(?:\"[^\"]*+\"|'[^']*+')|[^>])*)")


def meta_tags(body: bytes) -> list[tuple[str, str]]:
    """The name, in lower case, and the content of each tag of a page in which a signal may stand; else none.

    >>> meta_tags(b'<META content="noai" name=Robots><!-- <meta name="robots" content="x"> -->')
    [('robots', 'noai')]
    """
    return [(tag["name"].strip().lower(), tag.get("content", "")) for tag in tags_of(body, _WORDS) if tag.get("name")]


def tags_of(body: bytes, words: Iterable[bytes], *, without_noscript: bool = False) -> list[dict[str, str]]:
    """The attributes of the `meta` and `base` tags of a page; none if it holds none of some words, in lower case.

    Each has its element's name under "". Bytes beyond ASCII are read as Latin-1.
    """
    encoding = next((name for mark, name in _BOMS if body.startswith(mark)), None)
    if encoding is not None:
        body = body.decode(encoding, "replace").encode("utf-8", "replace")
    lower = body.lower()
    # From the end: CPython's search forwards for a few letters takes twice as long.
    if not any(lower.rfind(word) >= 0 for word in words):
        return []
    return list(_tags(body.decode("latin-1"), {"noscript"} if without_noscript else set()))


def _tags(text: str, without: set[str]) -> Iterator[dict[str, str]]:
    at, is_in_head = 0, True
    while (found := _BEGIN.search(text, at)) is not None and (is_in_head or found.start() < HEAD):
        name, at = (found[1] or "").lower(), found.end()
        if name in ("/head", "body"):
            is_in_head = False
        elif name in ("meta", "base"):
            inside = _INSIDE.match(text, at, at + 2 * MAX_TAG)
            end = at if inside is None else inside.end()
            if end - at <= MAX_TAG:
                values = _ATTRIBUTE.findall(text, at, end)
                yield {key.lower(): html.unescape(a or b or c) for key, a, b, c in reversed(values)} | {"": name}
            at = end
        elif name != "noscript" or name in without:
            # HTML ends a comment at `--!>`, too, and `<!-->` and `<!--->` are whole ones.
            end_of = re.compile(rf"</{name}" if name else "--!?>", re.IGNORECASE)
            closing = end_of.search(text, at if name else at - 2)
            if closing is None:
                return
            at = closing.end()
