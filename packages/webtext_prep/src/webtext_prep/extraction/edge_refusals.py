"""Refusals at the edge of the network: answers that a shield in front of a site gives in its place.

An answer says so by a header of the shield: Cloudflare's `cf-mitigated` (its documentation, "Detect a challenge page
response"), Vercel's `x-vercel-mitigated`, AWS WAF's `x-amzn-waf-action` ("How the challenge and CAPTCHA actions
behave"), DataDome's `x-datadome` beside a status that refuses; or by status 402, pay per crawl, whose price is in
`crawler-price`.

A challenge that came as a page is told by two signs, as in `gone_pages.py`: hardly any text, and either what only a
challenge has in its HTML, or a title of one beside words on browsers and people. What shields put into each page that
they let through (Cloudflare's `scripts/jsd`, Imperva's `SWJIYLWA`, tags of DataDome and HUMAN) is no sign; and a page
about them has text.
"""

from __future__ import annotations

import re
from collections.abc import Container

from webtext_prep.extraction.gone_pages import FEW_CHARACTERS
from webtext_prep.extraction.outcomes import PageOutcome

PRICE = "crawler-price"
HEADERS = ("cf-mitigated", "x-vercel-mitigated", "x-amzn-waf-action")
REFUSING = frozenset({401, 403, 405, 429})
HEAD_BYTES = 1 << 16
"""Of HTML that are looked at: challenges have some ten kilobytes."""
_WORDS = (
    *(b"_cf_chl_opt", b"/cdn-cgi/challenge-platform/h/", b"cf-error-details", b"challenge-error-text", b"incapsula"),
    *(b"gokuprops", b"awswafintegration", b"captcha-delivery.com", b"px-captcha", b"captcha.px-", b"cp_challenge"),
    *(b"sec-if-cpt", b"errors.edgesuite.net", b".within.website", b"sucuri_cloudproxy_js", b"check.ddos-guard.net"),
)
"""Each match of the next expression has one of them; most pages have none."""
_ONLY_IN_CHALLENGES = re.compile(
    rb"""
    _cf_chl_opt | /cdn-cgi/challenge-platform/h/ | id=["']?cf-error-details | id=["']?challenge-error-text  # Cloudflare
    | _incapsula_resource\?[^"'<>]{0,500}incident_id | incapsula\ incident\ id  # Imperva
    | window\.gokuprops | awswafintegration\.(?:gettoken|forcerefresh)  # AWS WAF
    | (?:geo|ct)\.captcha-delivery\.com  # DataDome
    | id=["']?px-captcha | captcha\.px-(?:cdn|cloud)\.net  # HUMAN
    | /_sec/cp_challenge/ | id=["']?sec-if-cpt-container | errors\.edgesuite\.net  # Akamai
    | /\.within\.website/x/cmd/anubis | sucuri_cloudproxy_js | check\.ddos-guard\.net
    """,
    re.VERBOSE,
).search
_TITLE = re.compile(
    r"""
    just\ a\ moment | attention\ required! | please\ wait | one\ moment,?\ please | checking\ your\ browser
    | ddos-guard | vercel\ security\ checkpoint | security\ (?:check|checkpoint|verification) | human\ verification
    | (?:please\ )?verif(?:y|ying)\ (?:that\ )?you(?:\ are|'re)\ (?:a\ )?human | are\ you\ (?:a\ (?:robot|human)|human)
    | making\ sure\ you(?:'re|\ are)\ not\ a\ bot | access\ to\ this\ page\ has\ been\ denied
    | pardon\ our\ interruption | bot\ (?:verification|challenge) | captcha(?:\ challenge)?
    """,
    re.VERBOSE,
).match
_ASKS = re.compile(
    r"javascript|cookies|human|robot|\bbots?\b|captcha|browser|security|ray id|unusual (?:activity|traffic)"
)


def refused_outcome(status: int, headers: Container[str]) -> str | None:
    """The outcome of an answer that a shield gave, or that asks for a payment; None if it is neither.

    `headers` holds the names of its headers: in lower case, or whatever their case, as those of aiohttp do.

    >>> refused_outcome(403, {"cf-mitigated": "challenge"}), refused_outcome(402, {}), refused_outcome(403, {})
    ('refused_by_edge', 'payment_required', None)
    """
    if status == 402:
        return PageOutcome.PAYMENT_REQUIRED
    is_refused = any(name in headers for name in HEADERS) or (status in REFUSING and "x-datadome" in headers)
    return PageOutcome.REFUSED_BY_EDGE if is_refused else None


def is_challenge(title: str, text: str, html: bytes) -> bool:
    """Whether a page asks who looks at it to prove to be human, or to wait for that.

    Args:
        title: of the page.
        text: its main text, as extracted.
        html: the page.
    """
    if len(text) > FEW_CHARACTERS:
        return False
    head = html[:HEAD_BYTES].lower()
    if any(word in head for word in _WORDS) and _ONLY_IN_CHALLENGES(head):
        return True
    said = " ".join(title.replace("’", "'").lower().split())
    return _TITLE(said) is not None and _ASKS.search(text.lower() or head.decode("latin-1")) is not None
