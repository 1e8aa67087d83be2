"""The tags of a page as a browser's tokenizer finds them, without a tree: its title, charset, links, comments.

A regular expression over the raw page would also find what stands in comments, scripts, attributes and pictures. Here
one reads on from tag to tag: what is in raw text (`<script>`, `<textarea>`...) or in a `<template>` is no tag, what is
in `<svg>` or `<math>` is none of HTML. Everything between what is asked for is passed over by one expression, so that
this costs some 5 ns a byte; linear in the page.
"""

from __future__ import annotations

import ctypes
import functools
import html
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

_RAW = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes", "template")
_FOREIGN = ("svg", "math")
_OUT_OF_FOREIGN = ("body", "head", "meta")
"""Some of the tags that end a picture whose end tag is missing (HTML standard, 13.2.6.5)."""
_ATTRIBUTES = r"(?>(?:[\s/]*+[^\s/>][^\s/>=]*+(?>(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s>]*+))?))*)[\s/]*+"
_ATTRIBUTE = re.compile(r"([^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s>]*+)))?")
_COMMENT_END = re.compile(r"--!?>")
HEAD = 1 << 16
"""Characters of a page in which `head_tags` count wherever they stand; further on they do up to the end of the head."""
_SPELLED = re.compile(
    rb"&#(?:0*(?:4[357]|6[5-9]|[7-9]\d|1[01]\d|12[0-2])|x0*(?:2[bdf]|[46][1-9a-f]|[57][0-9a]))(?![0-9a-f])"
)
"""A reference that stands for a letter, or for a sign of `text/html`, `rsl+xml` or `http-equiv`."""
_UTF16 = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_strstr = ctypes.PyDLL(None).strstr
_strstr.argtypes, _strstr.restype = (ctypes.c_char_p, ctypes.c_char_p), ctypes.c_void_p


class Tag(NamedTuple):
    """A start tag, a comment, or the end of the head.

    Attributes:
        name: in lower case; `!--` for a comment.
        inside: its attributes, as they are written, or the text of the comment.
        start: behind which character of the page it begins, with its name.
        text: what stands in a `title` or a `script`.
    """

    name: str
    inside: str
    start: int
    text: str = ""

    def attributes(self) -> dict[str, str]:
        """The values by their names, in lower case; of two of a name the first, as in browsers."""
        found: dict[str, str] = {}
        for name, a, b, c in _ATTRIBUTE.findall(self.inside):
            found.setdefault(name.lower(), html.unescape(a or b or c))
        return found


@functools.cache
def _patterns(names: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What is passed over, and a tag or comment that is looked at."""
    stop = "|".join(dict.fromkeys([*names, *_RAW, *_FOREIGN, *_OUT_OF_FOREIGN]))
    known = rf"(?:{stop})(?=[\s/>])|/(?:svg|math|head)(?=[\s/>])"
    other = rf"(?>(?:[^<]++|<(?![a-z/!?])|<(?!!--|{known})(?:/?[a-z][^\s/>]*+{_ATTRIBUTES}>?|[!?/][^>]*+>?))*)"
    tag = rf"<(?:(!--)|(/?(?:{stop}))(?=[\s/>])({_ATTRIBUTES})>?)"
    return re.compile(other, re.IGNORECASE), re.compile(tag, re.IGNORECASE)


@functools.cache
def _end_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)


def tags(page: str, *names: str) -> Iterator[Tag]:
    """The start tags of such names, comments if `!--` is one, and the end of the head for `/head`, in their order.

    What stands in `noscript` is passed over if that is one of the names.

    >>> [tag.attributes() for tag in tags("<!-- <base href=a> --><base href='b' HREF=c>", "base")]
    [{'href': 'b'}]
    """
    other, tag = _patterns(tuple(name for name in names if name != "!--"))
    at, depth = 0, 0
    while (skipped := other.match(page, at)) and (found := tag.match(page, skipped.end())):
        at, name = found.end(), (found[1] or found[2]).lower()
        if name == "!--":
            # `<!-->` and `<!--->` are whole ones
            ending = _COMMENT_END.search(page, at - 2)
            if ending is None:
                return
            if name in names:
                yield Tag(name, page[at : ending.start()], found.start())
            at = ending.end()
        elif name == "/head":
            if name in names:
                yield Tag(name, "", found.start())
        elif name.startswith("/"):
            depth = max(0, depth - 1)
        elif name in _FOREIGN:
            depth += not found[3].endswith("/")
        elif not depth or name in _OUT_OF_FOREIGN:
            depth = 0
            text, start = "", at
            if (
                name in _RAW or name == "noscript"
            ):  # what does not end, ends with the page, but of a title only what is before the next tag
                ending = _end_of(name).search(page, at)
                at = ending.start() if ending else len(page)
                if name in ("title", "script"):
                    text = page[start:at] if ending else page[start:].partition("<")[0]
            if name in names:
                yield Tag(name, found[3], found.start(), text)


def utf8_of(body: bytes) -> bytes:
    """A page in UTF-16 that says so as its UTF-8 would be; any other as it is."""
    encoding = next((name for mark, name in _UTF16 if body.startswith(mark)), None)
    return body if encoding is None else body.decode(encoding, "replace").encode("utf-8", "replace")


def holds(data: bytes, word: bytes) -> bool:
    """Whether `word` is in `data`, by the C library: some 25 bytes of a page a nanosecond.

    That is ten times as many as CPython's `in`, `find` or `re`, and five times as many as C's `memmem`, which would
    need no look at zeros.

    >>> holds(b"no\\0noai", b"noai"), holds(b"noa", b"noai")
    (True, False)
    """
    return _strstr(data, word) is not None or (b"\0" in data and word in data)


def folded(data: bytes) -> bytes:
    """`data` with letters in lower case, and some signs as others: three times as fast as `lower`.

    >>> folded(b"<Label>[]")
    b'<label>{}'
    """
    return (np.frombuffer(data, np.uint8) | np.uint8(0x20)).tobytes()


def text_with(words: Iterable[bytes], body: bytes) -> str:
    """A page, its bytes beyond ASCII read as Latin-1; nothing of one that holds none of some words, in lower case.

    One in UTF-16 is read as its UTF-8 would be. Words may be spelled with references in its first HEAD characters.
    """
    body = utf8_of(body)
    found = folded(body)  # in lower case it is decided where there is one
    has_word = any(holds(found, word) and word in body.lower() for word in words)
    # What looks like a reference in the folded page is looked at again.
    has_word = has_word or (_SPELLED.search(found, 0, HEAD) and _SPELLED.search(body[:HEAD].lower())) is not None
    return body.decode("latin-1") if has_word else ""


def meta_tags(text: str, *, without_noscript: bool = False) -> list[Tag]:
    """The `meta` and `base` tags of a page.

    >>> [tag.attributes() for tag in meta_tags('<META content="noai" name=Robots><!-- <meta name=x> -->')]
    [{'content': 'noai', 'name': 'Robots'}]
    """
    found = head_tags(text, "meta", "base", *["noscript"] * without_noscript)
    return [tag for tag in found if tag.name != "noscript"]


def head_tags(text: str, *names: str) -> list[Tag]:
    """The tags of such names in a page's head, as `tags` finds them, and in its first HEAD characters."""
    # Most heads end early: the rest of such a page is not read.
    for part in (text[: HEAD + 4096], text):
        found, is_in_head = list[Tag](), True
        for tag in tags(part, *names, "body", "/head"):
            is_in_head = is_in_head and tag.name not in ("body", "/head")
            if not is_in_head and tag.start >= HEAD:
                break
            if tag.name in names:
                found.append(tag)
        if not is_in_head or len(part) == len(text):
            break
    return found
