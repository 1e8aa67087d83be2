"""What the names of an element say: those of its classes, its id, and what property of an item it is.

A page has some 250 different ones, few of which any page before had: one pass of compiled code looks for all hints in
one microsecond, where regular expressions took forty.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from webtext_prep.extraction.html.code_text import CODE
from webtext_prep.extraction.html.formulas import FORMULAS
from webtext_prep.extraction.html.page_tree import may_hide
from webtext_prep.extraction.learned.page_kernels import bits_in

HINTS = {
    "nav": r"nav|menu|breadcrumb|crumb|toc\b|table-of-contents|pagination|pager|paging|skip",
    "side": r"sidebar|side-bar|aside|widget|rail|secondary|left-?col|right-?col",
    "foot": r"foot|copyright|legal|colophon|bottom",
    "head": r"header|masthead|topbar|top-bar|banner|hero|site-?title|logo|branding",
    "related": r"related|recommend|similar|more-|also|popular|trending|latest|recent|suggest|next-?prev|upsell"
    r"|cross-?sell|you-may",
    "social": r"share|social|follow|facebook|twitter|tweet|whatsapp|pinterest|linkedin|instagram",
    "promo": r"promo|advert|\bads?\b|\bad-|-ad\b|sponsor|banner|cta|call-to|newsletter|subscri|signup|sign-up|optin"
    r"|donat",
    "pop": r"cookie|consent|gdpr|modal|popup|overlay|dialog|toast|drawer|offcanvas|tooltip|lightbox|hidden|sr-only"
    r"|visually|screen-reader|d-none|hide\b|collapse",
    "comment": r"comment|respond|disqus|discuss",
    "reply": r"reply|replies|answer|thread|topic|message|forum|posts?\b|postbody|post-?text|post-?content|post_?body"
    r"|bbcode|cooked",
    "user": r"user|profile|avatar|author|byline|member|signature|poster|badge|bio|reputation|karma",
    "meta": r"meta|date|time|tag|categor|label|published|posted|info|stats|views|count|vote|score|like|rating|stars",
    "content": r"content|article|entry|story|body|text|prose|markdown|rich|rte|wysiwyg|editor|main|single|copy"
    r"|description|summary|excerpt|desc\b",
    "product": r"product|pdp|item|sku|price|spec|feature|detail|attribute|option|variant|gallery|buy",
    "cart": r"cart|checkout|wishlist|basket|add-to|quantity|compare|shipping|delivery|stock|login|log-in|signin|account"
    r"|search|filter|sort|facet|refine|select|form|input|field|dropdown",
    "card": r"card|grid|tile|list|result|collection|catalog|teaser|listing|row|col",
    "faq": r"faq|accordion|question|tab|toggle|panel|expand",
    "review": r"review|testimonial|rating|feedback|quote",
    "doc": r"doc|sphinx|rst|mkdocs|docusaurus|readme|api|highlight|code|prism|snippet|wiki|mw-|manual",
    "section": r"section|block|module|component|wrapper|container|row|layout|slide|carousel|swiper",
    "title": r"title|heading|headline|subhead|caption|lead|intro|dek|standfirst",
}
"""What names of classes, ids and item properties hint at, each a bit."""
HINT_BITS = {name: 1 << bit for bit, name in enumerate(HINTS)}
_ROLES = {
    "nav": "navigation menu menubar",
    "head": "banner",
    "foot": "contentinfo",
    "side": "complementary",
    "cart": "search",
    "pop": "dialog alertdialog",
    "content": "main article",
    "faq": "tablist",
}
ROLES = {role: hint for hint, roles in _ROLES.items() for role in roles.split()}
"""The hint of a `role` attribute."""
ALL_HINTS = (1 << len(HINTS)) - 1
ODD = 1 << len(HINTS)
"""The bit of names that may be those of a formula, of code or of its line numbers."""
HIDING = 2 * ODD
"""The bit of classes by which readers don't see an element."""
_MAY_HIDE = r"hidden|hide|sr-?only|sr_only|screen|invisible|assistive|show-for-sr|off-?screen|d-none"
"""What all classes for which `may_hide` holds have in them."""
_EDGE, _LETTER, _SIGN = "\0\x80\1"
"""What stands between a letter, a digit or `_` and other characters; any letter, and any sign, that is not of ASCII."""


def _words(pattern: str) -> Iterator[str]:
    """What a pattern of words finds: in small letters, with alternatives, `\\b`, and `?` behind one character."""
    for alternative in pattern.lower().split("|"):
        pieces = re.findall(r"(\\b|.)(\??)", alternative)
        choices = [(_EDGE if piece == r"\b" else piece, "")[: 1 + bool(mark)] for piece, mark in pieces]
        for choice in itertools.product(*choices):
            yield re.sub(r"(?<=\w)(?=[^\w\0])|(?<=[^\w\0])(?=\w)", _EDGE, "".join(choice))


def _automaton(patterns: Mapping[int, str]) -> tuple[Any, Any]:
    """(the state that follows each state, by byte; the bits of what has been read then) of Aho and Corasick (1975)."""
    bits_of_words: dict[str, int] = {}
    for bit, pattern in patterns.items():
        for word in _words(pattern):
            bits_of_words[word] = bits_of_words.get(word, 0) | bit
    begun = sorted({word[:end] for word in bits_of_words for end in range(len(word) + 1)}, key=len)
    states = {text: state for state, text in enumerate(begun)}
    moves, bits = np.zeros((len(begun), ord(_LETTER) + 1), np.int16), np.zeros(len(begun), np.int64)
    longer: dict[str, list[str]] = {text: [] for text in begun}
    for text in begun[1:]:
        longer[text[:-1]].append(text)
    for text, state in states.items():
        ends = next((text[at:] for at in range(1, len(text)) if text[at:] in states), "")
        if text:
            moves[state] = moves[states[ends]]
        bits[state] = bits_of_words.get(text, 0) | bits[states[ends]]
        for one in longer[text]:
            moves[state, ord(one[-1])] = states[one]
    return moves, bits


MOVES, BITS = _automaton(
    {HINT_BITS[name]: pattern for name, pattern in HINTS.items()}
    | {ODD: f"{FORMULAS.pattern}|{CODE.pattern}", HIDING: _MAY_HIDE}
)


@functools.lru_cache(maxsize=50_000)
def bits_of(names: str) -> int:
    """The bits of all that names of elements, with spaces between them, say; HIDING only holds for classes."""
    text = names.lower()
    if not text.isascii():
        text = "".join(one if one.isascii() else _LETTER if one.isalnum() else _SIGN for one in text)
    bits = bits_in(np.frombuffer(text.encode("latin-1"), np.uint8), MOVES, BITS) if text else 0
    return bits & ~HIDING if bits & HIDING and not may_hide(names) else bits
