"""The report in a browser: it opens, runs nothing, asks for nothing, and fits a phone.

These tests run where a Chromium is installed, and are skipped where none is.
"""

import http.server
import itertools
import shutil
import threading

import pytest
from browser import Browser, find_chromium
from practice_corpus import SCRIPT, make_corpus, make_run, run

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]

CHARTS = "document.querySelectorAll('svg[role=img]')"


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page about a corpus with hostile text in it, with a long word, and a training run."""
    folder = tmp_path_factory.mktemp("report")

    make_corpus(folder)
    flags = ("--output", folder / "report.html", "--run", make_run(folder), "--title", SCRIPT + "long" * 80)
    run("report", folder / "corpus", folder / "clean", *flags, "--workers", 1)
    return folder / "report.html"


@pytest.fixture(scope="module")
def opened(browser, page):
    """The page, loaded once for all tests that only look at it; they stand before those that load something else."""
    browser.requests.clear()
    browser.messages.clear()
    browser.open(page)
    return browser


def test_the_page_opens_with_its_figures(opened):
    headings = opened.evaluate("[...document.querySelectorAll('h2')].map(h => h.textContent)")
    assert headings == [
        "What the model writes", "Training", "From source to corpus", "Examples", "Domains", "Lengths", "Languages",
        "Downloads", "Duplicates", "How it was made",
    ]  # fmt: skip
    shown = opened.evaluate("document.body.innerText")
    assert "blocked domain 9 18%" in shown.replace("\xa0", " ").replace("  ", " ")
    assert "5.125" in shown
    assert opened.evaluate(f"{CHARTS}.length") >= 10


def test_each_chart_is_drawn_and_says_what_it_shows(opened):
    said = "c.ariaLabel || c.querySelector(':scope > title').textContent"
    assert opened.evaluate(f"[...{CHARTS}].every(c => {said})")
    assert opened.evaluate("document.querySelector('.stream').getBoundingClientRect().width") > 100
    # The style sheet is accepted by the page's own policy.
    colour = opened.evaluate("getComputedStyle(document.querySelector('.stream')).fill")
    assert colour == "rgb(42, 127, 142)"


def test_every_link_leads_somewhere_in_the_page(opened):
    assert opened.evaluate("[...document.links].every(a => document.querySelector(a.getAttribute('href')))")
    assert opened.evaluate("document.links.length") == 10


def test_no_script_in_a_document_runs(opened):
    assert opened.evaluate("typeof window.ran") == "undefined"
    assert opened.evaluate("document.scripts.length + document.images.length") == 0
    handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
    assert opened.evaluate(handlers) == []
    assert opened.evaluate("document.title").startswith(f"Report: {SCRIPT}")
    assert opened.messages == []


def test_nothing_is_asked_for_but_the_page_itself(opened, page):
    opened.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    opened.resize(375)
    assert opened.requests == [page.as_uri()]


def test_no_width_of_a_window_makes_the_page_scroll_sideways(opened):
    for width, is_open in itertools.product((320, 375, 600, 768, 1400), ("false", "true")):
        opened.resize(width)
        opened.evaluate(f"document.querySelectorAll('details').forEach(d => d.open = {is_open})")
        wide, seen = opened.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert (wide, seen) == (seen, width)
        bar = "document.querySelector('nav')"
        assert width < 720 or opened.evaluate(f"{bar}.scrollWidth <= {bar}.clientWidth")


def test_a_phone_gets_the_narrow_funnel_with_letters_that_can_be_read(opened):
    opened.resize(375)
    shown = "[...document.querySelectorAll('.funnel')].filter(f => f.getBoundingClientRect().width)"
    assert opened.evaluate(f"{shown}.every(f => f.classList.contains('narrow')) && {shown}.length > 0")
    heights = f"{shown}.flatMap(f => [...f.querySelectorAll('text')].map(t => t.getBoundingClientRect().height))"
    assert opened.evaluate(f"Math.min(...{heights})") >= 11


def test_its_policy_would_not_let_a_script_or_a_request_through(browser, page, tmp_path):
    """Also if markup of a document came through unescaped."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        image = f'<img src="http://127.0.0.1:{server.server_port}/x" onerror="window.ran = 2">'
        image += "<style>body {color: red}</style>"
        hostile = page.read_text(encoding="utf-8").replace("</h1>", f"</h1>{SCRIPT}{image}", 1)
        (tmp_path / "page.html").write_text(hostile, encoding="utf-8")
        # The same without the policy: what the test looks for is found.
        (tmp_path / "open.html").write_text(hostile.replace("Content-Security-Policy", "nothing", 1), encoding="utf-8")
        found = []
        for name in ("page.html", "open.html"):
            asked.clear()
            browser.open(tmp_path / name)
            colour = browser.evaluate("getComputedStyle(document.body).color")
            found.append((browser.evaluate("typeof window.ran"), bool(asked), colour == "rgb(255, 0, 0)"))
        server.shutdown()
    assert found == [("undefined", False, False), ("number", True, True)]


def test_there_is_a_dark_scheme(browser, page):
    colours = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        style = "getComputedStyle(document.body)"
        colours.append([sum(map(int, part)) for part in browser.evaluate(
            f"[{style}.backgroundColor, {style}.color].map(c => c.match(/\\d+/g))"
        )])  # fmt: skip
    (light_paper, light_ink), (dark_paper, dark_ink) = colours
    assert light_paper > 700 > 200 > light_ink
    assert dark_ink > 600 > 200 > dark_paper


def test_the_funnel_stands_alone_as_a_picture(browser, page, tmp_path):
    folder = page.parent
    flags = ("--output", tmp_path / "r.html", "--funnel", tmp_path / "funnel.svg")
    run("report", folder / "corpus", *flags)
    shutil.copy(tmp_path / "funnel.svg", tmp_path / "copy.svg")
    browser.open(tmp_path / "copy.svg")
    assert browser.evaluate("document.documentElement.tagName") == "svg"
    assert browser.evaluate("getComputedStyle(document.querySelector('.stream')).fill") == "rgb(42, 127, 142)"
