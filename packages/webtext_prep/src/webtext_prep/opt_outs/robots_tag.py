"""`noai`, as `X-Robots-Tag` and `<meta name="robots">`: DeviantArt's directive of 11 November 2022.

Where such tags stand, and whom they are for, is as in Google's "Robots meta tag, data-nosnippet, and X-Robots-Tag
specifications": a name in front of a header's directives, or in place of `robots`, is the crawler that they are for.
Those for all crawlers, for ours and for training crawlers count. `noimageai` is about pictures, and says nothing of a
text. No tag allows anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from webtext_prep.opt_outs.training_crawlers import crawlers
from webtext_prep.opt_outs.wishes import NO_AI, Wish, shortened

HEADER = "x-robots-tag"
META = "robots"
DIRECTIVE = "noai"
_WITH_VALUES = frozenset({"max-snippet", "max-image-preview", "max-video-preview", "unavailable_after"})
_TIME = re.compile(r"\d:\d\d")
"""In the value of `unavailable_after`, in which a comma may stand, too."""


def _is_for_us(name: str, agent: str) -> bool:
    name = name.strip().lower()
    return name in (META, "*", agent.lower()) or name in crawlers()


def read_header(values: Iterable[str], agent: str, url: str) -> Wish | None:
    """What the header of a page says; a name holds up to the end of its line, or to the next one."""
    for value in values:
        is_for_us = True
        for part in value.split(","):
            before, colon, after = part.partition(":")
            if colon and before.strip().lower() not in _WITH_VALUES and not _TIME.search(part):
                is_for_us, part = _is_for_us(before, agent), after
            if is_for_us and part.strip().lower() == DIRECTIVE:
                return Wish(NO_AI, False, shortened(f"X-Robots-Tag: {value}"), url)
    return None


def read_meta(tags: Iterable[tuple[str, str]], agent: str, url: str) -> Wish | None:
    """What the tags in a page say, each with its name and content."""
    for name, content in tags:
        if DIRECTIVE in (part.strip().lower() for part in content.split(",")) and _is_for_us(name, agent):
            return Wish(NO_AI, False, shortened(f'<meta name="{name}" content="{content}">'), url)
    return None
