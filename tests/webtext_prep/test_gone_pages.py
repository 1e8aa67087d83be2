"""Soft 404s and parked domains: two signs each, so that no page with text is lost."""

import pytest

from webtext_prep.extraction.pages import FEW_CHARACTERS, gone_outcome

LONG = "Some text of an article that goes on. " * 20
assert len(LONG) > FEW_CHARACTERS


def judged(title="", text="", html=b"", url="http://example.org/a", final_url=None):
    return gone_outcome(url, final_url, title, text, html)


@pytest.mark.parametrize(
    "title",
    [
        "404", "404 Not Found", "Error 404 (Not Found)", "HTTP 404 - Page not found", "Example | Page Not Found",
        "Page not found \u2013 Example", "Page Not Found - The Example Blog", "Not Found", "Oops! 404",
        "The page you requested could not be found", "Sorry, we can\u2019t find that page", "This page doesn't exist",
        "Seite nicht gefunden", "Page introuvable", "P\u00e1gina no encontrada | Ejemplo", "404: Example",
    ],
)  # fmt: skip
def test_a_page_that_says_it_is_not_there_and_nothing_else_is_a_soft_404(title):
    assert judged(title, "Go back to our home page, or search.") == "soft_404"
    assert judged("Example", f"{title}\nGo back to our home page.") == "soft_404"
    assert judged(title, LONG) is None


@pytest.mark.parametrize(
    "title",
    [
        "Room 404", "Lost and found", "How to fix error 404 on your site", "HTTP 404",
        "The page that was not found for years", "Interstate 404 opens", "404 ways to cook an egg",
        "Found: the page you are looking for",
        "A book review", "",
        "The domain of love is for sale by owner", "Houses for sale", "Domain names: a short history",
    ],
)  # fmt: skip
def test_short_pages_about_something_stay(title):
    expected = "soft_404" if title == "HTTP 404" else None  # with no other text, nothing else can be meant
    assert judged(title, "A short note with a few words in it.") == expected


@pytest.mark.parametrize(
    ("title", "html"),
    [
        ("example.org is for sale", b""),
        ("This domain is for sale!", b""),
        ("example.org | Domain for sale", b""),
        ("Buy this domain", b""),
        ("Parked Domain", b""),
        ("example.org", b"<script src='https://www.sedoparking.com/frmpark/'>"),
        ("example.org", b"<html data-adblockkey='MFwwDQYJ'>"),
        ("example.org", b"<script>window.location='/parking-lander/'</script> <a href='/parking-lander/x'>"),
    ],
)
def test_parked_domains_are_told_by_an_offer_or_a_service_and_hardly_any_text(title, html):
    assert judged(title, "Related searches", html) == "parked"
    assert judged(title, LONG, html) is None


def test_a_redirect_to_a_seller_of_domains_is_one_of_a_parked_domain_but_the_seller_has_pages():
    to = "https://www.hugedomains.com/domain_profile.cfm?d=example.org"
    assert judged("HugeDomains", LONG, url="http://example.org/", final_url=to) == "parked"
    assert (
        judged("Our story", LONG, url="http://hugedomains.com/about", final_url="https://www.hugedomains.com/x") is None
    )
