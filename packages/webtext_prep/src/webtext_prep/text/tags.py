"""The tags of a page as a browser's tokenizer finds them, without a tree: its title, charset, links, comments.

A regular expression over the raw page would also find what stands in comments, scripts, attributes and pictures. Here
one reads on from tag to tag: what is in raw text (`<script>`, `<textarea>`...) or in a `<template>` is no tag, what is
in `<svg>` or `<math>` is none of HTML. Everything between what is asked for is passed over by one expression, so that
this costs some 5 ns a byte; linear in the page.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator
from typing import NamedTuple

_RAW = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes", "template")
_FOREIGN = ("svg", "math")
_OUT_OF_FOREIGN = ("body", "head", "meta")
"""Some of the tags that end a picture whose end tag is missing (HTML standard, 13.2.6.5)."""
_ATTRIBUTES = r"(?>(?:[\s/]*+[^\s/>][^\s/>=]*+(?>(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s>]*+))?))*)[\s/]*+"
_ATTRIBUTE = re.compile(r"([^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s>]*+)))?")
_COMMENT_END = re.compile(r"--!?>")


class Tag(NamedTuple):
    """A start tag or a comment.

    Attributes:
        name: in lower case; `!--` for a comment.
        inside: its attributes, as they are written, or the text of the comment.
        text: what stands in a `title`.
    """

    name: str
    inside: str
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
    known = rf"(?:{stop})(?=[\s/>])|/(?:svg|math)(?=[\s/>])"
    other = rf"(?>(?:[^<]++|<(?![a-z/!?])|<(?!!--|{known})(?:/?[a-z][^\s/>]*+{_ATTRIBUTES}>?|[!?/][^>]*+>?))*)"
    tag = rf"<(?:(!--)|(/?(?:{stop}))(?=[\s/>])({_ATTRIBUTES})>?)"
    return re.compile(other, re.IGNORECASE), re.compile(tag, re.IGNORECASE)


@functools.cache
def _end_of(name: str) -> re.Pattern[str]:
    return re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE)


def tags(page: str, *names: str) -> Iterator[Tag]:
    """The start tags of such names, and comments if `!--` is one, in the order of the page.

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
                yield Tag(name, page[at : ending.start()])
            at = ending.end()
        elif name.startswith("/"):
            depth = max(0, depth - 1)
        elif name in _FOREIGN:
            depth += not found[3].endswith("/")
        elif not depth or name in _OUT_OF_FOREIGN:
            depth = 0
            text, start = "", at
            if name in _RAW:  # what does not end, ends with the page, but of a title only what is before the next tag
                ending = _end_of(name).search(page, at)
                at = ending.start() if ending else len(page)
                if name == "title":
                    text = page[start:at] if ending else page[start:].partition("<")[0]
            if name in names:
                yield Tag(name, found[3], text)
