"""Pages that came with status 200 and say that there is none: soft 404s, and pages of parked domains.

The rules are few, and each asks for two signs: what the page calls itself, and that there is hardly any text. An
article about error 404, or about a domain that is for sale, has text, and stays.
"""

from __future__ import annotations

import re

from webtext_prep.extraction.outcomes import PageOutcome
from webtext_prep.urls.urls import domain_of

FEW_CHARACTERS = 600
"""Of main text: some hundred words. A text with more is a page, whatever its title says."""
HEADING_CHARACTERS = 80
"""Of the first line of a text, if that is to be a heading."""
TITLE_CHARACTERS = 300
"""Of a title that are looked at."""

_BETWEEN = re.compile(r"\s*[|\u2013\u2014\u00b7\u00bb\u00ab:/]\s*|\s+-+\s+|[.!]\s+")
_EDGES = " \t.!?,;:'\"()[]\u2026\u201c\u201d\u3002\uff01"
_NOT_FOUND = re.compile(
    r"""
    (?:http\s*)?(?:error|status|code|fehler|erreur|errore|erro|\u043e\u0448\u0438\u0431\u043a\u0430)?[ #:-]*404
        (?:[ :,-]*(?:error|http\s+error|(?:page\s+|file\s+)?not\s+found|page))?
    | (?:error\s+)?(?:page|file|document|url|article|resource|content|site)
        \s+(?:was\s+|is\s+|could\s+)?not\s+(?:be\s+)?found
    | not\s+found
    | (?:the|this|that)\s+(?:requested\s+)?(?:page|url|article|file|document)
        (?:\s+(?:you\s+requested|you(?:'re|\s+are|\s+were)\s+looking\s+for))?
        \s+(?:could\s+not\s+be\s+found|couldn't\s+be\s+found|was\s+not\s+found|cannot\s+be\s+found|can't\s+be\s+found
            |does\s+not\s+exist|doesn't\s+exist|no\s+longer\s+exists|is\s+no\s+longer\s+available|has\s+been\s+removed)
    | (?:sorry|oops|uh-oh)[, ]+(?:but\s+)?(?:we\s+)?(?:can't|cannot|couldn't|could\s+not)
        \s+find\s+(?:that|this|the)\s+page
    | page\s+(?:no\s+longer\s+(?:exists|available)|does\s+not\s+exist|doesn't\s+exist|unavailable)
    | seite\s+(?:wurde\s+)?nicht\s+gefunden | page\s+(?:introuvable|non\s+trouv\u00e9e)
    | p\u00e1gina\s+n(?:o|\u00e3o)\s+encontrada | pagina\s+(?:non\s+trovata|niet\s+gevonden)
    | \u0441\u0442\u0440\u0430\u043d\u0438\u0446\u0430\s+\u043d\u0435\s+\u043d\u0430\u0439\u0434\u0435\u043d\u0430
    | \u9875\u9762\u4e0d\u5b58\u5728 | \u30da\u30fc\u30b8\u304c\u898b\u3064\u304b\u308a\u307e\u305b\u3093
    """,
    re.VERBOSE,
).fullmatch
"""What a part of a title says, or a heading."""
_FOR_SALE = re.compile(
    r"""
    (?:the\s+|this\s+)?(?:domain(?:\s+name)?|website)\s+(?:[\w.-]+\s+)?(?:is|may\s+be)\s+for\s+sale
    | [\w-]+(?:\.[\w-]+)+\s+(?:is|may\s+be)\s+for\s+sale
    | [\w-]+(?:\.[\w-]+)+\s+-?\s*(?:domain\s+)?(?:for\s+sale|parked|premium\s+domain)
    | (?:premium\s+)?domain(?:\s+name)?\s+(?:for\s+sale|parked)
    | (?:this|the)\s+(?:web\s*page|website|domain(?:\s+name)?)\s+is\s+parked.*
    | parked\s+(?:domain|page)(?:\s+name)?
    | buy\s+this\s+domain(?:\s+name)?
    """,
    re.VERBOSE,
).fullmatch
HEAD_BYTES = 1 << 17
"""Of HTML in which such a service is looked for: a page of a parked domain has some ten kilobytes."""
_PARKING = (
    b"sedoparking.com", b"parkingcrew.net", b"bodis.com/", b"parklogic.com", b"skenzo.com", b"/parking-lander/",
    b"data-adblockkey=", b"hugedomains.com/domain_profile", b"afternic.com/forsale", b"dan.com/buy-domain",
    b"parking.namesilo.com", b"domainparking.ru", b"parked-content.godaddy.com",
)  # fmt: skip
"""Of services that show advertisements, or an offer, in place of a site."""
_SELLERS = frozenset({
    "afternic.com", "bodis.com", "brandbucket.com", "dan.com", "domainmarket.com", "hugedomains.com", "parkingcrew.net",
    "parklogic.com", "sedo.com", "sedoparking.com", "skenzo.com", "undeveloped.com",
})  # fmt: skip
"""Where parked domains redirect to."""


def _parts(title: str) -> list[str]:
    """The whole of a title, and what stands between its separators: one is often the name of the site."""
    plain = " ".join(title.lower().replace("\u2019", "'").replace("(", "").replace(")", "").split())
    return [part.strip(_EDGES) for part in (plain, *_BETWEEN.split(plain))]


def gone_outcome(url: str, final_url: str | None, title: str, text: str, html: bytes) -> str | None:
    """`soft_404` or `parked` if a page says that there is none, else None.

    Args:
        url: by which it was asked for.
        final_url: where redirects led, or None.
        title: of the page.
        text: its main text, as extracted.
        html: the page.
    """
    if final_url is not None and (seller := domain_of(final_url)) in _SELLERS and seller != domain_of(url):
        return PageOutcome.PARKED
    if len(text) > FEW_CHARACTERS:
        return None
    heading = text.partition("\n")[0]
    said = _parts(title[:TITLE_CHARACTERS]) + (_parts(heading) if len(heading) <= HEADING_CHARACTERS else [])
    if any(map(_NOT_FOUND, said)):
        return PageOutcome.SOFT_404
    head = html[:HEAD_BYTES].lower()
    if any(map(_FOR_SALE, said)) or any(service in head for service in _PARKING):
        return PageOutcome.PARKED
    return None
