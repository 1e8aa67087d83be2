"""Soft 404s and parked domains: two signs each, so that no page with text is lost."""

from pathlib import Path

import pytest

from webtext_prep.extraction.gone_pages import FEW_CHARACTERS, gone_outcome

LONG = "Some text of an article that goes on. " * 20
assert len(LONG) > FEW_CHARACTERS


def judged(title="", text="", html=b"", url="http://example.org/a", final_url=None):
    return gone_outcome(url, final_url, title, text, html)


def titles(name):
    """The lines of a file in `titles/`: of pages that are not there, and of pages about something."""
    lines = Path(__file__).with_name("titles").joinpath(f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [pytest.param(line, id=str(number)) for number, line in enumerate(lines)]


@pytest.mark.parametrize("title", titles("not_there"))
def test_a_page_that_says_it_is_not_there_and_nothing_else_is_a_soft_404(title):
    assert judged(title, "Go back to our home page, or search.") == "soft_404"
    assert judged("Example", f"{title}\nGo back to our home page.") == "soft_404"
    assert judged(title, LONG) is None


@pytest.mark.parametrize("title", ["", *titles("there")])
def test_short_pages_about_something_stay(title):
    assert judged(title, "A short note with a few words in it.") is None
    assert judged("Example", f"{title}\nA short note with a few words in it.") is None


@pytest.mark.parametrize(
    ("title", "html"),
    [
        ("example.org is for sale", b""),
        ("This domain is for sale!", b""),
        ("example.org | Domain for sale", b""),
        ("Buy this domain", b""),
        ("Parked Domain", b""),
        ("example.org", b"<script src='https://www.sedoparking.com/frmpark/'>"),
        ("example.org", b"<script src='//sedoparking.com'></script>"),
        ("example.org", b"<iframe src=https://d1.parkingcrew.net:443/x></iframe>"),
        ("example.org", b'<script>var at = "https:\\/\\/bodis.com\\/x"</script>'),
        ("example.org", b"<a href='https://DAN.com/buy-domain/example.org'>"),
        ("example.org", b"<a href='https://www.hugedomains.com/domain_profile.cfm?d=example.org'>"),
        ("example.org", b"<html data-adblockkey='MFwwDQYJ'>"),
        ("example.org", b"<html lang=en\ndata-adblockkey=MFwwDQYJ>"),
        ("example.org", b"<script>window.location='/parking-lander/'</script> <a href='/parking-lander/x'>"),
        ("example.org", b"<script src='https://example.org/parking-lander/x.js'>"),
    ],
)
def test_parked_domains_are_told_by_an_offer_or_a_service_and_hardly_any_text(title, html):
    assert judged(title, "Related searches", html) == "parked"
    assert judged(title, LONG, html) is None


@pytest.mark.parametrize(
    "html",
    [
        b"<script src='https://antibodis.com/x'></script>",
        b"<a href='http://jordan.com/buy-domain'>",
        b"<a href='https://dan.com/about'>",
        b"<a href='https://sedoparking.com.example.net/'>",
        b"<a href='https://not-sedoparking.com/'>",
        b"<img src='https://example.net/sedoparking.com/logo.png'>",
        b"<p>We left parkingcrew.net last year, and sedoparking.com before that.</p>",
        b'<pre>&lt;html data-adblockkey="x"&gt;</pre>',
        b"<p>The path is called /parking-lander/ there.</p>",
        b"<a href='https://myhugedomains.com/domain_profile.cfm'>",
        b"<a href='https://example.org/x/afternic.com/forsale'>",
    ],
)
def test_services_for_parked_domains_are_told_by_their_hosts(html):
    """They were looked for as a part of any word: antibodis.com was bodis.com."""
    assert judged("My notes", "A short note with a few words in it.", html) is None


def test_a_redirect_to_a_seller_of_domains_is_one_of_a_parked_domain_but_the_seller_has_pages():
    to = "https://www.hugedomains.com/domain_profile.cfm?d=example.org"
    assert judged("HugeDomains", LONG, url="http://example.org/", final_url=to) == "parked"
    assert (
        judged("Our story", LONG, url="http://hugedomains.com/about", final_url="https://www.hugedomains.com/x") is None
    )
